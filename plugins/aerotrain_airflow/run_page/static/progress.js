// How far each training of the run is, or was when it ended.

import { byId, each, make, setText } from "./elements.js";
import { lastStep, startOf, timeLeft } from "./series.js";
import { count, counted, duration, moment, percent } from "./words.js";

export class Progress {
  show({ trainings, now }) {
    each(byId("progress-lines"), trainings, newLine, (line, training) => {
      const [name, state, failure] = line.children;
      setText(name, training.task);
      setText(state, stateOf(training, now));
      setText(failure, training.failure ? `failed: ${training.failure}` : "");
    });
  }
}

const newLine = () => make("p", {}, make("bdi"), " ", make("span"), " ", make("b", { class: "warn" }));

/** The state of a training in words. */
function stateOf(training, now) {
  const { reused_from: earlier } = training;
  if (earlier) return `not trained: the inputs are those of the run ${earlier}, whose result this is`;
  if (startOf(training) === null && !training.running) return "not started";
  const parts = training.running ? partsOfRunning(training, now) : partsOfEnded(training);
  const restarts = restartsOf(training);
  return (restarts ? [...parts, counted(restarts, "restart")] : parts).join(", ");
}

export function partsOfRunning(training, now) {
  const start = startOf(training);
  if (start === null) return ["training starts"];
  const left = timeLeft(training);
  const parts = [lastStep(training) ? progressOf(training) : "before its first step"];
  if (left !== null) parts.push(`${duration(left)} left`);
  return [...parts, `running for ${duration(now - start)}`];
}

function partsOfEnded(training) {
  const end = endOf(training);
  const at = lastStep(training) ? `at ${progressOf(training)}` : "before its first step";
  return [`ended ${moment(end)} ${at}`, `after ${duration(end - startOf(training))}`];
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
