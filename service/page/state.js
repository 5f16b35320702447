// The state of the page in the address, so that a link opens the same view.

const FIELDS = ["view", "model", "beside", "instrument", "layer", "head", "rows", "columns", "text"];
const REMEMBER_MS = 300;

// What the page shows now. The address follows it with a short delay.
export const state = {};

export function readAddress(address = location.href) {
  const hash = new URLSearchParams(new URL(address).hash.slice(1));
  return Object.fromEntries(FIELDS.map((name) => [name, hash.get(name)]).filter(([, value]) => value !== null));
}

export function writeAddress() {
  clearTimeout(remembering);
  const hash = new URLSearchParams();
  for (const name of FIELDS) {
    if (state[name] !== undefined && state[name] !== null && state[name] !== "") hash.set(name, state[name]);
  }
  history.replaceState(null, "", `#${hash}`);
}

let remembering;
export function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(writeAddress, REMEMBER_MS);
}

export const windowOf = (value) => {
  const span = (value ?? "").split("-").map(Number);
  return span.length === 2 && span.every(Number.isInteger) && span[0] < span[1] ? span : null;
};
