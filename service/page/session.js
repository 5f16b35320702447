// One text opened with one model on the server. Later requests name it by its handle.

import { post } from "./api.js";
import { attentionName, isReadable } from "./attention.js";
import { Characters, firstNotBelow, shortened } from "./offsets.js";

const QUANTILES = [0.1, 0.5, 0.9]; // of the rows of each head
const CLOSED = "document_not_found"; // the error code if the server has closed the text

export class Session {
  constructor(text, characters, opened, info) {
    Object.assign(this, { text, characters, info });
    this.document = opened.document;
    this.model = opened.model;
    this.tokens = opened.count;
    this.offsets = opened.offsets;
    this.written = opened.tokens;
    this.ends = endsOf(opened.offsets);
    this.readings = {};
    this.notes = new Set(); // what to know before comparing readings with those of other texts
  }

  static async open(text, info, signal) {
    return new Session(text, new Characters(text), await openText(text, info, signal), info);
  }

  // The server closes a text that is unused for a while, or when it needs the memory. Opens it again
  // then and repeats the request.
  async ask(path, question, signal) {
    try {
      return await post(path, { document: this.document, ...question }, signal);
    } catch (failure) {
      if (failure.code !== CLOSED) throw failure;
    }
    await this.reopen();
    signal.throwIfAborted();
    return post(path, { document: this.document, ...question }, signal);
  }

  // Concurrent callers share one request, which none of them can abort.
  reopen() {
    this.reopening ??= openText(this.text, this.info)
      .then(({ document }) => (this.document = document))
      .finally(() => (this.reopening = null));
    return this.reopening;
  }

  // The layers that can be analysed.
  get layers() {
    return this.info.attention.flatMap((kind, layer) => (isReadable(kind) ? [layer] : []));
  }

  // Returns why a head cannot be analysed, or null if it can.
  whyClosed(layer, head = 0) {
    const { attention, num_layers: layers, num_heads: heads } = this.info;
    if (layer >= layers || head >= heads) return `${this.model} has no head ${head} in layer ${layer}`;
    if (isReadable(attention[layer])) return null;
    return `${this.model}, layer ${layer}: ${attentionName(attention[layer])} attention, which cannot be measured or mapped`;
  }

  hasRead(instrument, layers = this.layers) {
    const values = this.readings[instrument]?.values;
    return values !== undefined && layers.every((layer) => values[layer]);
  }

  // Reads layer by layer, so that results show early, or with `together` all layers in one request.
  // Yields the number of layers read.
  async *read(instruments, { signal, together }) {
    const steps = together ? [this.layers] : this.layers.map((layer) => [layer]);
    for (const layers of steps) {
      const missing = instruments.filter((name) => !this.hasRead(name, layers));
      if (!missing.length) continue;
      const found = await this.ask("v1/diagnostics", { layers, instruments: missing, quantiles: QUANTILES }, signal);
      for (const note of found.notes) this.notes.add(note);
      for (const [name, reading] of Object.entries(found.instruments)) {
        const whole = (this.readings[name] ??= { ...reading, values: [], error: [], labels: [], rows: [], methods: new Set() });
        layers.forEach((layer, index) => {
          whole.values[layer] = reading.values[index];
          whole.error[layer] = reading.error?.[index];
          whole.rows[layer] = reading.beside.quantiles?.values[index];
        });
        whole.methods.add(reading.method);
        layers.forEach((layer, index) => (whole.labels[layer] = reading.labels?.[index]));
      }
      yield layers.length;
    }
  }

  structure(signal) {
    return this.ask("v1/structure", {}, signal);
  }

  topics(layer, head, signal) {
    return this.ask("v1/attention/map", { layer, head, height: 1, width: 1, topics: 8, topic_tokens: 40 }, signal);
  }

  map(question, signal) {
    return this.ask("v1/attention/map", question, signal);
  }

  // Returns the characters of a range of tokens. Special tokens at either end extend it beyond the text,
  // so that all tokens of one model correspond to all tokens of another.
  charactersOf([start, end]) {
    return [start > 0 ? this.ends[start - 1] : -1, end < this.tokens ? this.ends[end - 1] : Infinity];
  }

  // Returns the tokens of these characters, at least one.
  tokensOf([start, end]) {
    const first = Math.min(firstNotBelow(this.ends, start + 1), this.tokens - 1);
    const last = Math.min(firstNotBelow(this.ends, end), this.tokens - 1);
    return [first, Math.max(first, last) + 1];
  }

  // [start, end) in units of the text; null for special tokens.
  units(token) {
    const [start, end] = this.offsets[token];
    return end > start ? this.span({ start, end }) : null;
  }

  // Returns [start, end) in units, from the first to the last token of a range.
  unitsOf([first, end]) {
    let start = Infinity;
    let last = 0;
    for (let token = first; token < end; token++) {
      const [from, to] = this.offsets[token];
      if (to <= from) continue;
      start = Math.min(start, from);
      last = Math.max(last, to);
    }
    return last ? this.span({ start, end: last }) : null;
  }

  span({ start, end }) {
    return [this.characters.unit(start), this.characters.unit(end)];
  }

  // Returns the first words of a range of tokens; of a part that begins with a heading, the heading.
  excerpt(tokens, length = 48, isHeading = false) {
    const units = this.unitsOf(tokens);
    if (!units) return this.written[tokens[0]] ?? "";
    const heading = isHeading && headingOf(this.text.slice(units[0], Math.min(units[1], units[0] + LONGEST_HEADING)));
    if (heading) return heading;
    return shortened(this.text.slice(...units), length);
  }
}

const LONGEST_HEADING = 200;

// The heading at the start of a text, without its markup: Markdown, HTML, or underlined.
function headingOf(text) {
  const line = text.split("\n").find((one) => /[\p{L}\p{N}]/u.test(one)) ?? "";
  return line.replace(/<[^>]*>/g, "").replace(/^\s*#+\s*/, "").replace(/\s#+\s*$/, "").trim();
}

async function openText(text, info, signal) {
  const opened = await post("v1/tokenize", { text, model: info.name, open: true }, signal);
  if (opened.document !== null) return opened;
  throw new Error(`The text has ${opened.count} tokens; the limit of ${info.name} is ${info.max_tokens}.`);
}

// Returns the character at which each token ends. Special tokens end where the token before them does.
function endsOf(offsets) {
  let furthest = 0;
  return offsets.map(([, end]) => (furthest = Math.max(furthest, end)));
}
