// Searches the folder that the server was started with, and shows each passage in its document.

import { get, post } from "./api.js";
import { byId, make, say, show, whenShown } from "./dom.js";
import { fail } from "./errors.js";
import { Newest } from "./newest.js";
import { counted } from "./numbers.js";
import { Characters } from "./offsets.js";
import { Question } from "./question.js";
import { Reader } from "./reader.js";

const NONE =
  "This server searches no folder. Index one with \u201clln index FOLDER\u201d and start the server with LLN_INDEX=FOLDER.";
const SHORTEST_WORD = 2; // shorter ones would be marked everywhere

const reader = new Reader(byId("found-text"), ["passage", "word"]);
const searching = new Question(
  { answer: "found", error: "search-error", waiting: "search-waiting", button: "search" },
  "Searching…",
);
const opening = new Newest();
let buttons = new Map(); // of the passages on the page
let opened = null; // the file whose text is shown, with its text and the promise that all of it is

let started = false;

export function startSearch() {
  describe();
  if (started) return;
  started = true;
  byId("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    search(byId("query").value.trim(), byId("search-by").value);
  });
}

async function describe() {
  try {
    const { index } = await get("v1/search");
    for (const id of ["query", "search"]) byId(id).disabled = !index;
    byId("search-title").textContent = index ? `Search ${index.folder}` : "Search a folder";
    byId("search-hint").textContent = index
      ? `${counted(index.files, "file")} read whole, ${counted(index.passages, "passage")}, ${counted(index.tokens, "token")}.`
      : NONE;
  } catch (failure) {
    fail(failure, describe, byId("search-error"));
  }
}

function search(query, by) {
  if (!query) {
    searching.stop();
    byId("query").focus();
    return;
  }
  searching.ask(async (signal) => {
    opened = null; // the file may have been indexed again
    const { data } = await post("v1/search", { query, by, limit: 20 }, signal);
    await showHits(data, wordsOf(query), signal);
  }, () => search(query, by));
}

async function showHits(hits, words, signal) {
  const found = hits.length ? counted(hits.length, "passage") : "Nothing was found.";
  byId("search-status").textContent = found;
  say(found);
  show(byId("found"), hits.length > 0);
  buttons = new Map(hits.map((hit) => [hit, hitButton(hit, words)]));
  byId("hits").replaceChildren(...[...buttons.values()].map((button) => make("li", {}, button)));
  if (!hits.length) return;
  await whenShown(byId("found")); // the user may be in another tab of the page
  if (signal.aborted) return;
  const top = scrollY; // the reader may ask for room, and the form is to stay in sight
  await open(hits[0], words);
  scrollTo({ top, behavior: "instant" });
}

function hitButton(hit, words) {
  const page = hit.page ? `, page ${hit.page}` : "";
  const ranks = [["words", hit.words_rank], ["vectors", hit.vectors_rank]].filter(([, rank]) => rank);
  return make(
    "button",
    { type: "button", class: "hit", "aria-pressed": "false", onclick: () => open(hit, words) },
    make("span", { class: "hit-file" }, hit.file + page),
    make("span", { class: "hit-headings" }, hit.headings.length ? hit.headings.join(" \u203a ") : (hit.title ?? "")),
    make("span", { class: "hit-text" }, ...marked(hit.text, words)),
    make("span", { class: "hit-ranks" }, ranks.map(([by, rank]) => `${by}: ${rank}`).join(" \u00b7 ")),
  );
}

// Opens the file of a passage, and marks the passage and the words of the query in it.
async function open(hit, words) {
  const signal = opening.next();
  for (const [one, button] of buttons) button.setAttribute("aria-pressed", String(one === hit));
  try {
    if (opened?.file !== hit.file) {
      const { file, title, text } = await get(`v1/search/document?${new URLSearchParams({ file: hit.file })}`, signal);
      opened = { file, title, text, shown: reader.open(text) };
    }
    await opened.shown;
    if (signal.aborted) return;
    byId("found-title").textContent = opened.title ? `${opened.title} \u2013 ${opened.file}` : opened.file;
    const characters = new Characters(opened.text);
    const [start, end] = [hit.characters.start, hit.characters.end].map((one) => characters.unit(one));
    reader.mark("passage", [[start, end]]);
    reader.mark("word", spansOf(opened.text.slice(start, end), words).map(([from, to]) => [start + from, start + to]));
    reader.scrollTo(start);
  } catch (failure) {
    if (!signal.aborted) fail(failure, () => open(hit, words), byId("search-error"));
  }
}

// Words of a text

const WORD = /[\p{L}\p{N}\p{M}_]+/gu; // a word goes on after its marks

const wordsOf = (query) =>
  new Set((query.toLowerCase().match(WORD) ?? []).filter((word) => word.length >= SHORTEST_WORD));

// Returns where these words stand, also with an s at their end.
function spansOf(text, words) {
  const spans = [];
  for (const match of text.matchAll(WORD)) {
    const word = match[0].toLowerCase();
    if (words.has(word) || words.has(word.replace(/s$/, "")) || words.has(`${word}s`)) {
      spans.push([match.index, match.index + match[0].length]);
    }
  }
  return spans;
}

function marked(text, words) {
  const parts = [];
  let at = 0;
  for (const [start, end] of spansOf(text, words)) {
    parts.push(text.slice(at, start), make("mark", {}, text.slice(start, end)));
    at = end;
  }
  return [...parts, text.slice(at)];
}
