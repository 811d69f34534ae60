// The goodput and a metric of the last runs of the DAG, one column each.

import { addressOfRun, names } from "./data.js";
import { byId, each, make, setText } from "./elements.js";
import { lineOf, partsOf } from "./goodput.js";
import { describe } from "./tooltip.js";
import { counted, duration, moment, number, percent, title } from "./words.js";

export class Trend {
  constructor() {
    this.heading = make("h3");
    this.columns = make("ol", { class: "columns" });
    this.metric = make("select", { onchange: () => this.draw() });
    this.choice = make("label", { class: "controls" }, "Metric of the evaluation", this.metric);
    this.dots = make("ol", { class: "columns dots", "aria-hidden": true });
    this.bounds = make("p", { class: "hint" });
    byId("trend").append(this.heading, this.columns, this.choice, this.dots, this.bounds);
    this.runs = new WeakMap(); // link: its run
    describe(byId("trend"), (element) => this.linesAt(element));
  }

  /** Show the runs that have trained a task. */
  show(trend, task) {
    this.trend = trend.filter((run) => run.task === task);
    byId("trend").hidden = this.trend.length === 0;
    const metrics = [...new Set(this.trend.flatMap((run) => Object.keys(run.metrics)))];
    this.choice.hidden = metrics.length === 0;
    each(
      this.metric,
      metrics,
      () => make("option"),
      (option, name) => {
        option.value = name;
        setText(option, title(name));
      },
    );
    setText(
      this.heading,
      this.trend.length === 1
        ? "The only run so far"
        : `The last ${counted(this.trend.length, "run")}`,
    );
    this.draw();
  }

  draw() {
    each(this.columns, this.trend, newColumn, (item, run) => {
      const link = item.firstElementChild;
      this.describeLink(link, run);
      each(
        link,
        run.goodput === null ? [] : partsOf(run).reverse(),
        () => make("i"),
        (element, part) => {
          element.className = part.style;
          element.style.flexGrow = part.share;
        },
      );
      link.classList.toggle("unknown", run.goodput === null);
    });
    this.drawMetric();
  }

  drawMetric() {
    const values = this.trend.map((run) => run.metrics[this.metric.value] ?? null);
    const known = values.filter((value) => value !== null);
    const least = known.reduce((a, b) => Math.min(a, b), Infinity);
    const most = known.reduce((a, b) => Math.max(a, b), -Infinity);
    this.dots.hidden = this.bounds.hidden = known.length === 0;
    setText(this.bounds, `${title(this.metric.value)}: from ${number(least)} to ${number(most)}`);
    each(this.dots, this.trend, newColumn, (item, run, index) => {
      const link = item.firstElementChild;
      this.describeLink(link, run);
      link.tabIndex = -1; // the column above leads to the same run
      each(
        link,
        values[index] === null ? [] : [values[index]],
        () => make("i"),
        (dot, value) => {
          dot.style.bottom = `${most > least ? ((value - least) / (most - least)) * 100 : 50}%`;
        },
      );
    });
  }

  describeLink(link, run) {
    link.href = addressOfRun(run.run_id);
    link.classList.toggle("this", run.run_id === names.run);
    link.setAttribute("aria-label", `${run.run_id}: goodput ${percent(run.goodput)}`);
    this.runs.set(link, run);
  }

  linesAt(element) {
    const run = this.runs.get(element.closest("a"));
    if (!run) return null;
    const parts = run.goodput === null ? ["goodput unknown"] : partsOf(run).map(lineOf);
    const metrics = Object.entries(run.metrics).map(
      ([name, value]) => `evaluated: ${title(name)} ${number(value)}`,
    );
    return [run.run_id, `${moment(run.at)}, ${duration(run.wall_seconds)}`, ...parts, ...metrics];
  }
}

const newColumn = () => make("li", {}, make("a"));
