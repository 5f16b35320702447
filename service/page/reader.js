// The text as a column of short pieces; the browser renders only the visible ones. Marks use the CSS
// Custom Highlight API, so they do not change the elements.

import { make, turn } from "./dom.js";
import { firstNotBelow, isWithinPair } from "./offsets.js";

const PIECE = 600; // UTF-16 units, roughly: pieces end at a line or a word
const PIECES_PER_STEP = 200;

const MARKS = ["topic", "users", "segment", "row", "column"];

export class Reader {
  // marks: the names of its marks; each reader of the page has its own.
  constructor(element, marks = MARKS) {
    this.element = element;
    this.marks = marks;
    this.starts = [];
    this.nodes = [];
  }

  // Continues when other work is stopped, but not when another text is opened.
  async open(text) {
    const opening = (this.opening = {});
    this.clear();
    this.element.replaceChildren();
    this.starts = pieceStarts(text);
    this.nodes = [];
    for (let first = 0; first < this.starts.length; first += PIECES_PER_STEP) {
      const fragment = document.createDocumentFragment();
      const last = Math.min(first + PIECES_PER_STEP, this.starts.length);
      for (let index = first; index < last; index++) {
        const end = this.starts[index + 1] ?? text.length;
        const node = document.createTextNode(text.slice(this.starts[index], end));
        this.nodes.push(node);
        const piece = make("p", { class: "piece" }, node);
        piece.style.containIntrinsicBlockSize = `auto ${Math.ceil(node.length / 50) * 1.6}em`;
        fragment.append(piece);
      }
      this.element.append(fragment);
      await turn();
      if (this.opening !== opening) return;
    }
  }

  // spans: [start, end) in units. Replaces the earlier marks of the same name.
  mark(name, spans) {
    if (!globalThis.Highlight) return;
    const ranges = spans.flatMap(([start, end]) => this.ranges(start, end));
    if (ranges.length) CSS.highlights.set(name, new Highlight(...ranges));
    else CSS.highlights.delete(name);
  }

  clear(...names) {
    if (!globalThis.Highlight) return;
    for (const name of names.length ? names : this.marks) CSS.highlights.delete(name);
  }

  scrollTo(start) {
    const at = this.place(start);
    if (!at) return;
    const range = new Range();
    range.setStart(at.node, at.offset);
    range.setEnd(at.node, Math.min(at.offset + 1, at.node.length));
    // Scroll the piece into view first: an unrendered one has no measured position.
    at.node.parentElement.scrollIntoView({ block: "nearest" });
    const box = this.element.getBoundingClientRect();
    this.element.scrollTop += range.getBoundingClientRect().top - box.top - box.height / 4;
  }

  place(unit) {
    const index = firstNotBelow(this.starts, unit + 1) - 1;
    if (index < 0) return null;
    const node = this.nodes[index];
    return { index, node, offset: Math.min(unit - this.starts[index], node.length) };
  }

  // Returns one range per piece: a range across pieces would also mark the space between them.
  ranges(start, end) {
    const from = this.place(start);
    const to = this.place(Math.max(start, end - 1));
    if (!from || !to) return [];
    const found = [];
    for (let index = from.index; index <= to.index; index++) {
      const range = new Range();
      range.setStart(this.nodes[index], index === from.index ? from.offset : 0);
      const last = index === to.index ? to.offset + 1 : this.nodes[index].length;
      range.setEnd(this.nodes[index], Math.min(last, this.nodes[index].length));
      found.push(range);
    }
    return found;
  }
}

export function pieceStarts(text) {
  const starts = [];
  for (let start = 0; start < text.length; ) {
    starts.push(start);
    start = pieceEnd(text, start);
  }
  return starts;
}

// Looks only near the wanted end: the next line may be as far as the end of the text.
function pieceEnd(text, start) {
  const wanted = start + PIECE;
  if (wanted >= text.length) return text.length;
  const line = text.slice(wanted - PIECE / 2, wanted + PIECE).indexOf("\n");
  if (line >= 0) return wanted - PIECE / 2 + line + 1;
  const space = text.slice(start, wanted + 1).lastIndexOf(" ");
  if (space > 0) return start + space + 1;
  return isWithinPair(text, wanted) ? wanted + 1 : wanted;
}
