// The page of a run: fetches its data, and lets each section show what has changed.

import { Curves } from "./curves.js";
import { follow } from "./data.js";
import { byId, changes, setText } from "./elements.js";
import { showFiles } from "./files.js";
import { fitToScreen, followTheme, openLinksInTabs } from "./frame.js";
import { GoodputOfRun } from "./goodput.js";
import { Header } from "./header.js";
import { Replicas } from "./replicas.js";
import { startOf } from "./series.js";
import { StepTimes } from "./step_times.js";
import { Timeline } from "./timeline.js";

const curves = new Curves((range) => timeline.zoom(range));
const timeline = new Timeline();
const goodput = new GoodputOfRun();
const replicas = new Replicas();
const stepTimes = new StepTimes();
const header = new Header(choose, () => poll());

const curvesChanged = changes();

let data = null;
let task = new URLSearchParams(location.search).get("task");

function show(received) {
  data = received;
  const training = chosen();
  header.show(data, training);
  showFiles(data.files);
  showEmpty(training);
  if (!training) return;
  const { curves: during, epochs, evaluations } = training;
  if (curvesChanged([training.task, during, epochs, evaluations, training.marks]))
    curves.show(training);
  timeline.show(training, data.now);
  goodput.show(training.goodput);
  replicas.show(training.replicas, data.now);
  stepTimes.show(training.step_times, training.stragglers);
}

/** The training that the user wants to see: that of the address, or the first. */
function chosen() {
  return data.trainings.find((training) => training.task === task) ?? data.trainings[0];
}

/** Hide the sections that have nothing to show, and say why. */
function showEmpty(training) {
  const trained = Boolean(training && (training.curves.at.length || training.epochs.at.length));
  byId("curves").hidden = !trained;
  byId("timeline").hidden = !training?.lanes.length;
  byId("goodput").hidden = !training;
  byId("replicas").hidden = !training?.replicas.length;
  byId("empty").hidden = trained || !training;
  setText(byId("empty"), reasonOfEmpty(training));
}

function reasonOfEmpty(training) {
  const ended = training && !training.running && startOf(training) !== null;
  return ended ? "This training has no curves." : "Curves appear with the first step of this training.";
}

/** Show another training of the run. */
function choose(chosenTask) {
  task = chosenTask;
  const address = new URL(location.href);
  address.searchParams.set("task", task);
  history.replaceState(null, "", address);
  curves.zoom(null);
  show(data);
}

openLinksInTabs();
fitToScreen();
followTheme(() => curves.redraw());
const poll = follow(show, (message) => header.fail(message));
