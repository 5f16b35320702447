// The text to read. A browser's text field stalls for seconds on a book, so the field holds short
// texts only; of a longer one it shows the beginning, and the whole is kept beside it.

import { byId, show } from "./dom.js";
import { count } from "./numbers.js";
import { Characters } from "./offsets.js";

const LONGEST_IN_FIELD = 20_000; // UTF-16 units
const SHOWN = 2_000;

let held = null;

export const sourceText = () => held ?? byId("text").value;

export function setSourceText(text) {
  const field = byId("text");
  held = text.length > LONGEST_IN_FIELD ? text : null;
  field.value = held === null ? text : `${text.slice(0, SHOWN)}…`;
  field.readOnly = held !== null;
  byId("held-text").textContent = held === null ? "" : `${count(new Characters(text).count)} characters, of which the beginning is shown.`;
  show(byId("held"), held !== null);
}

export function startSource() {
  const field = byId("text");
  field.addEventListener("paste", (event) => {
    const pasted = event.clipboardData.getData("text");
    if (pasted.length <= LONGEST_IN_FIELD) return;
    event.preventDefault();
    const before = held === null ? field.value.slice(0, field.selectionStart) : "";
    const after = held === null ? field.value.slice(field.selectionEnd) : "";
    setSourceText(before + pasted + after);
  });
  byId("clear").addEventListener("click", () => {
    setSourceText("");
    field.focus();
  });
}
