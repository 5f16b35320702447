// Reads text files that the user opens or drops anywhere on the page.

import { byId } from "./dom.js";

export function startFiles(onFile) {
  byId("open-file").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", ({ target }) => {
    const [file] = target.files;
    target.value = ""; // or the same file, changed meanwhile, could not be opened again
    if (file) onFile(file);
  });
  const { body } = document;
  body.addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    body.classList.add("dropping");
  });
  body.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) body.classList.remove("dropping");
  });
  body.addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    body.classList.remove("dropping");
    const [file] = event.dataTransfer.files;
    if (file) onFile(file);
  });
}

// The browser handles dragged text itself.
const carriesFiles = ({ dataTransfer }) => dataTransfer.types.includes("Files");

export async function textOfFile(file) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not UTF-8 text.`);
  }
}
