// Copies text to the clipboard. Pages over plain HTTP have none, so the text is shown and selected.

import { byId, show } from "./dom.js";

const COPIED_MS = 2500;

export async function copy(text, button, thanks) {
  try {
    await navigator.clipboard.writeText(text);
    show(byId("copy"), false);
    answer(button, thanks);
  } catch {
    showToCopy(text);
  }
}

function answer(button, words) {
  const usual = button.dataset.usual ??= button.textContent;
  button.textContent = words;
  setTimeout(() => (button.textContent = usual), COPIED_MS);
}

function showToCopy(text) {
  const field = byId("copy-text");
  show(byId("copy"), true);
  field.value = text;
  field.oncopy = () => setTimeout(() => show(byId("copy"), false)); // after the browser has copied
  field.select();
}
