// The form for the API key. The key is stored for this tab only and never appears in the address.

import { onRefusedKey, useKey } from "./api.js";
import { byId, show } from "./dom.js";
import { ofThisTab } from "./storage.js";

const KEPT = "lln-api-key";

let before = null; // what had the focus when the form came

export function startKey(onKey) {
  useKey(ofThisTab.get(KEPT));
  onRefusedKey(askForKey);
  byId("key").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = byId("key-value").value.trim();
    ofThisTab.set(KEPT, key);
    useKey(key);
    show(byId("key"), false);
    before.focus({ preventScroll: true });
    onKey();
  });
}

function askForKey({ code }) {
  if (!byId("key").hidden) return; // already shown; the user may be typing
  ofThisTab.remove(KEPT);
  useKey(null);
  byId("key-message").textContent = code === "missing_api_key"
    ? "This server requires an API key." : "The server does not accept this API key.";
  byId("key-value").value = "";
  before = document.activeElement;
  show(byId("key"), true);
  byId("key-value").focus();
}
