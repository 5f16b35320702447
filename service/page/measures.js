// The instruments' readings of one or two models: the grids of heads and the charts by layer.

import { layerChart } from "./charts.js";
import { byId, make, setOptions } from "./dom.js";
import { HeadGrid, valuesOf } from "./heads.js";
import { state } from "./state.js";

// Read at once, each head by itself; the others when the user selects them.
const CHARTS = ["entropy", "temperature"];
const HINT = "Each square is one attention head. Select one to open it.";

// Without what an answer has beside the value, which this page does not show.
const meaningOf = (description) => description.split(/\s*Beside[:,]/)[0];

const spoken = (name) => name.replaceAll("_", " ");

export class Measures {
  // instruments: all instruments of the server, [{ name, scope, description }].
  constructor(sessions, instruments, { onOpen }) {
    this.sessions = sessions;
    this.names = instruments.map(({ name }) => name);
    this.meanings = Object.fromEntries(instruments.map(({ name, description }) => [name, meaningOf(description)]));
    this.ofLayers = instruments.filter(({ scope }) => scope === "layer").map(({ name }) => name);
    this.words = () => HINT; // of the head that was looked at last, whose value may still come
    const onLook = (words) => {
      this.words = words;
      this.tell();
    };
    this.grids = sessions.map((session) => new HeadGrid(byId("heads"), session, { onOpen, onLook }));
  }

  get shown() {
    return this.names.includes(state.instrument) ? state.instrument : CHARTS[0];
  }

  // onRead: called whenever some heads have been read.
  readCharts(signal, tell, onRead) {
    return this.read(CHARTS, signal, tell, onRead);
  }

  readShown(signal, tell) {
    return this.read([this.shown], signal, tell);
  }

  // Reads what is missing of these instruments and shows it as it comes.
  async read(names, signal, tell, onRead = () => {}) {
    const steps = this.sessions.reduce((sum, { layers }) => sum + layers.length, 0);
    const together = names.every((name) => this.ofLayers.includes(name));
    const inParts = names.every((name) => CHARTS.includes(name));
    const tellDone = (done) => {
      if (done < steps) tell(`Reading ${names.map(spoken).join(" and ")}: layer ${Math.floor(done) + 1} of ${steps}`, done / steps);
    };
    let before = 0; // layers of earlier sessions
    if (this.isMissing(names)) tellDone(0);
    for (const session of this.sessions) {
      let heads = 0;
      for await (const read of session.read(names, { signal, together, inParts })) {
        heads += read;
        tellDone(before + heads / session.heads.length);
        this.draw();
        onRead();
      }
      before += Math.floor(heads / session.heads.length);
    }
    this.draw();
    this.drawCharts();
  }

  isMissing(names) {
    return this.sessions.some((session) => names.some((name) => !session.hasRead(name)));
  }

  draw() {
    const name = this.shown;
    setOptions(byId("instrument"), this.names.map((one) => [one, spoken(one)]), name);
    const readings = this.sessions.map(({ readings: all }) => all[name] ?? { values: [], unit: "", methods: [] });
    const limits = valuesOf(readings);
    const shared = { name: spoken(name), limits, whole: this.ofLayers.includes(name), open: `${state.layer}.${state.head}` };
    readings.forEach((reading, index) => this.grids[index].draw({ reading, ...shared }));
    byId("meaning").textContent = this.meanings[name] ?? "";
    byId("notes").textContent = [...new Set(this.sessions.flatMap(({ notes }) => [...notes]))].join(" ");
    byId("method").textContent = [...new Set(readings.flatMap(({ methods }) => [...methods]))].join(" · ");
    this.tell();
  }

  tell() {
    const words = this.words();
    // Unchanged words are not set again: screen readers would repeat them.
    if (byId("reading").textContent !== words) byId("reading").textContent = words;
  }

  drawCharts() {
    const read = CHARTS.filter((name) => this.sessions.every((session) => session.hasRead(name)));
    byId("charts").replaceChildren(...read.map((name) => this.chart(name)), ...(this.sessions.length > 1 ? [this.keys()] : []));
  }

  chart(name) {
    const series = this.sessions.map(({ model, readings }) => ({ title: model, values: readings[name].values }));
    return layerChart(name, this.sessions[0].readings[name].unit, series);
  }

  keys() {
    const keys = this.sessions.map(({ model }, index) => make("span", { class: index ? "second" : "first" }, model));
    return make("p", { class: "keys" }, ...keys);
  }
}
