// Runs one long job at a time, with progress and a way to stop it.

import { byId, show } from "./dom.js";
import { clearError, fail } from "./errors.js";
import { Newest } from "./newest.js";

const newest = new Newest();

// job(signal, tell): tell(words, share) shows the current step and its progress, from 0 to 1.
export async function work(job) {
  const signal = newest.next();
  clearError();
  try {
    await job(signal, (words, share = null) => signal.aborted || showProgress(words, share));
  } catch (failure) {
    if (!signal.aborted) fail(failure, () => work(job));
  }
  if (!signal.aborted) showProgress(null);
}

export function stopWork() {
  newest.stop();
  showProgress(null);
}

function showProgress(words, share = null) {
  show(byId("status"), words !== null);
  byId("status-text").textContent = words ?? "";
  if (share === null) byId("progress").removeAttribute("value");
  else byId("progress").value = share;
}
