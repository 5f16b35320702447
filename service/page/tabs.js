// The views of the page and their tabs.

import { byId, show } from "./dom.js";
import { remember, state } from "./state.js";

const VIEWS = ["document", "edit", "search", "similarity"];

export function showView(name) {
  state.view = VIEWS.includes(name) ? name : VIEWS[0];
  for (const view of VIEWS) {
    const isShown = view === state.view;
    show(byId(`view-${view}`), isShown);
    byId(`tab-${view}`).setAttribute("aria-selected", String(isShown));
    byId(`tab-${view}`).tabIndex = isShown ? 0 : -1;
  }
}

export function startTabs() {
  for (const view of VIEWS) {
    byId(`tab-${view}`).addEventListener("click", () => goTo(view));
    byId(`tab-${view}`).addEventListener("keydown", (event) => {
      const [at, last] = [VIEWS.indexOf(view), VIEWS.length - 1];
      const other = VIEWS[{ ArrowLeft: (at + last) % VIEWS.length, ArrowRight: (at + 1) % VIEWS.length, Home: 0, End: last }[event.key]];
      if (!other) return;
      event.preventDefault();
      goTo(other);
      byId(`tab-${other}`).focus();
    });
  }
}

function goTo(view) {
  showView(view);
  remember();
}
