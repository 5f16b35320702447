// Several texts, each as one vector, and the cosines between them.

import { floats, post } from "./api.js";
import { colour, wantsDarkText } from "./colour.js";
import { byId, make, setOptions, show } from "./dom.js";
import { onTheme } from "./theme.js";

const AT_FIRST = [
  "How do I bring a ship safely into port in fog?",
  "Lighthouses send a coded flash, so that sailors can tell one headland from another at night.",
  "The recipe wants two eggs, a little flour and a hot pan.",
];

export function startSimilarity(models) {
  const texts = byId("texts");
  setOptions(byId("similarity-model"), models.map(({ name }) => [name, name]), models[0].name);
  for (const text of AT_FIRST) addText(texts, text);
  byId("add-text").addEventListener("click", () => addText(texts, "").focus());
  let drawn = null;
  onTheme(() => drawn && drawMatrix(...drawn));
  byId("similarity-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = [...texts.querySelectorAll("textarea")].map(({ value }) => value.trim()).filter(Boolean);
    show(byId("similarity-error"), false);
    byId("matrix").setAttribute("aria-busy", "true");
    try {
      if (given.length < 2) throw new Error("Two texts are needed to compare them.");
      const model = byId("similarity-model").value;
      const { data } = await post("v1/embeddings", { input: given, model, encoding_format: "base64" });
      drawn = [given, data.map(({ embedding }) => floats(embedding))];
      drawMatrix(...drawn);
    } catch (failure) {
      byId("similarity-error").textContent = failure.message;
      show(byId("similarity-error"), true);
    }
    byId("matrix").removeAttribute("aria-busy");
  });
}

function addText(parent, text) {
  const area = make("textarea", { rows: 3, spellcheck: "false", "aria-label": `Text ${parent.children.length + 1}` });
  area.value = text;
  const remove = make("button", { type: "button", class: "quiet", "aria-label": "Remove this text" }, "Remove");
  const row = make("div", { class: "text-row" }, area, remove);
  remove.addEventListener("click", () => row.remove());
  parent.append(row);
  return area;
}

function drawMatrix(texts, vectors) {
  const cosines = vectors.map((one) => vectors.map((other) => one.reduce((sum, value, index) => sum + value * other[index], 0)));
  const title = (index) => `${index + 1}. ${texts[index].slice(0, 70)}`;
  const head = make("tr", {}, make("td"), ...texts.map((_, index) => make("th", { scope: "col", title: title(index) }, String(index + 1))));
  const rows = cosines.map((row, index) => make("tr", {}, make("th", { scope: "row" }, title(index)), ...row.map(cosineCell)));
  byId("matrix").replaceChildren(make("table", { class: "matrix" }, make("caption", {}, "Cosine of every pair of texts"), head, ...rows));
  show(byId("matrix"), true);
}

function cosineCell(value) {
  const cell = make("td", { class: "cosine" }, value.toFixed(2));
  cell.style.backgroundColor = colour(value);
  cell.classList.toggle("on-light", wantsDarkText(Math.max(0, value)));
  return cell;
}
