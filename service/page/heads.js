// The grid of layers and heads: a square for each head, coloured by an instrument, or a bar for each
// layer if the instrument has one value per layer.

import { attentionName } from "./attention.js";
import { colour, isDarkInk } from "./colour.js";
import { make } from "./dom.js";
import { legend } from "./legend.js";
import { range, shareOf, short } from "./numbers.js";

// Of the instrument that names heads, short enough for a square.
const SHORT = {
  diffuse: "even", sinks: "sink", previous: "prev", next: "next", self: "self",
  delimiters: "punct", local: "near", content: "far", mixed: "mix",
};

export class HeadGrid {
  constructor(parent, session, { onOpen, onLook }) {
    this.onOpen = onOpen;
    this.onLook = onLook;
    this.session = session;
    this.squares = [];
    this.element = make("figure", { class: "heads" });
    parent.append(this.element);
  }

  // reading: { values[layer][head], error, unit }, the rows of unread layers are missing.
  draw({ reading, name, limits, whole, open }) {
    const { num_layers: layers, num_heads: heads } = this.session.info;
    this.reading = reading;
    this.whole = whole;
    this.name = name;
    const focused = this.squares.flat().find((square) => square === document.activeElement)?.dataset.place;
    const columns = Array.from({ length: heads }, (_, head) =>
      make("span", { class: "axis", "aria-hidden": "true" }, String(head)));
    const rows = Array.from({ length: layers }, (_, layer) => this.row(layer, heads, limits, open));
    const grid = make("div", { class: "grid", role: "grid", "aria-label": `${this.session.model}: layers by heads` },
      make("div", { class: "grid-row", "aria-hidden": "true" }, make("span", { class: "axis" }), ...columns), ...rows);
    grid.style.setProperty("--heads", heads);
    grid.addEventListener("keydown", (event) => this.move(event));
    this.element.replaceChildren(
      make("figcaption", {}, this.session.model), grid, legend(short(limits[0]), `${short(limits[1])}${unitOf(reading)}`));
    this.squares = rows.map((row) => [...row.querySelectorAll(".head")]);
    const entry = this.squares.flat().find((square) => square.dataset.place === (focused ?? open)) ?? this.squares[0]?.[0];
    if (entry) entry.tabIndex = 0;
    if (focused) entry?.focus();
  }

  row(layer, heads, limits, open) {
    const attention = attentionName(this.session.info.attention[layer]);
    const squares = Array.from({ length: this.whole ? 1 : heads }, (_, head) => this.square(layer, head, limits, open));
    return make("div", { class: "grid-row", role: "row" },
      make("span", { class: "axis", role: "rowheader", title: `layer ${layer}: ${attention}` }, String(layer)), ...squares);
  }

  square(layer, head, limits, open) {
    const value = this.reading.values[layer]?.[head];
    const place = `${layer}.${head}`;
    const [openLayer, openHead] = open.split(".").map(Number);
    const isOpen = layer === openLayer && (this.whole || head === openHead);
    const isClosed = this.session.whyClosed(layer) !== null;
    const square = make("button", {
      type: "button", class: this.whole ? "head whole" : "head", role: "gridcell", tabindex: -1, "data-place": place,
      "aria-label": this.words(layer, head), "aria-selected": String(isOpen),
      "aria-disabled": isClosed && "true", // not disabled, so that it can have the focus and say why
      onclick: () => isClosed || this.onOpen(layer, this.whole ? openHead : head),
      onpointerenter: () => this.onLook(() => this.words(layer, head)),
      onfocus: () => this.onLook(() => this.words(layer, head)),
    });
    if (isClosed) square.classList.add("closed");
    else if (value === undefined || value === null) square.classList.add("unread");
    else {
      const share = shareOf(value, limits);
      square.style.backgroundColor = colour(share);
      const label = this.reading.labels?.[layer]?.[head];
      if (label) square.append(make("span", { class: isDarkInk(share) ? "head-label dark-ink" : "head-label" }, SHORT[label] ?? label));
    }
    return square;
  }

  words(layer, looked) {
    const head = this.whole ? 0 : looked;
    const value = this.reading.values[layer]?.[head];
    const closed = this.session.whyClosed(layer);
    if (closed) return closed;
    const place = `${this.session.model}, layer ${layer}${this.whole ? "" : `, head ${head}`}`;
    if (value === undefined || value === null) return `${place}: not read`;
    const error = this.reading.error?.[layer]?.[head];
    const bound = error ? ` ± ${short(error)}` : "";
    const label = this.reading.labels?.[layer]?.[head];
    const named = label ? `${label}, ` : "";
    return `${place}: ${named}${this.name} ${short(value)}${bound}${unitOf(this.reading)}${spread(this.reading.rows?.[layer]?.[head])}`;
  }

  move(event) {
    const [layer, head] = (event.target.dataset.place ?? "").split(".").map(Number);
    if (Number.isNaN(head)) return;
    const last = this.squares[0].length - 1;
    const next = {
      ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1],
      ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head],
      Home: [layer, 0], End: [layer, last],
    }[event.key];
    const square = next && this.squares[next[0]]?.[next[1]];
    if (next) event.preventDefault();
    if (!square) return;
    event.target.tabIndex = -1;
    square.tabIndex = 0;
    square.focus();
  }
}

const unitOf = ({ unit }) => (unit === "dimensionless" ? "" : ` ${unit}`);

// How a value spreads over the head's rows, of an instrument with a value for each.
const spread = (quantiles) => {
  if (!quantiles) return "";
  const [low, middle, high] = quantiles.map(short);
  return `; rows: a tenth below ${low}, half below ${middle}, nine tenths below ${high}`;
};

export const valuesOf = (readings) => range(readings.flatMap((reading) => reading.values.flat()));
