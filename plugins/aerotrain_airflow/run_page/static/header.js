// The top of the page: the run, the state of each training in words, the files, and how fresh the data is.

import { addressOfFile, names } from "./data.js";
import { byId, each, make, setText } from "./elements.js";
import { lastStep, startOf, timeLeft } from "./series.js";
import { clock, count, counted, duration, moment, percent } from "./words.js";

const MOST_TASKS = 3;

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

  show({ state, failed_tasks: failed, trainings, files, now }, chosen) {
    const known = trainings.some(({ failure }) => failure);
    const failure = state === "failed" ? `. ${sentenceOfFailure(failed, known)}` : "";
    this.setStatus(`As of ${clock(now)}${failure}`, state === "failed");
    each(byId("trainings"), trainings, () => this.training(), (label, training) => {
      const [radio, name, state, failure] = label.children;
      radio.value = training.task;
      radio.checked = training.task === chosen;
      radio.hidden = trainings.length === 1;
      setText(name, training.task);
      setText(state, stateOf(training, now));
      setText(failure, training.failure ? `failed: ${training.failure}` : "");
    });
    byId("files").hidden = files.length === 0;
    each(byId("files"), files, () => make("span"), showFile);
    this.shownAt = now;
  }

  /** Say that there is no new data, and from when that is which is shown. */
  fail(message) {
    const shown = this.shownAt === null ? "" : ` This is the data of ${clock(this.shownAt)}.`;
    this.setStatus(`No new data: ${message}. The page tries again.${shown}`, true);
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
    return make("label", {}, radio, make("bdi"), make("span"), make("b", { class: "warn" }));
  }
}

/** That the run has failed, and where to read why; `known` is whether the page says why itself. */
function sentenceOfFailure(tasks, known) {
  const where = tasks.length ? ` in ${tasks.slice(0, MOST_TASKS).join(", ")}` : "";
  const more = tasks.length > MOST_TASKS ? " and others" : "";
  return `The run has failed${where}${more}${known ? "" : ": the log of the task says why"}`;
}

/** A link to a file, or a command or an address that the user copies. */
function showFile(element, { title, href, text }) {
  const key = JSON.stringify([title, href, text]);
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  if (text) element.replaceChildren(`${title}: `, make("code", { class: "address", text }));
  else element.replaceChildren(make("a", { href: addressOfFile(href), text: title }));
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
  const at = lastStep(training) ? `at ${progressOf(training)}` : "before its first step";
  return [`ended ${moment(end)} ${at}`, `after ${duration(end - start)}`];
}

function progressOf(training) {
  const { steps } = training;
  const step = lastStep(training);
  const whole = () => ` of ${count(steps)} (${percent(step / steps)})`;
  return `step ${count(step)}${steps === null ? "" : whole()}`;
}

/** As many as the legend of the marks has. */
const restartsOf = ({ marks }) => marks.filter(({ kind }) => kind === "restart").length;

function endOf({ marks, curves, lanes }) {
  const ends = lanes.flatMap(({ spans }) => spans.map(({ to }) => to ?? 0));
  return [...marks.map(({ at }) => at), ...curves.at, ...ends].reduce((a, b) => Math.max(a, b), 0);
}
