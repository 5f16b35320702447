// One question of a form at a time. Where its answer stands is busy meanwhile, and what takes long
// says so and can be stopped.

import { byId, make, show } from "./dom.js";
import { clearError, fail } from "./errors.js";
import { Newest } from "./newest.js";
import { PATIENCE_MS } from "./work.js";

export class Question {
  // Ids: where the answer is shown, where its failure is, where it says that it takes long, and the
  // button that asks.
  constructor({ answer, error, waiting, button }, words) {
    Object.assign(this, { answer, error, waiting, button, words });
    this.newest = new Newest();
  }

  // job(signal) asks the server and shows the answer; again() asks once more after a failure.
  async ask(job, again) {
    const signal = this.newest.next();
    this.begin();
    try {
      await job(signal);
    } catch (failure) {
      if (!signal.aborted) fail(failure, again, byId(this.error));
    }
    if (!signal.aborted) this.end();
  }

  // As if nothing had been asked.
  stop() {
    this.newest.stop();
    clearError(byId(this.error));
    this.end();
  }

  begin() {
    clearError(byId(this.error));
    byId(this.answer).setAttribute("aria-busy", "true");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.sayItTakesLong(), PATIENCE_MS);
  }

  end() {
    clearTimeout(this.timer);
    byId(this.answer).removeAttribute("aria-busy");
    show(byId(this.waiting), false);
  }

  sayItTakesLong() {
    const onclick = () => {
      this.stop();
      byId(this.button).focus(); // the button Stop had the focus, and is gone
    };
    const stop = make("button", { type: "button", onclick }, "Stop");
    byId(this.waiting).replaceChildren(make("span", {}, this.words), stop);
    show(byId(this.waiting), true);
  }
}
