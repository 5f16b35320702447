// One text read by one model: opened on the server once, then asked about by its handle.

import { post } from "./api.js";
import { Characters } from "./offsets.js";

const READABLE = ["softmax", "lln", "lln_diag", "block_diagonal"];

export class Session {
  constructor(text, characters, opened, info) {
    Object.assign(this, { text, characters, info });
    this.document = opened.document;
    this.model = opened.model;
    this.tokens = opened.count;
    this.offsets = opened.offsets;
    this.written = opened.tokens;
    this.readings = {};
  }

  static async open(text, info, signal) {
    const opened = await post("v1/tokenize", { text, model: info.name, open: true }, signal);
    if (opened.document === null) {
      throw new Error(`The text has ${opened.count} tokens; ${info.name} reads at most ${info.max_tokens}.`);
    }
    return new Session(text, new Characters(text), opened, info);
  }

  // The layers whose heads can be looked at.
  get layers() {
    return this.info.attention.flatMap((kind, layer) => (READABLE.includes(kind) ? [layer] : []));
  }

  hasRead(name) {
    return this.layers.every((layer) => this.readings[name]?.values[layer]);
  }

  // Layer by layer: what is read is shown while the rest is still being read. All layers together
  // where each is measured with those before it. Gives how many layers are done.
  async *read(instruments, { signal, together }) {
    const turns = together ? [this.layers] : this.layers.map((layer) => [layer]);
    for (const layers of turns) {
      const missing = instruments.filter((name) => !layers.every((layer) => this.readings[name]?.values[layer]));
      if (!missing.length) continue;
      const found = await post("v1/diagnostics",
        { document: this.document, layers, instruments: missing }, signal);
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
    return post("v1/structure", { document: this.document }, signal);
  }

  topics(layer, head, signal) {
    return post("v1/attention/map",
      { document: this.document, layer, head, height: 1, width: 1, topics: 8, topic_tokens: 40 }, signal);
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
