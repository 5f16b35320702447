// What went wrong, in words, and the way to try it again.

import { UNAUTHORIZED } from "./api.js";
import { byId, make, show } from "./dom.js";

const refused = []; // what to do once there is a key, in the order in which it was asked for

// again: does what failed once more, as it was asked for then.
export function fail(failure, again = null, box = byId("error")) {
  if (failure.status === UNAUTHORIZED) { // the form for a key says so
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
