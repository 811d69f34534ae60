// One chart of the curves: a uPlot with its legend, which shows the values at the cursor.

import { each, make, setText } from "./elements.js";
import { drawMarks, linesOfMarks } from "./marks.js";
import { hideTooltip, showTooltip } from "./tooltip.js";
import { INCREMENTS } from "./time_axis.js";
import { compact, duration, number, percent, title } from "./words.js";

const { uPlot } = window;

const HEIGHT = 190;
const AXIS_WIDTH = 60;
const AXIS_HEIGHT = 28;
const FONT = "11px system-ui, sans-serif";
const MARK_PIXELS = 4;
const NULLS_ARE_GAPS = 2; // uPlot's NULL_EXPAND: a gap up to both neighbours, also among x of other lines

/** A chart in a figure of fixed height. `page` is the Curves that it belongs to: it has the axis, the
    range of x that is shown, the marks and the colours, and hears of a zoom and of the cursor. */
export class Chart {
  constructor(page) {
    this.page = page;
    this.hidden = new Set();
    this.caption = make("figcaption");
    this.plot = make("div", { class: "plot", tabindex: 0, role: "group", "aria-describedby": "curves-hint" });
    this.values = make("ul", { class: "legend values" });
    this.element = make("figure", { class: "chart" }, this.caption, this.plot, this.values);
    this.plot.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  /** Show the lines of a chart, {name, lines}; only new values if the lines are the same ones. */
  show({ name, lines }) {
    const { axis, logarithmic } = this.page;
    this.name = name;
    this.lines = [...lines].reverse(); // the run of the page is drawn last
    this.logarithmic = logarithmic && name === "loss";
    const same = JSON.stringify([name, axis, this.logarithmic, this.page.slots, lines.map((line) => [line.label, line.run])]);
    setText(this.caption, title(name));
    if (same === this.shape) {
      this.chart.setData(this.table(), false);
      this.rescale();
    } else {
      this.chart?.destroy();
      this.items = this.legendItems(lines);
      this.chart = new uPlot(this.options(), this.table(), this.plot);
      this.shape = same;
    }
    this.plot.setAttribute("aria-label", `${title(name)} over ${axis === "step" ? "steps" : "time"}`);
    this.showValues();
  }

  /** The values of all lines over the x of all lines. */
  table() {
    const positive = (value) => (value > 0 ? value : null);
    const tables = this.lines.map(({ x, values }) => [x, this.logarithmic ? values.map(positive) : values]);
    return uPlot.join(tables, tables.map(() => [NULLS_ARE_GAPS, NULLS_ARE_GAPS]));
  }

  options() {
    const { lines, page } = this;
    const at = (part) => 1 + lines.findIndex((line) => line.run === 0 && line.part === part);
    return {
      width: this.plot.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 24, 0, 0],
      scales: { x: { time: false, range: () => [page.range.min, page.range.max] }, y: this.scale() },
      axes: [this.axisOfX(), this.axisOfY()],
      series: [{}, ...lines.map((line) => this.series(line))],
      bands: at("max") && at("min") ? [{ series: [at("max"), at("min")], fill: () => page.colours.band }] : [],
      cursor: this.cursor(),
      hooks: {
        drawAxes: [(chart) => drawMarks(chart, page.places)],
        setCursor: [() => this.showValues()],
        setSelect: [(chart) => this.select(chart)],
        ready: [({ over }) => {
          over.addEventListener("pointermove", (event) => this.describeMarks(event));
          over.addEventListener("pointerleave", hideTooltip);
        }],
      },
    };
  }

  scale() {
    const unknown = (range) => (_, min, max) => (min === null ? [0.1, 1] : range(min, max));
    if (this.logarithmic) return { distr: 3, range: unknown((min, max) => uPlot.rangeLog(min, max, 10, false)) };
    if (this.name === "input_wait") return { range: [0, 1] };
    const soft = this.name === "examples_per_second" ? { soft: 0, mode: 1 } : { mode: 0 };
    return { range: unknown((min, max) => uPlot.rangeNum(min, max, { min: { pad: 0.1, ...soft }, max: { pad: 0.1, mode: 0 } })) };
  }

  axisOfX() {
    const { axis, colours } = this.page;
    const own = axis === "step"
      ? { values: (_, splits) => splits.map((step) => (Number.isInteger(step) ? compact(step) : "")), space: 70 }
      : { values: (_, splits) => splits.map(duration), space: 90, incrs: INCREMENTS };
    return { ...this.look(colours), size: AXIS_HEIGHT, ...own };
  }

  axisOfY() {
    const text = this.name === "input_wait" ? percent : number;
    const values = (_, splits) => splits.map((value) => (value === null ? "" : text(value)));
    return { ...this.look(this.page.colours), size: AXIS_WIDTH, values };
  }

  look(colours) {
    const line = { stroke: () => colours.line, width: 1 };
    return { stroke: () => colours.quiet, font: FONT, grid: line, ticks: { ...line, size: 4 } };
  }

  series({ label, run, part, epochs }) {
    const { colours, slots } = this.page;
    const bound = part === "min" || part === "max";
    const name = run > 0 ? `run-${slots[run - 1]}` : slots.length ? "text" : part === "validation" ? "validation" : "train";
    return {
      show: !this.hidden.has(this.keyOf({ label, run })),
      stroke: bound ? undefined : () => colours[name],
      spanGaps: Boolean(epochs), // a metric may be missing in an epoch: validation every fifth, for example
      width: bound ? 0 : run === 0 && slots.length ? 2 : 1.5,
      dash: part === "mean" || (slots.length && part === "validation") ? [6, 4] : undefined,
      points: bound ? { show: false } : { size: epochs ? 5 : 3, fill: () => colours[name] },
    };
  }

  cursor() {
    return {
      y: false,
      drag: { x: true, y: false, setScale: false },
      sync: {
        key: "curves",
        scales: ["x", null],
        setSeries: false,
        filters: { pub: (type) => type === "mousemove" || type === "mouseleave" },
      },
      bind: { dblclick: () => () => this.page.zoom(null) },
      dataIdx: nearestValue,
      points: { size: 6 },
    };
  }

  /** The lines of one legend item are shown and hidden together: those of a run, or a line with its band. */
  keyOf({ label, run }) {
    return this.page.slots.length ? run : label.replace(/_(min|max)$/, "");
  }

  legendItems(lines) {
    const items = new Map();
    for (const line of lines) {
      const key = this.keyOf(line);
      if (!items.has(key)) items.set(key, { key, name: this.nameOf(line), style: this.styleOf(line), lines: [] });
      items.get(key).lines.push(line);
    }
    return [...items.values()];
  }

  nameOf({ label, run }) {
    if (!this.page.slots.length) return title(label);
    return run === 0 ? "this run" : letterOf(this.page.slots[run - 1]);
  }

  styleOf({ run, part }) {
    if (run > 0) return `swatch run-${this.page.slots[run - 1]}`;
    return `swatch ${this.page.slots.length ? "own" : part}`;
  }

  /** The values at the cursor, or the last ones. */
  showValues() {
    if (!this.chart) return;
    const { cursor, data } = this.chart;
    const inside = cursor.left >= 0;
    const text = this.name === "input_wait" ? percent : number;
    const valueOf = (line) => {
      const index = 1 + this.lines.findIndex(({ label, run }) => label === line.label && run === line.run);
      const column = data[index];
      const point = inside ? cursor.idxs[index] : column.findLastIndex((value) => value != null);
      return text(column[point]);
    };
    each(this.values, this.items, () => this.legendItem(), (item, { key, name, style, lines }) => {
      const button = item.firstElementChild;
      const [swatch, label, value] = button.children;
      button.setAttribute("aria-pressed", !this.hidden.has(key));
      swatch.className = style;
      setText(label, name);
      const shown = lines.filter(({ part }) => part !== "min" && part !== "max");
      setText(value, shown.map(valueOf).join(" / "));
    });
    if (inside) this.page.showPosition(this.chart.posToVal(cursor.left, "x"));
    else this.page.showPosition(null);
  }

  legendItem() {
    const button = make("button", { type: "button" }, make("i"), make("bdi"), make("output"));
    const item = make("li", {}, button);
    button.addEventListener("click", () => this.toggle([...this.values.children].indexOf(item)));
    return item;
  }

  toggle(position) {
    const { key, lines } = this.items[position];
    if (!this.hidden.delete(key)) this.hidden.add(key);
    const show = !this.hidden.has(key);
    this.chart.batch(() => {
      this.lines.forEach((line, index) => {
        if (lines.some(({ label, run }) => label === line.label && run === line.run)) this.chart.setSeries(index + 1, { show });
      });
    });
    this.showValues();
  }

  describeMarks(event) {
    const { chart, page } = this;
    const near = ([, x]) => Math.abs(chart.valToPos(x, "x") - event.offsetX) <= MARK_PIXELS;
    const found = page.places.filter(near).map(([mark]) => mark);
    if (found.length) showTooltip(linesOfMarks(found, page.start), event.clientX, event.clientY);
    else hideTooltip();
  }

  select(chart) {
    const { left, width } = chart.select;
    if (width < 5) return;
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.page.zoom({ min: chart.posToVal(left, "x"), max: chart.posToVal(left + width, "x") });
  }

  press(event) {
    const { chart, page } = this;
    const { width, height } = chart.over.getBoundingClientRect();
    const left = chart.cursor.left >= 0 ? chart.cursor.left : width / 2;
    const moves = { ArrowLeft: -8, ArrowRight: 8, Home: -left, End: width - left };
    const factors = { "+": 0.5, "=": 0.5, "-": 2 };
    if (event.key in moves) {
      chart.setCursor({ left: Math.min(width, Math.max(0, left + moves[event.key])), top: height / 2 }, true, true);
    } else if (event.key in factors) {
      page.zoomAround(chart.posToVal(left, "x"), factors[event.key]);
    } else if (event.key === "Escape") {
      page.zoom(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  resize() {
    const width = this.plot.clientWidth;
    if (this.chart && width && width !== this.chart.width) this.chart.setSize({ width, height: HEIGHT });
  }

  /** Draw the range of x that the page shows. */
  rescale() {
    this.chart.setScale("x", this.page.range);
  }

  redraw() {
    this.chart.redraw(true, true);
  }

  remove() {
    this.chart?.destroy();
    this.element.remove();
  }
}

/** The letter of another run, by its slot. */
export const letterOf = (slot) => String.fromCharCode(65 + slot);

/** The point of a line that is nearest to that under the cursor and has a value. */
function nearestValue(chart, series, hovered) {
  const column = chart.data[series];
  for (let distance = 0; distance < column.length; distance += 1) {
    if (column[hovered - distance] != null) return hovered - distance;
    if (column[hovered + distance] != null) return hovered + distance;
  }
  return null;
}
