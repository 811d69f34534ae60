// The table of replicas: memory, host, how often each was started, and when it last reported.

import { byId, each, make, makeRow, makeTable, setText } from "./elements.js";
import { bytes, duration, percent } from "./words.js";

const HEADS = ["replica", "memory", "now", "peak", "limit", "host", "starts", "seen"];
const ALMOST_FULL = 0.9;

export class Replicas {
  constructor() {
    this.body = make("tbody");
    byId("replicas-table").append(makeTable("Replicas", HEADS, this.body));
  }

  /** Show replicas as they were at `now`. */
  show(replicas, now) {
    const largest = replicas.reduce((most, { peak, limit }) => Math.max(most, limit ?? peak), 1);
    each(this.body, replicas, newRow, (row, { replica, memory, peak, limit, host, processes, seen }) => {
      const [name, bar, ...cells] = row.children;
      setText(name.firstElementChild, replica);
      const [track] = bar.children;
      const [used, most] = track.children;
      const whole = limit ?? largest;
      used.style.width = share(memory / whole);
      most.style.left = share(peak / whole);
      const ago =
        seen === null ? "never" : `${duration(Math.max(0, Math.round(now - seen)))} ago`;
      const peakText = limit === null ? bytes(peak) : `${bytes(peak)} (${percent(peak / limit)})`;
      cells[1].classList.toggle("warn", limit !== null && peak / limit > ALMOST_FULL);
      const limitText = limit === null ? "none" : bytes(limit);
      const texts = [bytes(memory), peakText, limitText, host, String(processes), ago];
      texts.forEach((text, index) => setText(cells[index], text));
    });
  }
}

const share = (part) => `${Math.min(1, part) * 100}%`;

function newRow() {
  const parts = [make("i", { class: "used" }), make("i", { class: "peak" })];
  return makeRow(make("div", { class: "memory", "aria-hidden": true }, ...parts), 6);
}
