// One text read by one model: opened on the server once, then asked about by its handle.

import { post } from "./api.js";
import { attentionName, isReadable } from "./attention.js";
import { Characters, firstNotBelow } from "./offsets.js";

const LET_GO = "document_not_found"; // the server's word for a text that it does not keep open any more

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
  }

  static async open(text, info, signal) {
    return new Session(text, new Characters(text), await openText(text, info, signal), info);
  }

  // The server lets a text go that nobody asked about for a while, or when others need the room. It is
  // then opened anew, and the question asked once more.
  async ask(path, question, signal) {
    try {
      return await post(path, { document: this.document, ...question }, signal);
    } catch (failure) {
      if (failure.code !== LET_GO) throw failure;
    }
    await this.reopen();
    signal.throwIfAborted();
    return post(path, { document: this.document, ...question }, signal);
  }

  // Once for all who ask, so that none of them may stop it for the others.
  reopen() {
    this.reopening ??= openText(this.text, this.info)
      .then(({ document }) => (this.document = document))
      .finally(() => (this.reopening = null));
    return this.reopening;
  }

  // The layers whose heads can be looked at.
  get layers() {
    return this.info.attention.flatMap((kind, layer) => (isReadable(kind) ? [layer] : []));
  }

  // Why a head cannot be looked at, in words, or null where it can.
  whyClosed(layer, head = 0) {
    const { attention, num_layers: layers, num_heads: heads } = this.info;
    if (layer >= layers || head >= heads) return `${this.model} has no head ${head} in layer ${layer}`;
    if (isReadable(attention[layer])) return null;
    return `${this.model}, layer ${layer}: ${attentionName(attention[layer])} attention, which is neither measured nor mapped`;
  }

  hasRead(instrument, layers = this.layers) {
    const values = this.readings[instrument]?.values;
    return values !== undefined && layers.every((layer) => values[layer]);
  }

  // Layer by layer: what is read is shown while the rest is still being read. All layers together
  // where each is measured with those before it. Gives how many layers are done.
  async *read(instruments, { signal, together }) {
    const turns = together ? [this.layers] : this.layers.map((layer) => [layer]);
    for (const layers of turns) {
      const missing = instruments.filter((name) => !this.hasRead(name, layers));
      if (!missing.length) continue;
      const found = await this.ask("v1/diagnostics", { layers, instruments: missing }, signal);
      for (const [name, reading] of Object.entries(found.instruments)) {
        const whole = (this.readings[name] ??= { ...reading, values: [], error: [], methods: new Set() });
        layers.forEach((layer, index) => {
          whole.values[layer] = reading.values[index];
          whole.error[layer] = reading.error?.[index];
        });
        whole.methods.add(reading.method);
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

  // Where some tokens lie in the text. Tokens at either end that stand for no text lie beyond it, so that
  // all the tokens of one model are all those of another.
  charactersOf([start, end]) {
    return [start > 0 ? this.ends[start - 1] : -1, end < this.tokens ? this.ends[end - 1] : Infinity];
  }

  // The tokens of these characters, at least one.
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

  // The text from the first of some tokens to the last.
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

  // A few words of the text where these tokens are.
  excerpt(tokens, length = 48) {
    const units = this.unitsOf(tokens);
    if (!units) return this.written[tokens[0]] ?? "";
    const words = this.text.slice(units[0], Math.min(units[1], units[0] + length)).replace(/\s+/g, " ").trim();
    return units[1] - units[0] > length ? `${words}…` : words;
  }
}

async function openText(text, info, signal) {
  const opened = await post("v1/tokenize", { text, model: info.name, open: true }, signal);
  if (opened.document !== null) return opened;
  throw new Error(`The text has ${opened.count} tokens; ${info.name} reads at most ${info.max_tokens}.`);
}

// The character at which each token ends; for one that stands for no text, that of the text before it.
function endsOf(offsets) {
  let furthest = 0;
  return offsets.map(([, end]) => (furthest = Math.max(furthest, end)));
}
