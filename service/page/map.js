// The attention map of a head, on a canvas. Zooming scales the picture at once; the server's values
// for the new window replace it a moment later.

import { floats } from "./api.js";
import { attentionName } from "./attention.js";
import { cellOf, NAMED_TOKENS, ticks } from "./cells.js";
import { shades } from "./colour.js";
import { make, show } from "./dom.js";
import { legend } from "./legend.js";
import { Newest } from "./newest.js";
import { count, short } from "./numbers.js";
import { addAside } from "./work.js";

const CELLS = 256;
const SETTLE_MS = 90;
const EDGE = 46; // width of the axes in CSS pixels

export class MapView {
  // view: the window in tokens of `first`, which is a session of the same text.
  constructor(parent, session, { view, first, onFound, onView, onCell, onError, onPick }) {
    Object.assign(this, { session, view, first, onFound, onView, onCell, onError, onPick });
    this.asking = new Newest();
    this.canvas = make("canvas", { class: "map", tabindex: 0, role: "img" });
    this.caption = make("figcaption", {});
    this.legend = make("div", {});
    this.element = make("figure", { class: "map-figure" }, this.caption, this.canvas, this.legend);
    parent.append(this.element);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  open(layer, head) {
    this.close();
    this.place = { layer, head };
    this.found = null;
    this.legend.replaceChildren();
    const closed = this.session.whyClosed(layer, head);
    this.caption.textContent = closed ?? `${this.session.model}: reading the attention of layer ${layer}, head ${head}…`;
    this.canvas.removeAttribute("aria-label");
    show(this.canvas, !closed);
    if (!closed) this.ask(0);
    this.draw();
  }

  // Cancels pending requests.
  close() {
    clearTimeout(this.timer);
    this.asking.stop();
    this.rest();
  }

  // The same, and offers to read a map of which nothing is there yet.
  stop() {
    this.close();
    if (this.found) return;
    const again = make("button", { type: "button", onclick: () => this.open(this.place.layer, this.place.head) }, "Read it");
    this.caption.replaceChildren(`${this.session.model}: stopped before the attention was read. `, again);
  }

  // Nothing is awaited any more.
  rest() {
    this.element.removeAttribute("aria-busy");
    this.answered?.();
    this.answered = null;
  }

  changed() {
    this.draw();
    if (!this.canvas.hidden) this.ask(SETTLE_MS);
  }

  // The view in tokens of this map's model.
  get window() {
    const { rows, columns } = this.view;
    if (this.session === this.first) return { rows, columns };
    const own = (tokens) => this.session.tokensOf(this.first.charactersOf(tokens));
    return { rows: own(rows), columns: own(columns) };
  }

  ask(delay) {
    clearTimeout(this.timer);
    this.element.setAttribute("aria-busy", "true");
    this.answered ??= addAside(`Reading the attention map of ${this.session.model}…`, () => this.stop());
    this.timer = setTimeout(() => this.fetch(), delay);
  }

  async fetch() {
    const signal = this.asking.next();
    const { rows, columns } = this.window;
    try {
      const found = await this.session.map({
        ...this.place,
        rows: { start: rows[0], end: rows[1] },
        columns: { start: columns[0], end: columns[1] },
        height: CELLS, width: CELLS, statistic: "mean", encoding_format: "base64",
      }, signal);
      this.found = { ...found, values: floats(found.values), height: found.row_edges.length - 1, width: found.column_edges.length - 1 };
      this.caption.textContent = `${attentionName(found.attention)} · layer ${found.layer}, head ${found.head} · ${this.session.model}`;
      this.canvas.setAttribute("aria-label", this.words());
      this.onFound();
      this.element.dataset.window = [...rows, ...columns].join(" ");
    } catch (failure) {
      if (!signal.aborted) {
        if (!this.found) this.caption.textContent = this.session.model;
        this.onError(failure);
      }
    }
    if (!signal.aborted) this.rest();
  }

  words() {
    const { rows, columns } = this.window;
    return `Attention map of ${this.caption.textContent}: rows ${count(rows[0])} to ${count(rows[1])}, columns ${count(columns[0])} to ${count(columns[1])} of ${count(this.session.tokens)} tokens`;
  }

  // The attention a token that the colours are to tell apart: from a tenth of uniform attention.
  get limits() {
    const { values, tokens } = this.found;
    return [0.1 / tokens, values.reduce((largest, value) => Math.max(largest, value), 2 / tokens)];
  }

  // Draws one pixel per cell, on a log scale.
  paint([least, most]) {
    const { values, width, height } = this.found;
    const low = Math.log(least);
    const scale = 255 / (Math.log(most) - low);
    const colours = shades();
    const image = new ImageData(width, height);
    for (let cell = 0; cell < values.length; cell++) {
      const shade = 3 * Math.round(Math.max(0, (Math.log(values[cell] + 1e-30) - low) * scale));
      image.data[4 * cell] = colours[shade];
      image.data[4 * cell + 1] = colours[shade + 1];
      image.data[4 * cell + 2] = colours[shade + 2];
      image.data[4 * cell + 3] = 255;
    }
    this.picture ??= document.createElement("canvas");
    this.picture.width = width;
    this.picture.height = height;
    this.picture.getContext("2d").putImageData(image, 0, 0);
    this.legend.replaceChildren(legend(`${short(least)} or less`, `${short(most)} a token`));
    this.draw();
  }

  draw() {
    const ratio = devicePixelRatio || 1;
    const size = this.canvas.clientWidth;
    if (!size) return;
    const side = size - EDGE;
    this.canvas.width = size * ratio;
    this.canvas.height = size * ratio;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(this.canvas);
    context.font = `11px ${style.fontFamily}`;
    context.fillStyle = style.color;
    this.drawAxes(context, side);
    context.translate(EDGE, EDGE);
    context.beginPath();
    context.rect(0, 0, side, side);
    context.clip();
    if (this.found) this.drawPicture(context, side);
  }

  // Draws the fetched window at its place in the current one.
  drawPicture(context, side) {
    const { rows, columns } = this.window;
    const place = (edges, [start, end]) => {
      const scale = side / (end - start);
      return [(edges[0] - start) * scale, (edges.at(-1) - edges[0]) * scale];
    };
    const [x, width] = place(this.found.column_edges, columns);
    const [y, height] = place(this.found.row_edges, rows);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, x, y, width, height);
  }

  drawAxes(context, side) {
    const { rows, columns } = this.window;
    for (const [span, vertical] of [[columns, false], [rows, true]]) {
      for (const [at, label] of ticks(span, this.session.written)) {
        const place = EDGE + ((at - span[0]) / (span[1] - span[0])) * side;
        context.save();
        if (vertical) context.translate(EDGE - 6, place);
        else {
          context.translate(place, EDGE - 6);
          if (span[1] - span[0] <= NAMED_TOKENS) context.rotate(-Math.PI / 2);
        }
        const rotated = vertical || span[1] - span[0] <= NAMED_TOKENS;
        context.textAlign = vertical ? "right" : rotated ? "left" : place > side ? "right" : "left";
        context.textBaseline = rotated ? "middle" : "alphabetic";
        context.fillText(label, 0, 0, EDGE - 8);
        context.restore();
      }
    }
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const side = box.width - EDGE;
    return this.cellIn((event.clientX - box.left - EDGE) / side, (event.clientY - box.top - EDGE) / side);
  }

  // x and y are shares of the window.
  cellIn(x, y) {
    if (!this.found || x < 0 || y < 0 || x >= 1 || y >= 1) return null;
    const token = ([start, end], share) => start + share * (end - start);
    const { rows, columns } = this.window;
    const column = cellOf(this.found.column_edges, token(columns, x));
    const row = cellOf(this.found.row_edges, token(rows, y));
    if (column < 0 || row < 0) return null;
    return {
      rows: [this.found.row_edges[row], this.found.row_edges[row + 1]],
      columns: [this.found.column_edges[column], this.found.column_edges[column + 1]],
      mean: this.found.values[row * this.found.width + column],
      even: 1 / this.found.tokens,
    };
  }

  pick(cell) {
    if (cell) this.onPick(cell);
  }

  share(event) {
    const box = this.canvas.getBoundingClientRect();
    const side = box.width - EDGE;
    const inside = (value) => Math.min(1, Math.max(0, value));
    return [inside((event.clientX - box.left - EDGE) / side), inside((event.clientY - box.top - EDGE) / side)];
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.view.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), ...this.share(event));
      this.onView();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const step = {
        ArrowLeft: () => this.view.pan(-0.2, 0), ArrowRight: () => this.view.pan(0.2, 0),
        ArrowUp: () => this.view.pan(0, -0.2), ArrowDown: () => this.view.pan(0, 0.2),
        "+": () => this.view.zoom(0.5), "=": () => this.view.zoom(0.5), "-": () => this.view.zoom(2),
        0: () => this.view.all(),
      }[event.key];
      if (event.key === "Enter") this.pick(this.cellIn(0.5, 0.5));
      if (!step || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      step();
      this.onView();
    });
    this.listenToPointers();
  }

  // One pointer drags, two pinch, and a click picks a cell.
  listenToPointers() {
    const { canvas } = this;
    const pointers = new Map();
    let moved = false;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, [event.clientX, event.clientY]);
      moved = pointers.size > 1;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) {
        this.onCell(this.cellAt(event));
        return;
      }
      const side = canvas.clientWidth - EDGE;
      const now = [event.clientX, event.clientY];
      if (pointers.size === 2) {
        const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
        const spread = (place) => Math.hypot(place[0] - other[0], place[1] - other[1]) || 1;
        this.view.zoom(spread(before) / spread(now), ...this.share(event));
      } else if (moved || Math.hypot(now[0] - before[0], now[1] - before[1]) > 4) {
        this.view.pan((before[0] - now[0]) / side, (before[1] - now[1]) / side);
      } else return;
      moved = true;
      pointers.set(event.pointerId, now);
      this.onView();
    });
    const end = (event) => {
      if (pointers.delete(event.pointerId) && !moved && event.type === "pointerup") {
        this.pick(this.cellAt(event));
      }
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => this.onCell(null));
  }
}
