// All results for one text, from one model or from two side by side.

import { attentionName } from "./attention.js";
import { byId, make, quoted, say, show } from "./dom.js";
import { clearError, fail } from "./errors.js";
import { MapView } from "./map.js";
import { Measures } from "./measures.js";
import { Newest } from "./newest.js";
import { count, counted, range, short } from "./numbers.js";
import { BEGINNINGS, beginningsOf, drawOutline } from "./outline.js";
import { Reader } from "./reader.js";
import { remember, state, windowOf } from "./state.js";
import { drawTopics } from "./topics.js";
import { View } from "./view.js";
import { addAside, work } from "./work.js";

const reader = new Reader(byId("reader"));

const FINDING = "Finding the structure of the document…";
const NO_PARTS = "The model reads no words in this text, so it has no parts.";

export class Results {
  // Starts with the head and the window of the state, if the model has them.
  constructor(sessions, instruments) {
    this.sessions = sessions;
    [this.first] = sessions;
    this.view = new View(this.first.tokens);
    this.topicsAsked = new Newest();
    this.isBeginning = true;
    this.isClosed = false;
    this.clear();
    this.measures = new Measures(sessions, instruments, { onOpen: (layer, head) => this.openHead(layer, head) });
    this.maps = sessions.map((session) => this.mapOf(session));
    this.showFacts();
    this.openWindow();
    this.openHead(...this.headOfState());
  }

  clear() {
    for (const id of ["outline", "charts", "topics", "heads", "maps"]) byId(id).replaceChildren();
    for (const id of ["topics-hint", "cell", "outline-hint", "notes"]) byId(id).textContent = "";
    byId("outline").removeAttribute("aria-busy");
    show(byId("copy"), false);
  }

  showFacts() {
    const models = this.sessions.map(({ model }) => model).join(" and ");
    byId("facts").textContent = `${counted(this.first.tokens, "token")}, ${counted(this.first.characters.count, "character")}, read by ${models}`;
    say(byId("facts").textContent);
    byId("results").classList.toggle("beside", this.sessions.length > 1);
    const hadFocus = byId("source").contains(document.activeElement);
    show(byId("source"), false);
    show(byId("results"), true);
    if (hadFocus) byId("results").focus({ preventScroll: true }); // else the keyboard begins at the top again
  }

  // Cancels pending requests. The results stay on the page until others replace them.
  close() {
    this.isClosed = true;
    this.topicsAsked.stop();
    for (const map of this.maps) map.close();
  }

  // Reads what the page shows without a selection: the first heads before the structure, which takes
  // much longer, and the other heads beside it.
  async read(signal, tell) {
    let structure = null;
    const findStructure = () => (structure ??= this.drawStructure(signal));
    this.showOutline(make("p", { class: "hint" }, FINDING));
    try {
      await reader.open(this.first.text);
      signal.throwIfAborted();
      await this.measures.readCharts(signal, tell, findStructure);
      tell(FINDING);
      await findStructure();
    } finally {
      this.isBeginning = false;
      if (!this.isClosed) findStructure(); // also where heads could not be read
    }
    await this.measures.readShown(signal, tell);
  }

  chooseInstrument(name) {
    state.instrument = name;
    remember();
    this.measures.draw();
    // The initial reading ends with the selected instrument, so it will read this one.
    if (!this.isBeginning) work((signal, tell) => this.measures.readShown(signal, tell));
  }

  // Structure

  // Never rejects: the outline itself says why it is missing.
  async drawStructure(signal) {
    this.showOutline(make("p", { class: "hint" }, FINDING));
    byId("outline").setAttribute("aria-busy", "true");
    try {
      const found = await this.first.structure(signal);
      drawOutline(byId("outline"), found.segments, {
        excerpt: ({ tokens, begins }) => this.first.excerpt([tokens.start, tokens.end], 48, begins === "heading"),
        onOpen: (segment) => this.openSegment(segment),
      });
      if (!found.segments.length) this.showOutline(make("p", { class: "hint" }, NO_PARTS));
      const kinds = beginningsOf(found.segments);
      byId("outline-hint").textContent = Object.keys(BEGINNINGS).filter((kind) => kinds.has(kind)).map((kind) => BEGINNINGS[kind]).join(" ").trim();
    } catch (failure) {
      if (this.isClosed) return;
      const why = signal.aborted ? "Stopped before the structure was found." : failure.message;
      const again = () => work((anew, tell) => (tell(FINDING), this.drawStructure(anew)));
      this.showOutline(make("p", { class: "hint" }, why), make("button", { type: "button", onclick: again }, "Find it"));
    }
    byId("outline").removeAttribute("aria-busy");
  }

  showOutline(...parts) {
    byId("outline").replaceChildren(...parts);
    byId("outline-hint").textContent = "";
  }

  openSegment({ tokens, characters }) {
    const [start, end] = this.first.span(characters);
    reader.clear("row", "column");
    reader.mark("segment", [[start, end]]);
    reader.scrollTo(start);
    this.view.set([tokens.start, tokens.end], [tokens.start, tokens.end]);
    this.viewChanged();
  }

  // Heads

  // Returns the head of the state, or the first one that can be analysed.
  headOfState() {
    const [layer, head] = [state.layer, state.head].map((value) => (/^\d+$/.test(value ?? "") ? Number(value) : 0));
    return this.first.whyClosed(layer, head) ? [this.first.layers[0] ?? 0, 0] : [layer, head];
  }

  openHead(layer, head) {
    Object.assign(state, { layer: String(layer), head: String(head) });
    clearError();
    this.measures.draw();
    for (const map of this.maps) map.open(layer, head);
    byId("map-title").textContent = `Attention of layer ${layer}, head ${head}`;
    this.openTopics(layer, head);
    remember();
  }

  async openTopics(layer, head) {
    const signal = this.topicsAsked.next();
    reader.clear("topic", "users");
    show(byId("marks"), false);
    const closed = this.first.whyClosed(layer, head);
    this.showTopics([], closed ?? "Reading the topics of the head…");
    if (closed) return;
    const answered = addAside("Reading the topics of the head…", () => this.stopTopics(layer, head));
    try {
      const { topics, attention } = await this.first.topics(layer, head, signal);
      this.showTopics(topics ?? [], topics ? TOPICS : noTopics(attention));
    } catch (failure) {
      if (signal.aborted) return;
      this.showTopics([], "The topics could not be read.");
      fail(failure, () => this.openTopics(layer, head));
    } finally {
      answered();
    }
  }

  stopTopics(layer, head) {
    this.topicsAsked.stop();
    this.showTopics([], "Stopped before the topics were read.");
    byId("topics").append(make("button", { type: "button", onclick: () => this.openTopics(layer, head) }, "Read them"));
  }

  showTopics(topics, hint) {
    byId("topics-hint").textContent = hint;
    drawTopics(byId("topics"), topics, { onOpen: (topic) => this.markTopic(topic) });
  }

  markTopic(topic) {
    reader.clear("topic", "users", "segment", "row", "column");
    show(byId("marks"), topic !== null);
    if (!topic) return;
    const spans = (tokens) => tokens.filter(({ characters }) => characters).map(({ characters }) => this.first.span(characters));
    const [read, users] = [spans(topic.tokens), spans(topic.users)];
    reader.mark("users", users);
    reader.mark("topic", read);
    byId("marks").replaceChildren(make("span", { class: "mark-topic" }, "attended to"), " ", make("span", { class: "mark-users" }, "attending"));
    const first = [...read, ...users].sort((one, other) => one[0] - other[0])[0];
    if (first) reader.scrollTo(first[0]);
  }

  // Maps

  mapOf(session) {
    const map = new MapView(byId("maps"), session, {
      view: this.view, first: this.first,
      onFound: () => this.paintMaps(),
      onView: () => this.viewChanged(),
      onCell: (cell) => describeCell(session, cell),
      onPick: (cell) => markCell(session, cell),
      onError: (failure) => fail(failure, () => map.changed()),
    });
    return map;
  }

  // All on one scale, so that equal colours mean equal attention.
  paintMaps() {
    const maps = this.maps.filter(({ found }) => found);
    const limits = range(maps.flatMap((map) => map.limits));
    for (const map of maps) map.paint(limits);
  }

  openWindow() {
    const [rows, columns] = [windowOf(state.rows), windowOf(state.columns)];
    if (rows && columns) this.view.set(rows, columns);
  }

  // change: changes the view; then everything is drawn again.
  changeView(change) {
    change(this.view);
    this.viewChanged();
  }

  viewChanged() {
    const { isAll, rows, columns } = this.view;
    Object.assign(state, { rows: isAll ? null : rows.join("-"), columns: isAll ? null : columns.join("-") });
    for (const map of this.maps) map.changed();
    remember();
  }

  recolour() {
    this.measures.draw();
    this.paintMaps();
    for (const map of this.maps) map.draw(); // those that are not read yet have axes
  }
}

const TOPICS = "Each channel of LLN is a topic: some tokens attend through it to others. Choose one to see them in the text.";

const noTopics = (attention) =>
  `This head has no topics: its attention is ${attentionName(attention)}, which has no channels${attention === "block_diagonal" ? ". LLN is used for texts longer than one block" : ""}.`;

function describeCell(session, cell) {
  const words = make("span", {}, ...(cell ? cellWords(session, cell) : []));
  // Unchanged words are not set again: screen readers would repeat them.
  if (byId("cell").textContent !== words.textContent) byId("cell").replaceChildren(words);
}

// A cell is in tokens of the model of its map.
function cellWords(session, { rows, columns, mean, even }) {
  const place = ([start, end]) => (end - start > 1 ? `${count(start)}–${count(end - 1)}` : count(start));
  const name = (tokens) => ["“", quoted(session.excerpt(tokens, 36)), `” (${place(tokens)})`];
  return [...name(rows), " attends to ", ...name(columns), `: ${short(mean)} a token, ${short(mean / even)} times uniform attention`];
}

function markCell(session, cell) {
  describeCell(session, cell);
  reader.clear("topic", "users", "segment");
  show(byId("marks"), true);
  byId("marks").replaceChildren(make("span", { class: "mark-row" }, "attending"), " ", make("span", { class: "mark-column" }, "attended to"));
  const [row, column] = [session.unitsOf(cell.rows), session.unitsOf(cell.columns)];
  reader.mark("row", row ? [row] : []);
  reader.mark("column", column ? [column] : []);
  if (column ?? row) reader.scrollTo((column ?? row)[0]);
}
