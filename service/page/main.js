// The page: reads a text with one or two models and shows what their attention does with it.

import { get, post } from "./api.js";
import { copy } from "./copy.js";
import { byId, onEscape, setOptions, show } from "./dom.js";
import { startEditing } from "./editing.js";
import { clearError, fail, repeatRefused } from "./errors.js";
import { startFiles, textOfFile } from "./files.js";
import { startKey } from "./key.js";
import { isInLink, needsConsent, textForLink, textFromLink } from "./link.js";
import { Newest } from "./newest.js";
import { counted } from "./numbers.js";
import { Characters } from "./offsets.js";
import { Results } from "./results.js";
import { SAMPLE } from "./sample.js";
import { startSearch } from "./search.js";
import { Session } from "./session.js";
import { startSimilarity } from "./similarity.js";
import { setSourceText, sourceText, startSource } from "./source.js";
import { readAddress, state, writeAddress } from "./state.js";
import { showView, startTabs } from "./tabs.js";
import { onTheme, startTheme } from "./theme.js";
import { addAside, stopAsides, stopWork, work } from "./work.js";

let models = [];
let instruments = [];
let maxBytes = 0; // of a request to this server
let results = null; // of the text that was read last
let awaited = {}; // the view of a link whose text the user must give first
const agreed = new Set(); // long texts in links that the user has read; see needsConsent
const wishes = new Newest(); // to open a link or read a text; a later one replaces it

const NOWHERE = { layer: null, head: null, rows: null, columns: null, text: null };

function start() {
  startTheme(byId("theme"));
  startTabs();
  startKey(repeatRefused);
  listen();
  // The URL of the event: location may have changed again since.
  addEventListener("hashchange", ({ newURL }) => followAddress(newURL));
  followAddress();
}

// Loading the models, and following the address

let loading = null;

// Loads the models once. Concurrent callers share the request; after a failure the next call retries.
function load() {
  loading ??= askServer().catch((failure) => {
    loading = null;
    throw failure;
  });
  return loading;
}

async function askServer() {
  const paths = ["v1/models", "v1/diagnostics/instruments", "info"];
  const [served, measured, { limits }] = await Promise.all(paths.map((path) => get(path)));
  models = served.data.filter(({ id, name }) => id === name); // without aliases
  [instruments, maxBytes] = [measured.data, limits.max_body_bytes];
  offerModels(readAddress());
  startSimilarity(models);
  startSearch();
  startEditing(models);
}

// Returns whether the models are loaded. If not, shows the error with a button for `again`.
async function isLoaded(again) {
  clearError(byId("load-error"));
  try {
    await load();
    return true;
  } catch (failure) {
    fail(failure, again, byId("load-error"));
    return false;
  }
}

// Called at start, and when another link is opened in this tab.
async function followAddress(address, wish = wishes.next()) {
  const { view, text: packed, ...asked } = readAddress(address);
  if (!wish.aborted) showView(view);
  if (!(await isLoaded(() => followAddress(address, wish))) || wish.aborted) return;
  offerModels(asked);
  show(byId("link"), false);
  const place = { ...asked, ...chosenModels() };
  if (packed) work((signal, tell) => followText(packed, place, signal, tell));
  else showStart(place);
}

async function followText(packed, place, signal, tell) {
  const text = await textFromLink(packed, maxBytes).catch(fail);
  signal.throwIfAborted();
  if (text === undefined) {
    show(byId("source"), true);
    awaited = { ...place, text: packed };
    return;
  }
  setSourceText(text);
  if (needsConsent(packed, text) && !agreed.has(packed)) {
    show(byId("source"), true);
    awaited = { ...place, text: packed };
    askToRead(text, packed, place);
    return;
  }
  await read(text, place, signal, tell);
}

function askToRead(text, packed, place) {
  byId("link-note").textContent = `This link holds a text of ${counted(new Characters(text).count, "character")}. Nothing of it is sent to the server until you read it.`;
  byId("read-link").onclick = () => {
    agreed.add(packed);
    wishes.next();
    byId("read").focus({ preventScroll: true }); // this button is soon gone
    const now = { ...place, ...chosenModels() }; // the user may have selected others meanwhile
    work((signal, tell) => read(text, now, signal, tell));
  };
  show(byId("link"), true);
}

function offerModels({ model, beside }) {
  const names = models.map(({ name }) => [name, name]);
  setOptions(byId("model"), names, modelNamed(model)?.name ?? models[0].name);
  setOptions(byId("beside"), [["", "nothing"], ...names], modelNamed(beside)?.name ?? "");
}

function showStart(place) {
  stopWork();
  Object.assign(state, NOWHERE, place);
  show(byId("results"), false);
  show(byId("source"), true);
}

// Reading a text

const modelNamed = (name) => models.find((model) => model.name === name);

const chosenModels = () => ({ model: byId("model").value, beside: byId("beside").value });

async function readSource(text = sourceText(), wish = wishes.next()) {
  if (!(await isLoaded(() => readSource(text, wish))) || wish.aborted) return;
  if (!text.trim()) {
    fail(new Error("There is no text to read."));
    byId("text").focus();
    return;
  }
  const place = { instrument: state.instrument, ...chosenModels() };
  work((signal, tell) => read(text, place, signal, tell));
}

// place: the models, and the view to show first. The earlier results stay until the new text is read.
async function read(text, place, signal, tell) {
  show(byId("link"), false);
  stopAsides(); // nobody waits for the maps of the text before
  tell("Tokenising the text…");
  const { model, beside } = place;
  const sessions = [];
  for (const name of new Set([model, beside].filter(Boolean))) {
    sessions.push(await Session.open(text, modelNamed(name), signal));
  }
  const packed = await textForLink(text);
  signal.throwIfAborted();
  results?.close();
  agreed.add(packed);
  Object.assign(state, NOWHERE, place, packed === awaited.text ? awaited : {}, { model, beside, text: packed });
  awaited = {};
  results = new Results(sessions, instruments);
  await results.read(signal, tell);
}

// Listeners

function listen() {
  startSource();
  startFiles(readFile);
  const source = byId("source");
  source.addEventListener("submit", (event) => {
    event.preventDefault();
    readSource();
  });
  byId("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) source.requestSubmit();
  });
  byId("sample").addEventListener("click", () => {
    setSourceText(SAMPLE);
    source.requestSubmit();
  });
  byId("stop").addEventListener("click", () => {
    stopWork();
    byId(byId("source").hidden ? "results" : "read").focus({ preventScroll: true }); // Stop is gone
  });
  byId("skip").addEventListener("click", skipToResults);
  listenToResults();
}

function listenToResults() {
  byId("edit").addEventListener("click", () => {
    stopWork();
    show(byId("source"), true);
    byId("text").focus();
  });
  byId("source").addEventListener("keydown", onEscape(() => {
    if (byId("results").hidden) return; // the form is all there is
    show(byId("source"), false);
    byId("edit").focus();
  }));
  byId("share").addEventListener("click", copyLink);
  byId("vector").addEventListener("click", copyVector);
  byId("instrument").addEventListener("change", ({ target }) => results.chooseInstrument(target.value));
  byId("zoom-in").addEventListener("click", () => results.changeView((view) => view.zoom(0.5)));
  byId("zoom-out").addEventListener("click", () => results.changeView((view) => view.zoom(2)));
  byId("zoom-all").addEventListener("click", () => results.changeView((view) => view.all()));
  onTheme(() => results?.recolour());
}

async function readFile(file) {
  showView("document");
  try {
    setSourceText(await textOfFile(file));
  } catch (failure) {
    fail(failure);
    return;
  }
  byId("source").requestSubmit();
}

// Moves the focus in code: an #anchor would replace the state in the address.
function skipToResults(event) {
  event.preventDefault();
  const shown = ["results", "edited", "found", "matrix", "main"].map(byId).find((element) => element.checkVisibility());
  shown.focus();
}

function copyLink() {
  writeAddress();
  copy(location.href, byId("share"), isInLink(state.text) ? "Copied" : "Copied, without the text");
}

async function copyVector() {
  const { text, model } = results.first;
  const asking = new AbortController();
  const answered = addAside("Reading the vector of the document…", () => asking.abort());
  try {
    const { vector } = await post("v1/documents", { text, model }, asking.signal);
    await copy(JSON.stringify(vector), byId("vector"), `Copied ${vector.length} numbers`);
  } catch (failure) {
    if (!asking.signal.aborted) fail(failure, copyVector);
  } finally {
    answered();
  }
}

start();
