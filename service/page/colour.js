// A sequential colour scale, from the background of the page to beyond its accent colour.

import { isDark } from "./theme.js";

const LIGHT = [[251, 250, 247], [214, 229, 232], [125, 176, 187], [27, 113, 130], [4, 40, 60]];
const DARK = [[24, 28, 32], [25, 58, 68], [31, 109, 125], [93, 181, 196], [222, 246, 248]];

const tables = new Map();

function table(stops) {
  if (!tables.has(stops)) {
    const colours = new Uint8Array(256 * 3);
    for (let shade = 0; shade < 256; shade++) {
      const place = (shade / 255) * (stops.length - 1);
      const below = Math.min(Math.floor(place), stops.length - 2);
      for (let channel = 0; channel < 3; channel++) {
        const from = stops[below][channel];
        colours[3 * shade + channel] = from + (stops[below + 1][channel] - from) * (place - below);
      }
    }
    tables.set(stops, colours);
  }
  return tables.get(stops);
}

// [256 * 3] red, green, blue.
export const shades = () => table(isDark() ? DARK : LIGHT);

function shadeOf(share) {
  const at = 3 * Math.round(255 * Math.min(1, Math.max(0, share)));
  return shades().subarray(at, at + 3);
}

// share: 0 to 1.
export const colour = (share) => `rgb(${shadeOf(share).join(" ")})`;

// Whether black text has more contrast than white on this shade. One of them always reaches 4.5 to 1.
export function isDarkInk(share) {
  const light = luminance(shadeOf(share));
  return (light + FLARE) / FLARE > (1 + FLARE) / (light + FLARE);
}

const FLARE = 0.05; // the ambient light that WCAG adds to luminance

// Relative luminance, as WCAG defines it.
function luminance(colours) {
  const [red, green, blue] = Array.from(colours, (channel) => {
    const part = channel / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
