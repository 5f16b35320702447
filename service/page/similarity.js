// Embeds several texts and shows the cosines of all pairs.

import { floats, post } from "./api.js";
import { colour, isDarkInk } from "./colour.js";
import { byId, make, say, setOptions, show } from "./dom.js";
import { beginning } from "./offsets.js";
import { Question } from "./question.js";
import { onTheme } from "./theme.js";

const AT_FIRST = [
  "How do I bring a ship safely into port in fog?",
  "Lighthouses send a coded flash, so that sailors can tell one headland from another at night.",
  "The recipe wants two eggs, a little flour and a hot pan.",
];

const comparing = new Question(
  { answer: "matrix", error: "similarity-error", waiting: "similarity-waiting", button: "compare" },
  "Reading the texts…",
);

export function startSimilarity(models) {
  setOptions(byId("similarity-model"), models.map(({ name }) => [name, name]), models[0].name);
  for (const text of AT_FIRST) addText(text);
  byId("add-text").addEventListener("click", () => addText("").focus());
  onTheme(recolour);
  byId("similarity-form").addEventListener("submit", (event) => {
    event.preventDefault();
    compare(fields().map(({ value }) => value.trim()).filter(Boolean), byId("similarity-model").value);
  });
}

function compare(texts, model) {
  comparing.ask(async (signal) => {
    if (texts.length < 2) throw new Error("Enter at least two texts to compare.");
    const { data } = await post("v1/embeddings", { input: texts, model, encoding_format: "base64" }, signal);
    drawMatrix(texts, data.map(({ embedding }) => floats(embedding)), model);
  }, texts.length < 2 ? null : () => compare(texts, model));
}

const fields = () => [...byId("texts").querySelectorAll("textarea")];

function addText(text) {
  const area = make("textarea", { rows: 3, spellcheck: "false" });
  area.value = text;
  const remove = make("button", { type: "button", class: "quiet" }, "Remove");
  const row = make("div", { class: "text-row" }, area, remove);
  remove.addEventListener("click", () => removeText(row));
  byId("texts").append(row);
  numberTexts();
  return area;
}

function removeText(row) {
  const next = row.nextElementSibling ?? row.previousElementSibling;
  row.remove();
  numberTexts();
  (next?.querySelector("button") ?? byId("add-text")).focus();
}

function numberTexts() {
  [...byId("texts").children].forEach((row, index) => {
    row.querySelector("textarea").setAttribute("aria-label", `Text ${index + 1}`);
    row.querySelector("button").setAttribute("aria-label", `Remove text ${index + 1}`);
  });
}

function drawMatrix(texts, vectors, model) {
  const cosines = vectors.map((one) => vectors.map((other) => one.reduce((sum, value, index) => sum + value * other[index], 0)));
  const title = (index) => `${index + 1}. ${beginning(texts[index], 70)}`;
  const head = make("tr", {}, make("td"), ...texts.map((_, index) => make("th", { scope: "col", title: title(index) }, String(index + 1))));
  const rows = cosines.map((row, index) => make("tr", {}, make("th", { scope: "row" }, title(index)), ...row.map(cosineCell)));
  const caption = `Cosines of all pairs of texts, by ${model}`;
  byId("matrix").replaceChildren(make("table", { class: "matrix" }, make("caption", {}, caption), head, ...rows));
  show(byId("matrix"), true);
  say(caption);
}

function cosineCell(value) {
  return coloured(make("td", { class: "cosine", "data-cosine": value }, value.toFixed(2)));
}

function coloured(cell) {
  const value = Number(cell.dataset.cosine);
  cell.style.backgroundColor = colour(value);
  cell.classList.toggle("dark-ink", isDarkInk(value));
  return cell;
}

// In place: whoever is reading the table stays where they are.
const recolour = () => byId("matrix").querySelectorAll(".cosine").forEach(coloured);
