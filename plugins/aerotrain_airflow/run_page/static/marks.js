// What happened at one moment of a training: how it is drawn and described.

import { byId, each, make } from "./elements.js";
import { colour } from "./frame.js";
import { clock, count, duration } from "./words.js";

/** The dashes of the vertical line of each kind. Checkpoints are short, as there may be hundreds. */
const DASHES = {
  restart: [5, 3],
  resize: [9, 3],
  straggler: [2, 2],
  preemption: [1, 3],
  failure: [],
  end: [9, 3],
  checkpoint: [],
};
const SHORT = "checkpoint";
const SHORT_PIXELS = 8;

const classOf = (kind) => (kind in DASHES ? kind : "end");

/** Show each kind of mark with its number. */
export function showLegendOfMarks(marks) {
  const kinds = new Map();
  for (const { kind } of marks) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  each(byId("marks-legend"), [...kinds], () => make("li"), (item, [kind, amount]) => {
    item.replaceChildren(make("i", { class: `mark ${classOf(kind)}` }), `${kind} (${count(amount)})`);
  });
}

/** Draw marks as vertical lines of a chart: `places` are pairs of a mark and its x. */
export function drawMarks(chart, places) {
  const { ctx, bbox } = chart;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.lineWidth = ratio;
  for (const [mark, x] of places) {
    const left = Math.round(chart.valToPos(x, "x", true));
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    const kind = classOf(mark.kind);
    const height = kind === SHORT ? SHORT_PIXELS * ratio : bbox.height;
    ctx.strokeStyle = markColours[kind];
    ctx.setLineDash(DASHES[kind].map((length) => length * ratio));
    ctx.beginPath();
    ctx.moveTo(left, bbox.top + bbox.height - height);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

const markColours = {};

/** Read the colours of the theme. */
export function readMarkColours() {
  for (const kind of Object.keys(DASHES)) markColours[kind] = colour(`mark-${kind}`);
}

/** Lines of a tooltip: what happened, when, and at which step. */
export function linesOfMarks(marks, start) {
  const shown = marks.slice(0, 4).flatMap(({ kind, text, step, at }) => {
    const place = step === null ? "" : `, step ${count(step)}`;
    return [text || kind, `${kind}${place}, after ${duration(at - start)}, ${clock(at)}`];
  });
  return marks.length > 4 ? [...shown, `and ${marks.length - 4} more`] : shown;
}
