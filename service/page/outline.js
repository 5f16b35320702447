// The document's structure as a tree of segments. A segment begins at a heading of the text, or where
// vectors say that the subject changes.

import { make } from "./dom.js";
import { count } from "./numbers.js";

const OPEN_LEVELS = 1;
const GUESS = "A guess: near here the words and the subject change.";

export const BEGINNINGS = {
  text: "",
  heading: "Parts begin at the document's headings.",
  vectors: `≈ marks parts that begin where vectors say that the subject changes. These are guesses, not the author's sections.`,
};

// segments: [{ level, tokens, characters, children }]; excerpt(segment) returns its label.
export function drawOutline(parent, segments, { excerpt, onOpen }) {
  const tree = make("ul", { role: "tree", "aria-label": "Structure of the document", class: "tree" },
    ...segments.map((segment) => item(segment, 0, excerpt, onOpen)));
  const first = tree.querySelector("[role=treeitem]");
  if (first) first.tabIndex = 0;
  tree.addEventListener("keydown", (event) => move(event, tree));
  parent.replaceChildren(tree);
}

function item(segment, depth, excerpt, onOpen) {
  const children = segment.children ?? [];
  const size = segment.tokens.end - segment.tokens.start;
  const twist = make("span", { class: "twist", "aria-hidden": "true" });
  const element = make("li", { role: "treeitem", tabindex: -1, "aria-selected": "false",
    "aria-expanded": children.length ? String(depth < OPEN_LEVELS) : null },
    make("span", { class: "node" }, twist, ...mark(segment), make("span", { class: "node-text" }, excerpt(segment)),
      make("span", { class: "quiet" }, count(size))));
  if (children.length) {
    element.append(make("ul", { role: "group" }, ...children.map((child) => item(child, depth + 1, excerpt, onOpen))));
  }
  twist.addEventListener("click", (event) => {
    event.stopPropagation();
    toggle(element);
  });
  element.addEventListener("click", (event) => {
    event.stopPropagation();
    select(element);
    onOpen(segment);
  });
  return element;
}

// Nothing beside the author's own headings and the beginning of the text.
const mark = ({ begins }) =>
  begins === "vectors" ? [make("span", { class: "guess", title: GUESS, role: "img", "aria-label": GUESS }, "≈")] : [];

// Which kinds of beginnings are in the tree.
export function beginningsOf(segments) {
  const found = new Set();
  for (const { begins, children } of segments) {
    found.add(begins);
    for (const one of beginningsOf(children ?? [])) found.add(one);
  }
  return found;
}

function toggle(element, open = element.getAttribute("aria-expanded") !== "true") {
  if (element.hasAttribute("aria-expanded")) element.setAttribute("aria-expanded", String(open));
}

function select(element) {
  const tree = element.closest("[role=tree]");
  for (const other of tree.querySelectorAll("[aria-selected=true]")) other.setAttribute("aria-selected", "false");
  for (const other of tree.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
  element.setAttribute("aria-selected", "true");
  element.tabIndex = 0;
  element.focus({ preventScroll: true });
}

const isShown = (element) => !element.parentElement.closest("[role=treeitem][aria-expanded=false]");

function move(event, tree) {
  const at = event.target.closest("[role=treeitem]");
  if (!at) return;
  const shown = [...tree.querySelectorAll("[role=treeitem]")].filter(isShown);
  const index = shown.indexOf(at);
  const isOpen = at.getAttribute("aria-expanded") === "true";
  const parent = at.parentElement.closest("[role=treeitem]");
  const go = (element) => element && (at.tabIndex = -1, element.tabIndex = 0, element.focus());
  const steps = {
    ArrowDown: () => go(shown[index + 1]), ArrowUp: () => go(shown[index - 1]),
    Home: () => go(shown[0]), End: () => go(shown.at(-1)),
    ArrowRight: () => (at.hasAttribute("aria-expanded") && !isOpen ? toggle(at, true) : isOpen && go(shown[index + 1])),
    ArrowLeft: () => (isOpen ? toggle(at, false) : go(parent)),
    Enter: () => at.click(), " ": () => at.click(),
  };
  if (!steps[event.key]) return;
  event.preventDefault();
  steps[event.key]();
}
