// Updates a document while it is edited, and shows what was read again and how stale the rest is.

import { patch, post } from "./api.js";
import { byId, make, say, setOptions, show } from "./dom.js";
import { count, short } from "./numbers.js";
import { beginning, Characters } from "./offsets.js";
import { Question } from "./question.js";

const CHUNKING = { type: "fixed", tokens: 256 };
const FRESHEST = 1e-5; // staleness that is hardly coloured
const STALEST = 1e-2; // and that is coloured most
const SHOWN = 300; // characters of a passage

const reading = new Question(
  { answer: "edited", error: "edit-error", waiting: "edit-waiting", button: "edit-read" },
  "Reading the document…",
);
let kept = null; // the record of the last reading, of the selected model

export function startEditing(models) {
  const able = models.filter(({ calibration }) => calibration !== null);
  setOptions(byId("edit-model"), able.map(({ name }) => [name, name]), able[0]?.name);
  byId("edit-read").disabled = !able.length;
  byId("edit-form").addEventListener("submit", (event) => {
    event.preventDefault();
    read(byId("edit-text").value, byId("edit-model").value);
  });
  byId("edit-anew").addEventListener("click", () => {
    keep(null);
    byId("edit-form").requestSubmit();
  });
  byId("edit-model").addEventListener("change", forget);
}

// What was read, and what failed, is of the model that was selected before.
function forget() {
  reading.stop();
  show(byId("edited"), false);
  keep(null);
}

// With a record, the next reading is an update.
function keep(found) {
  kept = found;
  byId("edit-read").textContent = kept ? "Update" : "Read";
  show(byId("edit-anew"), kept !== null);
}

function read(text, model) {
  reading.ask(async (signal) => {
    if (!text.trim()) throw new Error("There is no text to read.");
    const asked = { text, model, encoding_format: "base64" };
    const found = kept
      ? await patch("v1/documents", { ...asked, record: kept.record }, signal)
      : await post("v1/documents", { ...asked, chunking: CHUNKING, record: true }, signal);
    if (signal.aborted) return;
    keep({ record: found.record });
    showFound(found, text);
  }, text.trim() ? () => read(text, model) : null);
}

function showFound(found, text) {
  const again = found.chunks.filter(({ previous }) => previous === null).length;
  const facts = [
    `${count(found.tokens_read)} of ${count(found.accounting.tokens)} tokens read, in ${short(found.accounting.compute_s)} s`,
    `${count(again)} of ${count(found.chunks.length)} passages read now`,
    ...(found.gone.length ? [`passages removed or replaced: ${count(found.gone.length)}`] : []),
    found.staleness ? `the document's vector is within ${short(found.staleness)} of a new reading (1 \u2212 cosine)` : "nothing is stale",
  ];
  byId("edit-facts").textContent = `${facts.join("; ")}.`;
  say(byId("edit-facts").textContent);
  const characters = new Characters(text);
  byId("passages").replaceChildren(...found.chunks.map((chunk) => passage(chunk, text, characters)));
  show(byId("edited"), true);
}

function passage({ characters: { start, end }, previous, staleness }, text, characters) {
  const isNow = previous === null;
  const whole = text.slice(characters.unit(start), characters.unit(end)).trim();
  const shown = whole.length > SHOWN ? `${beginning(whole, SHOWN)}\u2026` : whole;
  const state = isNow ? "read now" : `kept, within ${short(staleness)} of a new reading`;
  const item = make(
    "li",
    { class: `passage ${isNow ? "now" : "kept"}` },
    make("span", { class: "passage-state" }, state),
    make("span", { class: "passage-text" }, shown),
  );
  if (!isNow) item.style.setProperty("--stale", `${Math.round(100 * strength(staleness))}%`);
  return item;
}

// 0 to 1, by the logarithm: stalenesses of one document are orders of magnitude apart.
function strength(staleness) {
  const share = Math.log(Math.max(staleness, FRESHEST) / FRESHEST) / Math.log(STALEST / FRESHEST);
  return Math.min(share, 1);
}
