// Shows errors, with a button to try again.

import { UNAUTHORIZED } from "./api.js";
import { byId, make, show } from "./dom.js";

const refused = []; // retries that wait for an API key

// again: retries the failed action with its original arguments.
export function fail(failure, again = null, box = byId("error")) {
  if (failure.status === UNAUTHORIZED) { // the form for the key shows it
    if (again) refused.push(again);
    return;
  }
  box.replaceChildren(make("span", {}, failure.message), ...(again ? [againButton(again, box)] : []));
  show(box, true);
}

function againButton(again, box) {
  const onclick = () => {
    clearError(box);
    again();
  };
  return make("button", { type: "button", onclick }, "Try again");
}

export const clearError = (box = byId("error")) => show(box, false);

export function repeatRefused() {
  for (const again of refused.splice(0)) again();
}
