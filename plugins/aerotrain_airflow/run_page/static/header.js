// The top of the page: the run, the state of each training in words, the files, and how fresh the data is.

import { addressOfFile, names } from "./data.js";
import { byId, each, make, setText } from "./elements.js";
import { lastStep, startOf, timeLeft } from "./series.js";
import { clock, count, counted, duration, moment, percent } from "./words.js";

export class Header {
  /** `choose` is called with the task of the training that the user wants to see. */
  constructor(choose) {
    this.choose = choose;
    byId("title").replaceChildren(
      make("bdi", { text: names.dag }),
      " ",
      make("bdi", { class: "quiet", text: names.run }),
    );
    document.title = `${names.dag}: ${names.run}`;
    this.shownAt = null;
  }

  show({ state, trainings, files, notes, now }, chosen) {
    this.shownAt = now;
    const failed = state === "failed" ? ". The run has failed: the log of its task says why" : "";
    this.setStatus(`As of ${clock(now)}${failed}`, state === "failed");
    byId("notes").hidden = notes.length === 0;
    each(byId("notes"), notes, () => make("li"), setText);
    each(
      byId("trainings"),
      trainings,
      () => this.training(),
      (label, training) => {
        const [radio, name, state] = label.children;
        radio.value = training.task;
        radio.checked = training.task === chosen;
        radio.hidden = trainings.length === 1;
        setText(name, training.task);
        setText(state, stateOf(training, now));
      },
    );
    byId("files").hidden = files.length === 0;
    each(byId("files"), files, () => make("span"), showFile);
  }

  /** Say that the data could not be fetched, and from when that is which is shown. */
  fail(message) {
    const shown = this.shownAt === null ? "" : ` This is the data of ${clock(this.shownAt)}.`;
    this.setStatus(`No new data: ${message}.${shown}`, true);
  }

  setStatus(text, failed) {
    setText(byId("status"), text);
    byId("status").classList.toggle("failed", failed);
  }

  training() {
    const radio = make("input", {
      type: "radio",
      name: "training",
      onchange: () => this.choose(radio.value),
    });
    return make("label", {}, radio, make("bdi"), make("span"));
  }
}

/** A link to a file, or a command that the user runs. */
function showFile(element, { title, task, href, command }) {
  const key = JSON.stringify([title, task, href, command]);
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  const name = task ? `${title} (${task})` : title;
  if (command)
    return element.replaceChildren(
      `${name}: run `,
      make("code", { class: "address", text: command }),
    );
  const address = addressOfFile(href);
  return element.replaceChildren(address ? make("a", { href: address, text: name }) : name);
}

/** The state of a training in words. */
function stateOf(training, now) {
  const { reused_from: earlier } = training;
  if (earlier) return `not trained: the inputs are those of the run ${earlier}, whose result this is`;
  const start = startOf(training);
  if (start === null) return training.running ? "starting" : "not started";
  const parts = training.running
    ? partsOfRunning(training, now - start)
    : partsOfEnded(training, start);
  const restarts = restartsOf(training);
  return (restarts ? [...parts, counted(restarts, "restart")] : parts).join(", ");
}

function partsOfRunning(training, seconds) {
  const left = timeLeft(training);
  const parts = [lastStep(training) ? progressOf(training) : "before its first step"];
  if (left !== null) parts.push(`${duration(left)} left`);
  return [...parts, `running for ${duration(seconds)}`];
}

function partsOfEnded(training, start) {
  const end = endOf(training);
  const last = training.marks.findLast(({ kind }) => kind === "end" || kind === "failure");
  const at = lastStep(training) ? `at ${progressOf(training)}` : "before its first step";
  const parts = [`ended ${moment(end)} ${at}`, `after ${duration(end - start)}`];
  return last?.text ? [...parts, last.text] : parts;
}

function progressOf(training) {
  const { steps } = training;
  const step = lastStep(training);
  return steps === null
    ? `step ${count(step)}`
    : `step ${count(step)} of ${count(steps)} (${percent(step / steps)})`;
}

/** Replicas that are restarted at the same time are one restart. */
const restartsOf = ({ goodput, marks }) =>
  goodput?.restarts ??
  new Set(marks.filter(({ kind }) => kind === "restart").map(({ at }) => at)).size;

function endOf({ marks, curves, lanes }) {
  const ends = lanes.flatMap(({ spans }) => spans.map(({ to }) => to ?? 0));
  return [...marks.map(({ at }) => at), ...curves.at, ...ends].reduce((a, b) => Math.max(a, b), 0);
}
