// Shows errors, with a button to try again.

import { UNAUTHORIZED } from "./api.js";
import { byId, make, show } from "./dom.js";

const refused = []; // retries that wait for an API key
const failed = new Map(); // by box: what failed since it was last hidden

// again: retries the failed action with its original arguments.
export function fail(failure, again = null, box = byId("error")) {
  if (failure.status === UNAUTHORIZED) { // the form for the key shows it
    if (again) refused.push(again);
    return;
  }
  const waiting = box.hidden ? [] : (failed.get(box) ?? []);
  failed.set(box, again ? [...waiting, again] : []);
  tell(box, failure.message, again !== null);
}

function tell(box, words, isRetried) {
  const [told, button] = box.hidden ? [] : box.children;
  // Unchanged words are not set again: screen readers would repeat them.
  if (told?.textContent === words && Boolean(button) === isRetried) return;
  box.replaceChildren(make("span", {}, words), ...(isRetried ? [againButton(box)] : []));
  show(box, true);
}

// Several actions may have failed for one reason, such as a map and its topics.
function againButton(box) {
  const onclick = () => {
    const retries = failed.get(box);
    clearError(box);
    byId("main").focus({ preventScroll: true }); // the button had the focus, and is gone
    for (const again of retries) again();
  };
  return make("button", { type: "button", onclick }, "Try again");
}

export const clearError = (box = byId("error")) => show(box, false);

export function repeatRefused() {
  for (const again of refused.splice(0)) again();
}
