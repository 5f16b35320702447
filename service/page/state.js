// What the address bar holds, so that a link opens the same view. A short text travels in the link
// itself; a long one stays in this tab, and whoever opens the link elsewhere is asked for it.

const LONGEST_IN_LINK = 12_000; // characters, after compression
const KEPT = "lln-text";
const FIELDS = ["view", "model", "beside", "instrument", "layer", "head", "rows", "columns", "text"];

export function readState() {
  const hash = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(FIELDS.map((name) => [name, hash.get(name)]).filter(([, value]) => value !== null));
}

export function writeState(state) {
  const hash = new URLSearchParams();
  for (const name of FIELDS) {
    if (state[name] !== undefined && state[name] !== null && state[name] !== "") hash.set(name, state[name]);
  }
  history.replaceState(null, "", `#${hash}`);
}

export const windowOf = (value) => {
  const span = (value ?? "").split("-").map(Number);
  return span.length === 2 && span.every(Number.isInteger) && span[0] < span[1] ? span : null;
};

// The form a text takes in a link: compressed and in characters that an address may hold.
export async function textForLink(text) {
  const packed = `z${base64(await through(new Blob([text]), new CompressionStream("deflate-raw")))}`;
  if (packed.length <= LONGEST_IN_LINK) return packed;
  const name = `h${await digest(text)}`;
  try {
    sessionStorage.setItem(KEPT, JSON.stringify({ name, text }));
  } catch {
    sessionStorage.removeItem(KEPT); // beyond what the browser keeps: the text is asked for again
  }
  return name;
}

// The text of a link, or null where it has to be given again.
export async function textFromLink(value) {
  if (value?.startsWith("z")) {
    try {
      const bytes = await through(new Blob([unbase64(value.slice(1))]), new DecompressionStream("deflate-raw"));
      return new TextDecoder().decode(bytes);
    } catch {
      return null;
    }
  }
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  return kept?.name === value ? kept.text : null;
}

async function through(blob, stream) {
  return new Uint8Array(await new Response(blob.stream().pipeThrough(stream)).arrayBuffer());
}

async function digest(text) {
  if (!crypto.subtle) return String(text.length); // not a secure context
  const bytes = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return base64(new Uint8Array(bytes).subarray(0, 12));
}

function base64(bytes) {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

function unbase64(text) {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}
