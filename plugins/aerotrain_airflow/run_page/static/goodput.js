// The goodput of a run: its wall time by purpose.

import { byId, each, make, setText } from "./elements.js";
import { counted, duration, percent } from "./words.js";

const USEFUL = "useful training";
const CAUSES = ["start-up", "recovery", "save stall", "rework", "lost work", "other"];

/** The parts of a run's wall time, {name, color, seconds, share}: useful training, then what was lost. Their
    ends are rounded to a tenth of a per cent, so that the shares add up to all of it. */
function partsOf({ goodput, wall_seconds: wall, lost_seconds: lost }) {
  let end = 0;
  const thousandths = () => (wall ? Math.round((1000 * end) / wall) : 0);
  const part = (name, color, seconds) => {
    const begin = thousandths();
    end += seconds;
    return { name, color, seconds, share: (thousandths() - begin) / 1000 };
  };
  const causes = Object.entries(lost).filter(([, seconds]) => seconds > 0);
  const color = (cause) =>
    `var(--lost-${CAUSES.includes(cause) ? CAUSES.indexOf(cause) : CAUSES.length - 1})`;
  const useful = part(USEFUL, "var(--useful)", goodput * wall);
  return [useful, ...causes.map(([cause, seconds]) => part(cause, color(cause), seconds))];
}

const lineOf = ({ name, seconds, share }) =>
  `${name}: ${duration(seconds)} (${(100 * share).toFixed(1)} %)`;

export class GoodputOfRun {
  constructor() {
    this.sentence = make("p");
    this.bar = make("div", { class: "stack", role: "img" });
    this.list = make("ul", { class: "legend" });
    byId("goodput-run").append(this.sentence, this.bar, this.list);
  }

  show(goodput) {
    const known = goodput !== null && goodput.goodput !== null;
    const unknown = "This run has no goodput so far: no step that counts has been recorded.";
    setText(this.sentence, known ? sentenceOf(goodput) : unknown);
    const parts = known ? partsOf(goodput) : [];
    this.bar.hidden = !known;
    this.bar.setAttribute("aria-label", parts.map(lineOf).join(", "));
    each(this.bar, parts, () => make("i"), (element, part) => {
      element.style.background = part.color;
      element.style.flexGrow = part.share;
    });
    each(this.list, parts, () => make("li", {}, make("i", { class: "swatch" }), make("span")), (item, part) => {
      item.firstElementChild.style.background = part.color;
      setText(item.lastElementChild, lineOf(part));
    });
  }
}

/** What the attempts that have ended took of cores, and what that cost; empty while none has. */
function costOf({ core_hours: hours, cost }) {
  const roles = Object.entries(hours ?? {});
  if (!roles.length) return "";
  const all = roles.reduce((sum, [, taken]) => sum + taken, 0);
  const each = roles.map(([role, taken]) => `${role} ${taken.toFixed(2)}`).join(", ");
  const price = cost === null || cost === undefined ? "" : `, at a cost of ${cost.toFixed(2)}`;
  return ` ${all.toFixed(2)} core hours (${each})${price}.`;
}

function sentenceOf(run) {
  const { goodput, wall_seconds: wall, steps, steps_twice: twice, restarts } = run;
  const repeated = twice ? `, ${counted(twice, "step")} done twice` : "";
  const done = `${counted(steps, "step")}${repeated}, ${counted(restarts, "restart")}`;
  return `${percent(goodput)} of ${duration(wall)}: ${done}.${costOf(run)}`;
}
