// The section of curves: all charts of a training, which share their x, their zoom and their cursor.

import { Chart } from "./chart.js";
import { byId, make, setText } from "./elements.js";
import { readMarkColours, showLegendOfMarks } from "./marks.js";
import { chartsOf, extent, startOf } from "./series.js";
import { colour } from "./frame.js";
import { count, duration } from "./words.js";

const COLOURS = ["text", "quiet", "line", "train", "validation", "band", "band-validation"];

export class Curves {
  /** `zoomed` is called with the shown range, in seconds since 1970, or null for all or an axis of steps. */
  constructor(zoomed) {
    this.zoomed = zoomed;
    this.axis = "step";
    this.zoomRange = null;
    this.range = { min: 0, max: 1 };
    this.charts = [];
    this.colours = {};
    this.places = [];
    this.addControls();
    this.readColours();
  }

  addControls() {
    const labels = ["step", "time"].map((axis) => {
      const checked = axis === this.axis;
      const onchange = () => this.chooseAxis(axis);
      const input = make("input", { type: "radio", name: "axis", value: axis, checked, onchange });
      return make("label", {}, input, axis === "step" ? "steps" : "time");
    });
    this.position = make("output", { class: "position" });
    byId("curves-controls").append(
      make("fieldset", {}, make("legend", { text: "Over" }), ...labels),
      this.position,
    );
  }

  /** Show the curves of a training. */
  show(training) {
    this.training = training;
    this.start = startOf(training);
    showLegendOfMarks(training.marks);
    this.draw();
  }

  draw() {
    const charts = chartsOf(this.axis, this.training);
    this.extent = extent(charts);
    this.places = this.placesOfMarks();
    this.range = this.zoomRange ?? this.extent;
    const area = byId("charts");
    while (this.charts.length > charts.length) this.charts.pop().remove();
    charts.forEach((each, index) => {
      if (index === this.charts.length) {
        this.charts.push(new Chart(this));
        area.append(this.charts[index].element);
      }
      this.charts[index].show(each);
    });
  }

  placesOfMarks() {
    const place = ({ step, at }) => (this.axis === "step" ? step : at - this.start);
    return this.training.marks.map((mark) => [mark, place(mark)]);
  }

  chooseAxis(axis) {
    this.axis = axis;
    this.zoomRange = null;
    this.draw();
    this.zoom(null);
  }

  /** Show a range of x in all charts; null is everything. */
  zoom(range) {
    this.zoomRange = range;
    this.range = range ?? this.extent;
    for (const chart of this.charts) chart.rescale();
    const inTime = this.axis === "time" && range !== null;
    this.zoomed(inTime ? { from: this.start + range.min, to: this.start + range.max } : null);
  }

  /** The x under the cursor; null if it is outside. */
  showPosition(x) {
    const place = () => (this.axis === "step" ? `step ${count(Math.round(x))}` : `after ${duration(x)}`);
    setText(this.position, x === null ? "" : place());
  }

  readColours() {
    for (const name of COLOURS) this.colours[name] = colour(name);
    readMarkColours();
  }

  /** Draw all charts with the colours of the theme. */
  redraw() {
    this.readColours();
    for (const chart of this.charts) chart.redraw();
  }
}
