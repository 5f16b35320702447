// Helpers to create and change elements.

export const byId = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

// make("button", { type: "button", onclick }, "Text", child): attributes, listeners, children.
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children);
  return element;
}

// Words of a text within the page's own. Those that are written from right to left would otherwise
// take the numbers beside them along.
export const quoted = (words) => make("bdi", {}, words);

export function show(element, visible) {
  element.hidden = !visible;
}

// A listener for keys. An input method, and the list of a select, have Escape for themselves.
export const onEscape = (close) => (event) => {
  if (event.key === "Escape" && !event.isComposing && event.target.localName !== "select") close();
};

// Tells screen readers of a result. They may miss words that come together with the part of the page
// in which they stand, so these have a place that is always there.
export function say(words) {
  byId("said").textContent = words;
}

// Resolves once the element is on the screen: of what is in a hidden view nothing can be scrolled to.
export const whenShown = (element) =>
  new Promise((resolve) => {
    const observer = new ResizeObserver(() => {
      if (!element.checkVisibility()) return;
      observer.disconnect();
      resolve();
    });
    observer.observe(element);
  });

// Lets the browser handle events, so that long work does not block clicks.
export const turn = () => new Promise((resolve) => setTimeout(resolve));

export function setOptions(select, options, chosen) {
  select.replaceChildren(
    ...options.map(([value, label]) => make("option", { value, selected: value === chosen }, label)),
  );
}
