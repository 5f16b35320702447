// Copies text to the clipboard. Pages over plain HTTP have none, so the text is shown and selected.

import { byId, onEscape, show } from "./dom.js";

const COPIED_MS = 2500;

export async function copy(text, button, thanks) {
  try {
    await navigator.clipboard.writeText(text);
    show(byId("copy"), false);
    answer(button, thanks);
  } catch {
    showToCopy(text, button);
  }
}

function answer(button, words) {
  const usual = button.dataset.usual ??= button.textContent;
  button.textContent = words;
  setTimeout(() => (button.textContent = usual), COPIED_MS);
}

// The button gets the focus back when the text is copied, or with Escape.
function showToCopy(text, button) {
  const field = byId("copy-text");
  const close = () => {
    show(byId("copy"), false);
    button.focus();
  };
  show(byId("copy"), true);
  field.value = text;
  field.oncopy = () => setTimeout(close); // after the browser has copied
  field.onkeydown = onEscape(close);
  field.select();
}
