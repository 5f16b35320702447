// Texts in links. A short text is part of the link. A long one is stored in this tab; elsewhere the
// page asks for it.

import { count } from "./numbers.js";
import { ofThisTab } from "./storage.js";

const LONGEST_IN_LINK = 12_000; // characters, after compression
const LONGEST_UNASKED = 20_000; // characters of a text that is read as soon as its link opens
// Compressed bytes that are read at a time. A browser decompresses each piece whole, into up to a
// thousand times its size.
const PIECE = 1_024;
const KEPT = "lln-text";

// Returns the text compressed and in characters that are valid in a URL, or the name of a long text.
export async function textForLink(text) {
  const packed = `z${base64(await through(new Blob([text]), new CompressionStream("deflate-raw")))}`;
  if (packed.length <= LONGEST_IN_LINK) return packed;
  const name = `h${digest(text)}`;
  ofThisTab.set(KEPT, JSON.stringify({ name, text }));
  return name;
}

export const isInLink = (value) => value.startsWith("z");

// Any site can link to this page. The user must agree before a long text of a link takes the
// server's time.
export const needsConsent = (value, text) => isInLink(value) && text.length > LONGEST_UNASKED;

// maxBytes: the most that the server accepts.
export async function textFromLink(value, maxBytes) {
  if (isInLink(value)) return unpacked(value.slice(1), maxBytes);
  const kept = JSON.parse(ofThisTab.get(KEPT) ?? "null");
  if (kept?.name === value) return kept.text;
  throw new Error("The text of this link is too long to be in it. Paste or open the text to see the same view.");
}

class TooLong extends Error {}

async function unpacked(packed, maxBytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await inflated(unbase64(packed), maxBytes));
  } catch (failure) {
    if (failure instanceof TooLong) throw failure;
    throw new Error("This link is damaged: its text cannot be read. Check that you copied the whole link.");
  }
}

async function inflated(packed, maxBytes) {
  let start = 0;
  const pieces = new ReadableStream({
    pull(controller) {
      if (start >= packed.length) controller.close();
      else controller.enqueue(packed.subarray(start, (start += PIECE)));
    },
  });
  const reader = pieces.pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  for (let size = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    size += value.length;
    if (size > maxBytes) {
      reader.cancel().catch(() => {});
      throw new TooLong(`The text of this link is too long for this server, which accepts ${count(maxBytes)} bytes.`);
    }
    parts.push(value);
  }
}

async function through(blob, stream) {
  return new Uint8Array(await new Response(blob.stream().pipeThrough(stream)).arrayBuffer());
}

// A hash to tell texts apart: FNV-1a with two multipliers, and the length. Not for security;
// crypto.subtle is not available over plain HTTP.
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
