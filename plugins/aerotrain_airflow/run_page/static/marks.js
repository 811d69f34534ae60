// What happened at one moment of a training: how it is drawn, and the legend that hides a kind of it.

import { colour } from "./theme.js";
import { each, make, setText } from "./elements.js";
import { clock, count, duration } from "./words.js";

/** The dashes of the vertical line of each kind. Checkpoints are short, as there may be hundreds. */
const DASHES = {
  restart: [5, 3],
  preemption: [1, 3],
  failure: [],
  end: [9, 3],
  checkpoint: [],
};
const SHORT = "checkpoint";
const SHORT_PIXELS = 8;

const classOf = (kind) => (kind in DASHES ? kind : "end");

/** The kinds that are hidden, and the legend in which they are chosen. */
export class MarksLegend {
  constructor(list, redraw) {
    this.list = list;
    this.redraw = redraw;
    this.hidden = new Set();
  }

  show(marks) {
    const kinds = new Map();
    for (const { kind } of marks) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
    each(this.list, [...kinds], () => this.item(), (item, [kind, amount]) => {
      const button = item.firstElementChild;
      button.dataset.kind = kind;
      button.setAttribute("aria-pressed", !this.hidden.has(kind));
      button.firstElementChild.className = `mark ${classOf(kind)}`;
      setText(button.lastElementChild, `${kind} (${count(amount)})`);
    });
  }

  item() {
    const toggle = ({ currentTarget: button }) => {
      const { kind } = button.dataset;
      if (!this.hidden.delete(kind)) this.hidden.add(kind);
      button.setAttribute("aria-pressed", !this.hidden.has(kind));
      this.redraw();
    };
    const button = make("button", { type: "button", onclick: toggle });
    button.append(make("i"), make("span"));
    return make("li", {}, button);
  }

  /** The marks of the kinds that are not hidden. */
  visible(marks) {
    return marks.filter(({ kind }) => !this.hidden.has(kind));
  }
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
  const shown = marks.slice(0, 4).flatMap((mark) => [
    mark.text || mark.kind,
    `${mark.kind}${mark.step === null ? "" : `, step ${count(mark.step)}`}, after ${duration(mark.at - start)}, ${clock(mark.at)}`,
  ]);
  return marks.length > 4 ? [...shown, `and ${marks.length - 4} more`] : shown;
}
