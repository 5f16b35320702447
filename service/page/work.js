// Runs one long job at a time, and questions beside it, with progress and a way to stop all of them.

import { byId, show } from "./dom.js";
import { clearError, fail } from "./errors.js";
import { Newest } from "./newest.js";

export const PATIENCE_MS = 1000; // a question that takes no longer is not worth moving the page for

const newest = new Newest();
const asides = new Set(); // questions that are not answered yet: { words, stop, isShown }
let told = null; // by the job: { words, share }

// job(signal, tell): tell(words, share) shows the current step and its progress, from 0 to 1.
export async function work(job) {
  const signal = newest.next();
  clearError();
  try {
    await job(signal, (words, share = null) => signal.aborted || tellOfJob({ words, share }));
  } catch (failure) {
    if (!signal.aborted) fail(failure, () => work(job));
  }
  if (!signal.aborted) tellOfJob(null);
}

// Adds a question beside the job, such as an attention map; `stop` is called when the user stops it.
// Returns what to call when it is answered.
export function addAside(words, stop) {
  const aside = { words, stop, isShown: false };
  asides.add(aside);
  const timer = setTimeout(() => {
    aside.isShown = true;
    showProgress();
  }, PATIENCE_MS);
  return () => {
    clearTimeout(timer);
    asides.delete(aside);
    showProgress();
  };
}

export function stopWork() {
  newest.stop();
  stopAsides();
  tellOfJob(null);
}

export function stopAsides() {
  for (const { stop } of [...asides]) stop();
}

function tellOfJob(said) {
  told = said;
  showProgress();
}

function showProgress() {
  const { words, share = null } = told ?? [...asides].find(({ isShown }) => isShown) ?? { words: null };
  show(byId("status"), words !== null);
  // Unchanged words are not set again: screen readers would repeat them.
  if (byId("status-text").textContent !== (words ?? "")) byId("status-text").textContent = words ?? "";
  if (share === null) byId("progress").removeAttribute("value");
  else byId("progress").value = share;
}
