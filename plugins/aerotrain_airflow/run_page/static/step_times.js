// The time of a step on each replica, by what it was spent on, and which replicas are slow.

import { byId, each, make, makeRow, makeTable, setText } from "./elements.js";
import { number, percent } from "./words.js";

const HEADS = ["replica", "time of a step", "input", "computing", "communication", "whole"];
const PARTS = ["input", "computing", "communication"];

export class StepTimes {
  constructor() {
    this.sentence = make("p");
    this.body = make("tbody");
    byId("step-times-table").append(this.sentence, makeTable("Time of a step", HEADS, this.body));
  }

  /** Show the times of the last steps: [{replica, seconds, input, communication}]. */
  show(times, stragglers) {
    byId("step-times").hidden = times.length === 0;
    setText(this.sentence, stragglers.length ? sentenceOf(stragglers[0]) : "");
    const longest = times.reduce((most, { seconds }) => Math.max(most, seconds), 0) || 1;
    each(this.body, times, newRow, (row, time) => {
      const parts = partsOf(time);
      const [name, cell, ...cells] = row.children;
      const [bar] = cell.children;
      setText(name.firstElementChild, time.replica);
      row.classList.toggle("warn", stragglers.some(({ replica }) => replica === time.replica));
      bar.style.width = `${(time.seconds / longest) * 100}%`;
      PARTS.forEach((part, index) => {
        bar.children[index].style.flexGrow = (parts[part] ?? 0) / time.seconds;
        setText(cells[index], textOf(parts[part], time.seconds));
      });
      setText(cells[PARTS.length], milliseconds(time.seconds));
    });
  }
}

/** What is neither input nor communication is computing. */
function partsOf({ seconds, input, communication }) {
  return { input, communication, computing: seconds - input - (communication ?? 0) };
}

const milliseconds = (seconds) => `${number(Number((seconds * 1000).toPrecision(3)))} ms`;

const textOf = (seconds, whole) =>
  seconds === null ? "–" : `${milliseconds(seconds)} (${percent(seconds / whole)})`;

const sentenceOf = ({ replica, seconds, times }) =>
  `${replica} is slow: its own part of a step takes ${milliseconds(seconds)}, ` +
  `${number(Number(times.toPrecision(2)))} times the median of all.`;

function newRow() {
  const parts = PARTS.map((part) => make("i", { class: part }));
  return makeRow(make("div", { class: "stack", "aria-hidden": true }, ...parts), PARTS.length + 1);
}
