// The page: a text goes in, and what the model's attention does with it comes out.

import { get, post } from "./api.js";
import { copy } from "./copy.js";
import { byId, setOptions, show } from "./dom.js";
import { clearError, fail, repeatRefused } from "./errors.js";
import { startFiles, textOfFile } from "./files.js";
import { startKey } from "./key.js";
import { isInLink, textForLink, textFromLink } from "./link.js";
import { Newest } from "./newest.js";
import { Results } from "./results.js";
import { SAMPLE } from "./sample.js";
import { Session } from "./session.js";
import { startSimilarity } from "./similarity.js";
import { setSourceText, sourceText, startSource } from "./source.js";
import { readAddress, state, writeAddress } from "./state.js";
import { showView, startTabs } from "./tabs.js";
import { onTheme, startTheme } from "./theme.js";
import { stopWork, work } from "./work.js";

let models = [];
let instruments = [];
let results = null; // what is shown of the text that was read last
let awaited = {}; // the place that a link names in a text which has to be given first
const wishes = new Newest(); // to see a link, or a text: what is wished for later takes its place

const NOWHERE = { layer: null, head: null, rows: null, columns: null, text: null };

function start() {
  startTheme(byId("theme"));
  startTabs();
  startKey(repeatRefused);
  listen();
  // As the event tells it: by now the bar may have been written to again.
  addEventListener("hashchange", ({ newURL }) => followAddress(newURL));
  followAddress();
}

// What the server has, and what the address asks for

let loading = null;

// Asked for until it is known, and by all who wait for it at once.
function load() {
  loading ??= askServer().catch((failure) => {
    loading = null;
    throw failure;
  });
  return loading;
}

async function askServer() {
  const [served, measured] = await Promise.all([get("v1/models"), get("v1/diagnostics/instruments")]);
  [models, instruments] = [served.data, measured.data];
  offerModels(readAddress());
  startSimilarity(models);
}

// Whether the models are known, which all else needs; if not, the page says why, and what was asked for
// is done again once they are.
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

// At the start, and when another link is opened in this tab.
async function followAddress(address, wish = wishes.next()) {
  const { view, text: packed, ...asked } = readAddress(address);
  if (!wish.aborted) showView(view);
  if (!(await isLoaded(() => followAddress(address, wish))) || wish.aborted) return;
  offerModels(asked);
  const place = { ...asked, ...chosenModels() };
  if (packed) work((signal, tell) => followText(packed, place, signal, tell));
  else showStart(place);
}

async function followText(packed, place, signal, tell) {
  const text = await textFromLink(packed).catch(fail);
  signal.throwIfAborted();
  if (text === undefined) {
    show(byId("source"), true);
    awaited = { ...place, text: packed };
    return;
  }
  setSourceText(text);
  await read(text, place, signal, tell);
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
    fail(new Error("There is no text to read yet."));
    byId("text").focus();
    return;
  }
  const place = { instrument: state.instrument, ...chosenModels() };
  work((signal, tell) => read(text, place, signal, tell));
}

// place: the models, and what of the text is to be shown first. What was read before stays until all of
// this is there to take its place.
async function read(text, place, signal, tell) {
  tell("Cutting the text into tokens…");
  const { model, beside } = place;
  const sessions = [];
  for (const name of new Set([model, beside].filter(Boolean))) {
    sessions.push(await Session.open(text, modelNamed(name), signal));
  }
  const packed = await textForLink(text);
  signal.throwIfAborted();
  results?.close();
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
  byId("stop").addEventListener("click", stopWork);
  byId("skip").addEventListener("click", skipToResults);
  listenToResults();
}

function listenToResults() {
  byId("edit").addEventListener("click", () => {
    stopWork();
    show(byId("source"), true);
    byId("text").focus();
  });
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

// By hand, since a link to a place on the page would take the state's place in the address.
function skipToResults(event) {
  event.preventDefault();
  const shown = ["results", "matrix", "main"].map(byId).find((element) => element.checkVisibility());
  shown.focus();
}

function copyLink() {
  writeAddress();
  copy(location.href, byId("share"), isInLink(state.text) ? "Copied" : "Copied, without the text");
}

async function copyVector() {
  const { text, model } = results.first;
  try {
    const { vector } = await post("v1/documents", { text, model });
    await copy(JSON.stringify(vector), byId("vector"), `Copied ${vector.length} numbers`);
  } catch (failure) {
    fail(failure, copyVector);
  }
}

start();
