// Copying. Over plain HTTP a page has no clipboard: what is to be copied is then shown and selected.

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
  field.oncopy = () => setTimeout(() => show(byId("copy"), false)); // once the browser has copied it
  field.select();
}
