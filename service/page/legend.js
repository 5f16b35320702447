// What the colours mean: the ramp between the values of its ends.

import { colour } from "./colour.js";
import { make } from "./dom.js";

export function legend(low, high) {
  const bar = make("span", { class: "ramp", "aria-hidden": "true" });
  const stops = Array.from({ length: 9 }, (_, index) => colour(index / 8));
  bar.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
  return make("div", { class: "legend" }, make("span", {}, low), bar, make("span", {}, high));
}
