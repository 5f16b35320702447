// Light or dark: the setting of the system, until the user chooses.

import { ofThisBrowser } from "./storage.js";

const KEY = "lln-theme";
const query = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export const isDark = () => (document.documentElement.dataset.theme ?? system()) === "dark";
const system = () => (query.matches ? "dark" : "light");

export function onTheme(listener) {
  listeners.add(listener);
}

function announce(button) {
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Use the ${isDark() ? "light" : "dark"} theme`);
  for (const listener of listeners) listener();
}

export function startTheme(button) {
  const kept = ofThisBrowser.get(KEY);
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    ofThisBrowser.set(KEY, theme);
    announce(button);
  });
  query.addEventListener("change", () => announce(button));
  announce(button);
}
