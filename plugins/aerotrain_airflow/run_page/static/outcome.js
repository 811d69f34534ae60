// The first line of the page: what has come of a training, or why the run has failed, in one sentence.

import { stateOf } from "./progress.js";
import { number, title } from "./words.js";

const MOST_TASKS = 3;

/** The sentence about a training of a run, which may be undefined: {text, failed, card}. */
export function outcomeOf(training, data) {
  const { evaluation, version, served } = training?.outcome ?? { evaluation: null, version: null };
  const refused = evaluation !== null && !evaluation.passed;
  const failed = data.state === "failed";
  const parts = [];
  if (refused) parts.push(`Refused by the gate: ${evaluation.reason}`);
  else if (failed) parts.push(failureOf(data, training));
  if (evaluation) parts.push(`${measured(evaluation)}${refused ? "" : ": accepted by the gate"}`);
  else if (!failed) parts.push(withoutEvaluation(training, data));
  if (version !== null) parts.push(`version ${version}, ${served ? "served" : "not served"}`);
  else if (evaluation) parts.push(data.active && !refused ? "not exported so far" : "not exported");
  return { text: parts.join("; "), failed: failed || refused, card: evaluation?.card ?? null };
}

/** "accuracy 0.9641 (95 %: 0.944 to 0.979) against 0.958 of version 3". */
function measured({ metric, value, interval, compared }) {
  const bounds = interval ? ` (95 %: ${interval.map(number).join(" to ")})` : "";
  const where = compared?.same_data ? "" : " on other data";
  const against = compared ? ` against ${number(compared.value)} of version ${compared.version}${where}` : "";
  return `${title(metric)} ${number(value)}${bounds}${against}`;
}

function withoutEvaluation(training, { active, now }) {
  if (!training) return active ? "No task has begun a training so far" : "This run has no training";
  if (training.running || training.suspended) return `Not evaluated so far: ${stateOf(training, now)}`;
  if (active && training.failure) return `The last attempt has failed: ${training.failure}`;
  return active ? "Not evaluated so far" : "Not evaluated: no task of this run has measured this model";
}

/** The reason of the training, or of the first task that has failed, as its log says it. */
function failureOf({ failed_tasks: tasks, reasons }, training) {
  const reason = training?.failure || reasons[0];
  if (reason) return reason.split("\n")[0];
  const where = tasks.slice(0, MOST_TASKS).join(", ");
  return `The run has failed${where ? ` in ${where}: the log of the task says why` : ""}`;
}
