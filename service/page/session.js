// One text opened with one model on the server. Later requests name it by its handle.

import { post } from "./api.js";
import { attentionName, isReadable } from "./attention.js";
import { Characters, firstNotBelow, shortened } from "./offsets.js";

const QUANTILES = [0.1, 0.5, 0.9]; // of the rows of each head
const HEAD_TOKENS_A_REQUEST = 100_000; // heads times tokens that a core reads in about a second
const LONGEST_IN_PARTS = 60_000; // the server keeps the layers of such a text from one request to the next
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
    await this.reopen(signal);
    signal.throwIfAborted();
    return post(path, { document: this.document, ...question }, signal);
  }

  // Concurrent callers share one request, which is aborted when all of them have left.
  reopen(signal) {
    const shared = (this.reopening ??= this.openAgain());
    shared.waiting += 1;
    signal.addEventListener("abort", () => (shared.waiting -= 1) || shared.stop(), { once: true });
    return shared.opened;
  }

  openAgain() {
    const controller = new AbortController();
    const end = () => {
      if (this.reopening === shared) this.reopening = null;
    };
    const stop = () => {
      end(); // a caller that comes now needs a request of its own
      controller.abort();
    };
    const opened = openText(this.text, this.info, controller.signal)
      .then(({ document }) => (this.document = document))
      .finally(end);
    const shared = { waiting: 0, stop, opened };
    return shared;
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

  get heads() {
    return Array.from({ length: this.info.num_heads }, (_, head) => head);
  }

  hasRead(instrument, layers = this.layers, heads = this.heads) {
    const { values, scope } = this.readings[instrument] ?? {};
    const places = scope === "layer" ? [0] : heads;
    return values !== undefined && layers.every((layer) => places.every((head) => values[layer]?.[head] !== undefined));
  }

  // Reads layer by layer, so that results show early: with `together` all layers in one request, with
  // `inParts` a few heads of a long text in each. Yields the number of heads read.
  async *read(instruments, { signal, together, inParts }) {
    for (const { layers, heads } of this.requests(together, inParts)) {
      const missing = instruments.filter((name) => !this.hasRead(name, layers, heads));
      if (!missing.length) continue;
      const found = await this.ask("v1/diagnostics", { layers, heads, instruments: missing, quantiles: QUANTILES }, signal);
      for (const note of found.notes) this.notes.add(note);
      for (const [name, reading] of Object.entries(found.instruments)) this.add(name, reading, layers, heads?.[0] ?? 0);
      yield layers.length * (heads ?? this.heads).length;
    }
  }

  // Without heads, a request is about all of them.
  *requests(together, inParts) {
    if (together) yield { layers: this.layers };
    else for (const layer of this.layers) for (const heads of inParts ? this.parts : [undefined]) yield { layers: [layer], heads };
  }

  get parts() {
    const { length } = this.heads;
    const most = this.tokens > LONGEST_IN_PARTS ? length : Math.max(1, Math.round(HEAD_TOKENS_A_REQUEST / this.tokens));
    if (most >= length) return [undefined];
    const size = Math.ceil(length / Math.ceil(length / most)); // as even as possible
    return Array.from({ length: Math.ceil(length / size) }, (_, part) => this.heads.slice(part * size, (part + 1) * size));
  }

  // Adds what was read of these layers, of as many heads as the answer has, the first of them given.
  add(name, reading, layers, first) {
    const whole = (this.readings[name] ??= { ...reading, values: [], error: [], labels: [], rows: [], methods: new Set() });
    const rows = reading.beside.quantiles?.values;
    for (const [kind, found] of Object.entries({ values: reading.values, error: reading.error, labels: reading.labels, rows })) {
      layers.forEach((layer, index) => found?.[index]?.forEach((one, head) => ((whole[kind][layer] ??= [])[first + head] = one)));
    }
    whole.methods.add(reading.method);
  }

  structure(signal) {
    return this.ask("v1/structure", {}, signal);
  }

  topics(layer, head, signal) {
    // Topics are of the whole head; the map beside them is as small as can be.
    const one = { start: 0, end: 1 };
    return this.ask("v1/attention/map", { layer, head, rows: one, columns: one, height: 1, width: 1, topics: 8, topic_tokens: 40 }, signal);
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
