// A text in a link. A short one travels in the link itself; a long one stays in this tab, and whoever
// opens the link elsewhere is asked for it.

import { ofThisTab } from "./storage.js";

const LONGEST_IN_LINK = 12_000; // characters, after compression
const KEPT = "lln-text";

// The form a text takes in a link: compressed and in characters that an address may hold.
export async function textForLink(text) {
  const packed = `z${base64(await through(new Blob([text]), new CompressionStream("deflate-raw")))}`;
  if (packed.length <= LONGEST_IN_LINK) return packed;
  const name = `h${digest(text)}`;
  ofThisTab.set(KEPT, JSON.stringify({ name, text }));
  return name;
}

export const isInLink = (value) => value.startsWith("z");

export async function textFromLink(value) {
  if (isInLink(value)) return unpacked(value.slice(1));
  const kept = JSON.parse(ofThisTab.get(KEPT) ?? "null");
  if (kept?.name === value) return kept.text;
  throw new Error("This link's text is too long to be in it. Paste or open the text to see the same view.");
}

async function unpacked(packed) {
  try {
    const bytes = await through(new Blob([unbase64(packed)]), new DecompressionStream("deflate-raw"));
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Error("This link is damaged: its text cannot be read. Was all of it copied?");
  }
}

async function through(blob, stream) {
  return new Uint8Array(await new Response(blob.stream().pipeThrough(stream)).arrayBuffer());
}

// Tells texts apart and keeps no secret: crypto.subtle, which does both, is not there over plain HTTP.
// FNV-1a with two multipliers, and the length.
function digest(text) {
  let [one, other] = [0x811c9dc5, 0x41c6ce57];
  for (let unit = 0; unit < text.length; unit++) {
    one = Math.imul(one ^ text.charCodeAt(unit), 0x01000193);
    other = Math.imul(other ^ text.charCodeAt(unit), 0x5f356495);
  }
  return [text.length, one >>> 0, other >>> 0].map((number) => number.toString(36)).join("-");
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
