// What uPlot needs to know of one chart: its scales, axes, series and cursor.

import { INCREMENTS } from "./time_axis.js";
import { compact, duration, number, percent } from "./words.js";

const { uPlot } = window;

export const HEIGHT = 190;
const AXIS_WIDTH = 60;
const AXIS_HEIGHT = 28;
const HALF_LABEL = 34; // of the x axis, as "23 h 59 min", beyond its last tick
const FONT = "11px system-ui, sans-serif";

/** Values between 0 and 1. */
const SHARES = ["input_wait", "communication"];

/** The text of a value of a chart. */
export const textOf = (name) => (SHARES.includes(name) ? percent : number);

/** The options of a chart, {name, lines, plot}, of a page: see Chart. */
export function optionsOf({ name, lines, plot }, page) {
  const { colours } = page;
  return {
    width: plot.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, HALF_LABEL, 0, 0],
    scales: {
      x: { time: false, range: () => [page.range.min, page.range.max] },
      y: scaleOf(name),
    },
    axes: [axisOfX(page), axisOfY(name, colours)],
    series: [{}, ...lines.map((line) => seriesOf(line, page))],
    bands: bandsOf(lines, colours),
    cursor: cursorOf(page),
  };
}

function scaleOf(name) {
  if (SHARES.includes(name)) return { range: [0, 1] };
  const zero = name === "examples_per_second" ? { soft: 0, mode: 1 } : { mode: 0 };
  const ends = { min: { pad: 0.1, ...zero }, max: { pad: 0.1, mode: 0 } };
  return { range: (_, min, max) => (min === null ? [0, 1] : uPlot.rangeNum(min, max, ends)) };
}

function axisOfX({ axis, colours }) {
  const step = (value) => (Number.isInteger(value) ? compact(value) : "");
  const own =
    axis === "step"
      ? { values: (_, splits) => splits.map(step), space: 70 }
      : { values: (_, splits) => splits.map(duration), space: 90, incrs: INCREMENTS };
  return { ...lookOf(colours), size: AXIS_HEIGHT, ...own };
}

function axisOfY(name, colours) {
  const text = textOf(name);
  const values = (_, splits) => splits.map((value) => (value === null ? "" : text(value)));
  return { ...lookOf(colours), size: AXIS_WIDTH, values };
}

function lookOf(colours) {
  const line = { stroke: () => colours.line, width: 1 };
  return { stroke: () => colours.quiet, font: FONT, grid: line, ticks: { ...line, size: 4 } };
}

function seriesOf({ part, bound, epochs }, { colours }) {
  const stroke = () => colours[part];
  // A metric may be missing in an epoch: validation may be every fifth, for example.
  const spanGaps = Boolean(epochs);
  // The band alone does not show an extreme of a single point.
  if (bound) return { stroke, spanGaps, width: 0.5, points: { show: false } };
  return {
    stroke,
    spanGaps,
    width: 1.5,
    points: { size: epochs ? 5 : 3, fill: stroke },
  };
}

/** The bands between the extremes of points that stand for several. */
function bandsOf(lines, colours) {
  const place = ({ label }, bound) =>
    1 + lines.findIndex((each) => each.label === label && each.bound === bound);
  return lines
    .filter(({ bound }) => bound === "max")
    .map((line) => ({
      series: [place(line, "max"), place(line, "min")],
      fill: () => colours[line.part === "validation" ? "band-validation" : "band"],
    }));
}

function cursorOf(page) {
  return {
    y: false,
    drag: { x: true, y: false, setScale: false },
    sync: {
      key: "curves",
      scales: ["x", null],
      setSeries: false,
      filters: { pub: (type) => type === "mousemove" || type === "mouseleave" },
    },
    bind: { dblclick: () => () => page.zoom(null) },
    dataIdx: nearestValue,
    points: { size: 6 },
  };
}

/** The point of a line that is nearest to that under the cursor and has a value. */
function nearestValue(chart, series, hovered) {
  const column = chart.data[series];
  for (let distance = 0; distance < column.length; distance += 1) {
    if (column[hovered - distance] != null) return hovered - distance;
    if (column[hovered + distance] != null) return hovered + distance;
  }
  return null;
}
