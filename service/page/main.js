// The page: a text goes in, and what the model's attention does with it comes out.

import { get, post, UNAUTHORIZED } from "./api.js";
import { layerChart } from "./charts.js";
import { byId, make, setOptions, show } from "./dom.js";
import { ATTENTION, HeadGrid, valuesOf } from "./heads.js";
import { startKey } from "./key.js";
import { MapView } from "./map.js";
import { count, short } from "./numbers.js";
import { drawOutline } from "./outline.js";
import { Reader } from "./reader.js";
import { SAMPLE } from "./sample.js";
import { Session } from "./session.js";
import { startSimilarity } from "./similarity.js";
import { setSourceText, sourceText, startSource } from "./source.js";
import { readState, textForLink, textFromLink, windowOf, writeState } from "./state.js";
import { onTheme, startTheme } from "./theme.js";
import { drawTopics } from "./topics.js";
import { View } from "./view.js";

const CHARTS = ["entropy", "temperature"]; // read first; the others when they are asked for
const REMEMBER_MS = 300;

const state = { view: "document", ...readState() };
const reader = new Reader(byId("reader"));
let models = [];
let instruments = CHARTS;
let ofLayers = []; // those among them that say one thing of a whole layer
let sessions = []; // of the chosen model and, if there is one, of the model beside it
let grids = [];
let maps = [];
let view = null;
let reading = null; // the abort controller of the text being read

// Models, and what the address asks for

async function start() {
  startTheme(byId("theme"));
  listen();
  showView(state.view === "similarity" ? "similarity" : "document");
  startKey(() => {
    if (!models.length) load();
    else if (sourceText()) read();
  });
  await load();
}

async function load() {
  show(byId("error"), false);
  try {
    models = (await get("v1/models")).data;
  } catch (failure) {
    fail(failure);
    return;
  }
  const names = models.map(({ name }) => [name, name]);
  setOptions(byId("model"), names, modelNamed(state.model)?.name ?? models[0].name);
  setOptions(byId("beside"), [["", "nothing"], ...names], modelNamed(state.beside)?.name ?? "");
  startSimilarity(models);
  await findInstruments();
  const text = state.text ? await textFromLink(state.text) : null;
  if (text) {
    setSourceText(text);
    read();
  } else if (state.text) fail(new Error("This link's text is too long to be in it. Paste or open the text to see the same view."));
}

// What this server can measure.
async function findInstruments() {
  const found = await get("v1/diagnostics/instruments").catch(() => null);
  if (!found) return;
  instruments = found.data.map(({ name }) => name);
  ofLayers = found.data.filter(({ scope }) => scope === "layer").map(({ name }) => name);
}

const modelNamed = (name) => models.find((model) => model.name === name);

function showView(name) {
  state.view = name;
  for (const other of ["document", "similarity"]) {
    show(byId(`view-${other}`), other === name);
    byId(`tab-${other}`).setAttribute("aria-selected", String(other === name));
    byId(`tab-${other}`).tabIndex = other === name ? 0 : -1;
  }
}

let remembering;
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    if (view) {
      state.rows = view.isAll ? null : view.rows.join("-");
      state.columns = view.isAll ? null : view.columns.join("-");
    }
    writeState(state);
  }, REMEMBER_MS);
}

// Reading a text

async function read() {
  reading?.abort();
  reading = new AbortController();
  const { signal } = reading;
  const text = sourceText();
  show(byId("error"), false);
  if (!text.trim()) {
    fail(new Error("There is no text to read yet."));
    byId("text").focus();
    return;
  }
  state.model = byId("model").value;
  state.beside = byId("beside").value;
  const names = [state.model, ...(state.beside && state.beside !== state.model ? [state.beside] : [])];
  try {
    progress("Cutting the text into tokens…", null);
    sessions = [];
    for (const name of names) sessions.push(await Session.open(text, modelNamed(name), signal));
    state.text = await textForLink(text);
    await openResults(text, signal);
    openHead(...headOfState());
    await drawStructure(signal);
    await measure(CHARTS, signal);
    drawCharts();
    await measure([shownInstrument()], signal);
    progress(null);
  } catch (failure) {
    progress(null);
    if (failure.name !== "AbortError") fail(failure);
  }
  remember();
}

async function openResults(text, signal) {
  const [first] = sessions;
  show(byId("source"), false);
  show(byId("results"), true);
  byId("results").classList.toggle("beside", sessions.length > 1);
  byId("facts").textContent = `${count(first.tokens)} tokens, ${count(text.length)} characters, read by ${sessions.map(({ model }) => model).join(" and ")}`;
  view = new View(first.tokens);
  byId("outline").replaceChildren();
  byId("charts").replaceChildren();
  byId("topics").replaceChildren();
  byId("topics-hint").textContent = "";
  for (const parent of ["heads", "maps"]) byId(parent).replaceChildren();
  grids = sessions.map(({ model }) => new HeadGrid(byId("heads"), { title: model, onOpen: openHead, onLook: look }));
  maps = sessions.map((session) => new MapView(byId("maps"), {
    title: session.model, view, token: (index) => session.written[index] ?? "",
    onView: viewChanged, onCell: describeCell, onError: fail, onPick: markCell,
  }));
  await reader.open(text, signal);
}

// Reads what is missing of these instruments, and shows it layer by layer.
async function measure(names, signal) {
  const steps = sessions.reduce((sum, { layers }) => sum + layers.length, 0);
  let done = 0;
  for (const session of sessions) {
    for await (const layers of session.read(names, { signal, together: names.every((name) => ofLayers.includes(name)) })) {
      done += layers;
      progress(`Reading ${names.map(spoken).join(" and ")}: layer ${done} of ${steps}`, done / steps);
      drawInstruments();
    }
  }
  drawInstruments();
}

// A head named by a link, where the model has it.
function headOfState() {
  const { num_layers: layers, num_heads: heads } = sessions[0].info;
  const inside = (value, limit) => (/^\d+$/.test(value ?? "") && Number(value) < limit ? Number(value) : 0);
  const [rows, columns] = [windowOf(state.rows), windowOf(state.columns)];
  if (rows && columns) view.set(rows, columns);
  return [inside(state.layer, layers), inside(state.head, heads)];
}

async function drawStructure(signal) {
  const [session] = sessions;
  progress("Looking for the document's parts…", null);
  try {
    const found = await session.structure(signal);
    drawOutline(byId("outline"), found.segments, {
      excerpt: ({ tokens }) => session.excerpt([tokens.start, tokens.end]),
      onOpen: openSegment,
    });
  } catch (failure) {
    if (failure.name !== "AbortError") byId("outline").replaceChildren(make("p", { class: "hint" }, failure.message));
  }
}

function openSegment({ tokens, characters }) {
  const [start, end] = sessions[0].span(characters);
  reader.clear("row", "column");
  reader.mark("segment", [[start, end]]);
  reader.scrollTo(start);
  view.set([tokens.start, tokens.end], [tokens.start, tokens.end]);
  viewChanged();
}

// Instruments

const spoken = (name) => name.replaceAll("_", " ");

const shownInstrument = () => (instruments.includes(state.instrument) ? state.instrument : CHARTS[0]);

function drawInstruments() {
  const name = shownInstrument();
  setOptions(byId("instrument"), instruments.map((one) => [one, spoken(one)]), name);
  const readings = sessions.map(({ readings: all }) => all[name] ?? { values: [], unit: "", methods: [] });
  const whole = ofLayers.includes(name);
  const limits = valuesOf(readings);
  readings.forEach((reading, index) => {
    const { info } = sessions[index];
    grids[index].draw({
      layers: info.num_layers, heads: info.num_heads, attention: info.attention, reading,
      name: spoken(name), limits, whole, open: `${state.layer}.${state.head}`,
    });
  });
  byId("method").textContent = [...new Set(readings.flatMap(({ methods }) => [...methods]))].join(" · ");
}

async function chooseInstrument(name) {
  state.instrument = name;
  remember();
  drawInstruments();
  if (sessions.every((session) => session.hasRead(name))) return;
  try {
    await measure([name], reading.signal);
  } catch (failure) {
    if (failure.name !== "AbortError") fail(failure);
  }
  progress(null);
}

function drawCharts() {
  const charts = CHARTS.filter((name) => sessions.every(({ readings }) => readings[name]));
  byId("charts").replaceChildren(
    ...charts.map((name) => layerChart(name, sessions[0].readings[name].unit,
      sessions.map(({ model, readings }) => ({ title: model, values: readings[name].values })))),
    ...(sessions.length > 1 ? [make("p", { class: "keys" }, ...sessions.map(({ model }, index) => make("span", { class: index ? "second" : "first" }, model)))] : []),
  );
}

const look = (words) => (byId("reading").textContent = words);

// One head

function openHead(layer, head) {
  Object.assign(state, { layer: String(layer), head: String(head) });
  drawInstruments();
  maps.forEach((map, index) => {
    const { info, document } = sessions[index];
    if (layer < info.num_layers && head < info.num_heads) map.open({ document, layer, head });
  });
  byId("map-title").textContent = `Attention of layer ${layer}, head ${head}`;
  openTopics(layer, head);
  remember();
}

let topicsAsked;
async function openTopics(layer, head) {
  topicsAsked?.abort();
  topicsAsked = new AbortController();
  reader.clear("topic", "users");
  show(byId("marks"), false);
  const [session] = sessions;
  try {
    const { topics, attention } = await session.topics(layer, head, topicsAsked.signal);
    byId("topics-hint").textContent = topics
      ? "Each channel of LLN is a topic: it reads some tokens, on behalf of others. Choose one to see its words in the text."
      : `There are none here: this head's attention is ${ATTENTION[attention]}, which has no channels${attention === "block_diagonal" ? ". LLN takes part in texts longer than one block" : ""}.`;
    drawTopics(byId("topics"), topics ?? [], { onOpen: markTopic });
  } catch (failure) {
    if (failure.name !== "AbortError") fail(failure);
  }
}

function markTopic(topic) {
  reader.clear("topic", "users", "segment", "row", "column");
  show(byId("marks"), topic !== null);
  if (!topic) return;
  const spans = (tokens) => tokens.filter(({ characters }) => characters).map(({ characters }) => sessions[0].span(characters));
  const [read, users] = [spans(topic.tokens), spans(topic.users)];
  reader.mark("users", users);
  reader.mark("topic", read);
  byId("marks").replaceChildren(make("span", { class: "mark-topic" }, "read by the topic"), " ", make("span", { class: "mark-users" }, "reading through it"));
  const first = [...read, ...users].sort((one, other) => one[0] - other[0])[0];
  if (first) reader.scrollTo(first[0]);
}

// The map

function viewChanged() {
  for (const map of maps) map.changed();
  remember();
}

function describeCell(cell) {
  byId("cell").textContent = cell ? cellWords(cell) : "";
}

function cellWords({ rows, columns, mean, even }) {
  const [session] = sessions;
  const name = (tokens) => `“${session.excerpt(tokens, 36)}” (${tokens[1] - tokens[0] > 1 ? `${count(tokens[0])}–${count(tokens[1] - 1)}` : count(tokens[0])})`;
  return `${name(rows)} attends to ${name(columns)}: ${short(mean)} a token, ${short(mean / even)} times an even share`;
}

function markCell(cell) {
  describeCell(cell);
  reader.clear("topic", "users", "segment");
  show(byId("marks"), true);
  byId("marks").replaceChildren(make("span", { class: "mark-row" }, "attending"), " ", make("span", { class: "mark-column" }, "attended to"));
  const [row, column] = [sessions[0].unitsOf(cell.rows), sessions[0].unitsOf(cell.columns)];
  reader.mark("row", row ? [row] : []);
  reader.mark("column", column ? [column] : []);
  if (column ?? row) reader.scrollTo((column ?? row)[0]);
}

// What is going on, and what went wrong

function progress(words, share) {
  show(byId("status"), words !== null);
  byId("status-text").textContent = words ?? "";
  if (share === null || share === undefined) byId("progress").removeAttribute("value");
  else byId("progress").value = share;
}

function fail(failure) {
  if (failure.status === UNAUTHORIZED) return; // the form for a key says so
  const again = make("button", { type: "button", onclick: read }, "Try again");
  byId("error").replaceChildren(make("span", {}, failure.message), ...(sourceText() ? [again] : []));
  show(byId("error"), true);
}

// Listeners

function listen() {
  startSource();
  const source = byId("source");
  source.addEventListener("submit", (event) => {
    event.preventDefault();
    for (const name of ["layer", "head", "rows", "columns"]) delete state[name];
    read();
  });
  byId("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) source.requestSubmit();
  });
  byId("sample").addEventListener("click", () => {
    setSourceText(SAMPLE);
    source.requestSubmit();
  });
  byId("open-file").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", ({ target }) => openFile(target.files[0]));
  byId("stop").addEventListener("click", () => reading?.abort());
  byId("edit").addEventListener("click", () => {
    reading?.abort();
    show(byId("source"), true);
    byId("text").focus();
  });
  byId("share").addEventListener("click", copyLink);
  byId("vector").addEventListener("click", copyVector);
  byId("instrument").addEventListener("change", ({ target }) => chooseInstrument(target.value));
  byId("zoom-in").addEventListener("click", () => (view.zoom(0.5), viewChanged()));
  byId("zoom-out").addEventListener("click", () => (view.zoom(2), viewChanged()));
  byId("zoom-all").addEventListener("click", () => (view.all(), viewChanged()));
  listenToTabs();
  listenToDrops();
  onTheme(() => {
    if (!sessions.length) return;
    drawInstruments();
    for (const map of maps) map.recolour();
  });
}

function listenToTabs() {
  for (const name of ["document", "similarity"]) {
    byId(`tab-${name}`).addEventListener("click", () => {
      showView(name);
      remember();
    });
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const other = name === "document" ? "similarity" : "document";
      showView(other);
      byId(`tab-${other}`).focus();
      remember();
    });
  }
}

function listenToDrops() {
  const body = document.body;
  body.addEventListener("dragover", (event) => {
    event.preventDefault();
    body.classList.add("dropping");
  });
  body.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) body.classList.remove("dropping");
  });
  body.addEventListener("drop", (event) => {
    event.preventDefault();
    body.classList.remove("dropping");
    const [file] = event.dataTransfer.files;
    if (file) openFile(file);
  });
}

async function openFile(file) {
  if (!file) return;
  showView("document");
  try {
    setSourceText(new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()));
  } catch {
    fail(new Error(`${file.name} is not UTF-8 text.`));
    return;
  }
  byId("source").requestSubmit();
}

async function copyLink() {
  writeState(state);
  await copy(location.href, byId("share"), state.text?.startsWith("h") ? "Copied, without the text" : "Copied");
}

async function copyVector() {
  const [session] = sessions;
  try {
    const { vector } = await post("v1/documents", { text: session.text, model: session.model });
    await copy(JSON.stringify(vector), byId("vector"), `Copied ${vector.length} numbers`);
  } catch (failure) {
    fail(failure);
  }
}

const COPIED_MS = 2500;

async function copy(text, button, thanks) {
  const usual = button.dataset.usual ??= button.textContent;
  let words = thanks;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    words = "The browser refused to copy";
  }
  button.textContent = words;
  setTimeout(() => (button.textContent = usual), COPIED_MS);
}

start();
