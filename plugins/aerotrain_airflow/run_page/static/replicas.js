// The table of replicas: memory, waiting for input, and when each last reported.

import { byId, each, make, setText } from "./elements.js";
import { bytes, duration, percent } from "./words.js";

const HEADS = ["replica", "memory", "now", "peak", "limit", "waiting for input", "seen"];
const ALMOST_FULL = 0.9;

export class Replicas {
  constructor() {
    this.body = make("tbody");
    const heads = HEADS.map((text) => make("th", { scope: "col", text }));
    const table = make("table", { class: "replicas" }, make("thead", {}, make("tr", {}, ...heads)), this.body);
    byId("replicas-table").append(make("div", { class: "table" }, table));
  }

  /** Show replicas as they were at `now`. */
  show(replicas, now) {
    const largest = replicas.reduce((most, { peak, limit }) => Math.max(most, limit ?? peak), 1);
    each(this.body, replicas, newRow, (row, { replica, memory, peak, limit, input_wait: wait, seen, slowest }) => {
      const [name, bar, ...cells] = row.children;
      setText(name.firstElementChild, replica);
      name.lastElementChild.hidden = !slowest;
      const [track] = bar.children;
      const [used, most] = track.children;
      const whole = limit ?? largest;
      used.style.width = share(memory / whole);
      most.style.left = share(peak / whole);
      const ago = seen === null ? "never" : `${duration(Math.max(0, Math.round(now - seen)))} ago`;
      const peakText = limit === null ? bytes(peak) : `${bytes(peak)} (${percent(peak / limit)})`;
      cells[1].classList.toggle("warn", limit !== null && peak / limit > ALMOST_FULL);
      const texts = [bytes(memory), peakText, limit === null ? "none" : bytes(limit), percent(wait), ago];
      texts.forEach((text, index) => setText(cells[index], text));
    });
  }
}

const share = (part) => `${Math.min(1, part) * 100}%`;

function newRow() {
  const name = make("th", { scope: "row" }, make("bdi"), make("span", { class: "badge", text: "slowest" }));
  const track = make("div", { class: "memory", "aria-hidden": true }, make("i", { class: "used" }), make("i", { class: "peak" }));
  return make("tr", {}, name, make("td", { class: "bar" }, track), ...Array.from({ length: 5 }, () => make("td")));
}
