// The channels of an LLN head as topics: tokens attend through a channel to other tokens.

import { make, quoted } from "./dom.js";
import { short } from "./numbers.js";

const SHOWN = 8;

export function drawTopics(parent, topics, { onOpen }) {
  parent.replaceChildren(...topics.map((topic) => topicButton(topic, parent, onOpen)));
}

function topicButton(topic, parent, onOpen) {
  const button = make("button", { type: "button", class: "topic", "aria-pressed": "false", "data-channel": topic.channel },
    make("span", { class: "topic-share" }, `${Math.round(1000 * topic.share) / 10} %`),
    words("reads", topic.tokens), words("read by", topic.users),
    make("span", { class: "quiet" }, `spreads over ${short(topic.effective_tokens)} tokens`));
  button.addEventListener("click", () => {
    const pressed = button.getAttribute("aria-pressed") !== "true";
    for (const other of parent.querySelectorAll(".topic")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(pressed));
    onOpen(pressed ? topic : null);
  });
  return button;
}

function words(label, tokens) {
  const names = [...new Set(tokens.map(({ token }) => token.replace(/^##/, "·")))].slice(0, SHOWN);
  return make("span", { class: "topic-words" }, make("span", { class: "quiet" }, `${label} `),
    ...names.flatMap((name, index) => (index ? [", ", quoted(name)] : [quoted(name)])));
}
