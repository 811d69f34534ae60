// One chart of the curves: a uPlot and its legend, in a figure of fixed height.

import { HEIGHT, optionsOf, textOf } from "./chart_options.js";
import { make, setText } from "./elements.js";
import { Legend } from "./legend.js";
import { drawMarks, linesOfMarks } from "./marks.js";
import { hideTooltip, showTooltip } from "./tooltip.js";
import { title } from "./words.js";

const { uPlot } = window;

const MARK_PIXELS = 4;
const NULLS_ARE_GAPS = 2; // uPlot's NULL_EXPAND: a gap up to both neighbours of the same line

/** `page` is the Curves that the chart belongs to: it has the axis, the range of x that is shown, the
    marks and the colours, and hears of a zoom and of the cursor. */
export class Chart {
  constructor(page) {
    this.page = page;
    this.caption = make("figcaption");
    const plot = { class: "plot", role: "img", "aria-describedby": "curves-hint" };
    this.plot = make("div", plot);
    const list = make("ul", { class: "legend values" });
    this.legend = new Legend(list, (label, show) => this.toggle(label, show));
    this.element = make("figure", { class: "chart" });
    this.element.append(this.caption, this.plot, this.legend.element);
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  /** Show the lines of a chart, {name, lines}; only new values if the lines are the same ones. */
  show({ name, lines }) {
    const { axis } = this.page;
    if (name !== this.name) this.legend.hidden.clear();
    this.name = name;
    this.lines = lines;
    const labels = lines.map(({ label, bound }) => [label, bound]);
    const shape = JSON.stringify([name, axis, labels]);
    if (shape === this.shape) {
      this.chart.setData(this.table(), false);
      this.rescale();
    } else {
      this.shape = shape;
      this.chart?.destroy();
      this.chart = this.draw();
      for (const label of this.legend.hidden) this.toggle(label, false);
    }
    setText(this.caption, title(name));
    this.plot.setAttribute("aria-label", `${title(name)} over ${axis}`);
    this.showValues();
  }

  draw() {
    const listen = ({ over }) => {
      over.addEventListener("pointermove", (event) => this.describeMarks(event));
      over.addEventListener("pointerleave", hideTooltip);
    };
    const hooks = {
      drawAxes: [(chart) => drawMarks(chart, this.page.places)],
      setCursor: [() => this.showValues()],
      setSelect: [(chart) => this.select(chart)],
      ready: [listen],
    };
    return new uPlot({ ...optionsOf(this, this.page), hooks }, this.table(), this.plot);
  }

  /** The values of all lines over the x of all lines. */
  table() {
    const tables = this.lines.map(({ x, values }) => [x, values]);
    const gaps = tables.map(() => [NULLS_ARE_GAPS, NULLS_ARE_GAPS]);
    return uPlot.join(tables, gaps);
  }

  /** Show the values at the cursor, or the last ones; a band has none of its own. */
  showValues() {
    if (!this.chart) return; // uPlot has not returned yet
    const { cursor, data } = this.chart;
    const inside = cursor.left >= 0;
    const items = new Map();
    this.lines.forEach(({ label, part, bound }, index) => {
      if (bound) return;
      const column = data[index + 1];
      const last = () => column.findLastIndex((value) => value != null);
      const text = textOf(this.name)(column[inside ? cursor.idxs[index + 1] : last()]);
      const value = items.has(label) ? `${items.get(label).value} / ${text}` : text;
      items.set(label, { key: label, name: title(label), style: `swatch ${part}`, value });
    });
    this.legend.show([...items.values()]);
    this.page.showPosition(inside ? this.chart.posToVal(cursor.left, "x") : null);
  }

  /** Show or hide a line with its band. */
  toggle(label, show) {
    this.chart.batch(() =>
      this.lines.forEach((line, index) => {
        if (line.label === label) this.chart.setSeries(1 + index, { show });
      }),
    );
  }

  describeMarks(event) {
    const { chart, page } = this;
    const near = ([, x]) => Math.abs(chart.valToPos(x, "x") - event.offsetX) <= MARK_PIXELS;
    const found = page.places.filter(near).map(([mark]) => mark);
    if (found.length) showTooltip(linesOfMarks(found, page.start), event.clientX, event.clientY);
    else hideTooltip();
  }

  /** Zoom to what has been selected by dragging. */
  select(chart) {
    const { left, width } = chart.select;
    if (width < 5) return;
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.page.zoom({ min: chart.posToVal(left, "x"), max: chart.posToVal(left + width, "x") });
  }

  resize() {
    const width = this.plot.clientWidth;
    const changed = this.chart && width && width !== this.chart.width;
    if (changed) this.chart.setSize({ width, height: HEIGHT });
  }

  /** Draw the range of x that the page shows. */
  rescale() {
    this.chart.setScale("x", this.page.range);
  }

  redraw() {
    this.chart.redraw(true, true);
  }

  remove() {
    this.chart.destroy();
    this.element.remove();
  }
}
