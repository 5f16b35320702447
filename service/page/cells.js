// Cells of an attention map and the marks of its axes.

import { count } from "./numbers.js";

export const NAMED_TOKENS = 40; // windows up to this size have tokens on the axes

// Returns the cell in which a token is, -1 for none.
export function cellOf(edges, token) {
  if (token < edges[0] || token >= edges.at(-1)) return -1;
  let low = 0;
  let high = edges.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= token) low = middle;
    else high = middle;
  }
  return low;
}

// Returns [position, label]: tokens in a small window, round numbers in a large one.
export function ticks([start, end], tokens) {
  const size = end - start;
  if (size <= NAMED_TOKENS) {
    return Array.from({ length: size }, (_, index) => [start + index + 0.5, tokens[start + index] ?? ""]);
  }
  const rough = size / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((candidate) => candidate >= rough);
  const found = [];
  for (let at = Math.ceil(start / step) * step; at < end; at += step) found.push([at, count(at)]);
  return found;
}
