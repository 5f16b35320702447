// The API key, where the server asks for one: kept for this tab, sent to this server alone, and
// never in the address.

import { onRefusedKey, useKey } from "./api.js";
import { byId, show } from "./dom.js";
import { ofThisTab } from "./storage.js";

const KEPT = "lln-api-key";

export function startKey(onKey) {
  useKey(ofThisTab.get(KEPT));
  onRefusedKey(askForKey);
  byId("key").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = byId("key-value").value.trim();
    ofThisTab.set(KEPT, key);
    useKey(key);
    show(byId("key"), false);
    onKey();
  });
}

function askForKey({ code }) {
  if (!byId("key").hidden) return; // it is asked for, and may be half written
  ofThisTab.remove(KEPT);
  useKey(null);
  byId("key-message").textContent = code === "missing_api_key"
    ? "This server asks for an API key." : "The server does not accept this API key.";
  byId("key-value").value = "";
  show(byId("key"), true);
  byId("key-value").focus();
}
