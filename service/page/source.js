// The text to read. A text field is slow for long texts, so it shows only the beginning of one, and the
// whole text is in a variable.

import { byId, show } from "./dom.js";
import { count } from "./numbers.js";
import { beginning, Characters } from "./offsets.js";

const LONGEST_IN_FIELD = 20_000; // UTF-16 units
const SHOWN = 2_000;

let longText = null;

export const sourceText = () => longText ?? byId("text").value;

export function setSourceText(text) {
  const field = byId("text");
  longText = text.length > LONGEST_IN_FIELD ? text : null;
  field.value = longText === null ? text : `${beginning(text, SHOWN)}…`;
  field.readOnly = longText !== null;
  byId("long-text-note").textContent = longText === null ? "" : `${count(new Characters(text).count)} characters; the field shows the beginning.`;
  show(byId("long-text"), longText !== null);
}

export function startSource() {
  const field = byId("text");
  field.addEventListener("paste", (event) => {
    const pasted = event.clipboardData.getData("text");
    if (pasted.length <= LONGEST_IN_FIELD) return;
    event.preventDefault();
    const before = longText === null ? field.value.slice(0, field.selectionStart) : "";
    const after = longText === null ? field.value.slice(field.selectionEnd) : "";
    setSourceText(before + pasted + after);
  });
  byId("clear").addEventListener("click", () => {
    setSourceText("");
    field.focus();
  });
}
