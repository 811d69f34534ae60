// How far a training is, or was when it ended, in words.

import { lastStep, startOf, timeLeft } from "./series.js";
import { count, counted, duration, moment, percent } from "./words.js";

/** The state of a training: "ended 2026-11-26 22:28:01 at step 160 of 160 (100 %), after 15 s, 1 restart". */
export function stateOf(training, now) {
  const { reused_from: earlier } = training;
  if (earlier) return `not trained: the inputs are those of the run ${earlier}, whose result this is`;
  if (startOf(training) === null) return training.running ? "training starts" : "not started";
  const { running, suspended, to_suspend: wanted } = training;
  const parts = running ? partsOfRunning(training, now) : suspended ? [`suspended ${at(training)}`] : partsOfEnded(training);
  if (!training.ended && wanted !== suspended) parts.unshift(wanted ? "being suspended" : "being resumed");
  const restarts = restartsOf(training);
  return (restarts ? [...parts, counted(restarts, "restart")] : parts).join(", ");
}

function partsOfRunning(training, now) {
  const left = timeLeft(training);
  const parts = [lastStep(training) ? progressOf(training) : "before its first step"];
  if (left !== null) parts.push(`${duration(left)} left`);
  return [...parts, `running for ${duration(now - startOf(training))}`];
}

function partsOfEnded(training) {
  const end = endOf(training);
  return [`ended ${moment(end)} ${at(training)}`, `after ${duration(end - startOf(training))}`];
}

const at = (training) => (lastStep(training) ? `at ${progressOf(training)}` : "before its first step");

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
