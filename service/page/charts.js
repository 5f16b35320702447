// A chart of one instrument by layer: the mean as a line, each head as a dot.

import { make, makeSvg } from "./dom.js";
import { range, shareOf, short } from "./numbers.js";

const WIDTH = 320;
const HEIGHT = 150;
const LEFT = 54;
const TOP = 12;
const BOTTOM = 24;

// series: [{ title, values[layer][head] }], the first in the accent colour.
export function layerChart(name, unit, series) {
  const limits = range(series.flatMap(({ values }) => values.flat()));
  const layers = Math.max(...series.map(({ values }) => values.length));
  const x = (layer) => LEFT + (layers > 1 ? (layer / (layers - 1)) * (WIDTH - LEFT - 12) : (WIDTH - LEFT) / 2);
  const y = (value) => TOP + (1 - shareOf(value, limits)) * (HEIGHT - TOP - BOTTOM);
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words(name, unit, series) });
  for (const value of [limits[0], (limits[0] + limits[1]) / 2, limits[1]]) {
    svg.append(
      makeSvg("line", { class: "rule", x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value) }),
      makeSvg("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, short(value)),
    );
  }
  for (let layer = 0; layer < layers; layer++) {
    svg.append(makeSvg("text", { class: "tick", x: x(layer), y: HEIGHT - 6, "text-anchor": "middle" }, String(layer)));
  }
  series.forEach(({ values }, index) => {
    const group = makeSvg("g", { class: index ? "second" : "first" });
    values.forEach((heads, layer) => {
      for (const value of heads) group.append(makeSvg("circle", { cx: x(layer), cy: y(value), r: 2.2 }));
    });
    const line = byLayer(values, (heads, layer) => `${x(layer)},${y(mean(heads))}`).join(" ");
    group.append(makeSvg("polyline", { points: line }));
    svg.append(group);
  });
  const unitWords = unit === "dimensionless" ? "" : `, ${unit}`;
  return make("figure", { class: "chart" }, make("figcaption", {}, `${name}${unitWords}`), svg);
}

// Layers that cannot be analysed are holes in the array: flatMap skips holes, map keeps them.
const byLayer = (values, say) => values.flatMap((heads, layer) => [say(heads, layer)]);

const mean = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;

function words(name, unit, series) {
  const parts = series.map(({ title, values }) =>
    `${title}: ${byLayer(values, (heads, layer) => `layer ${layer} ${short(mean(heads))}`).join(", ")}`);
  return `Mean ${name} (${unit}) by layer. ${parts.join(". ")}`;
}
