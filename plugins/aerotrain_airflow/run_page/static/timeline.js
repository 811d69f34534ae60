// The timeline: one lane per replica with what it did when, and marks across all lanes.

import { byId, each, make, makeTable, setText } from "./elements.js";
import { linesOfMarks } from "./marks.js";
import { startOf } from "./series.js";
import { ticks } from "./time_axis.js";
import { describe } from "./tooltip.js";
import { clock, counted, duration } from "./words.js";

const STATES = ["waiting", "starting", "training", "lost", "repeated"];
const EVENT_HEADS = ["after", "step", "kind", "what happened"];
const ROOM_OF_A_TICK = 90;
const ROOM_OF_A_LABEL = 70;

export class Timeline {
  constructor() {
    this.window = null;
    this.lanes = make("div", { class: "lanes" });
    this.marks = make("div", { class: "marks" });
    this.ticks = make("div", { class: "ticks", "aria-hidden": true });
    const area = make("div", { class: "timeline", role: "group", "aria-label": "Lanes" });
    area.append(this.lanes, this.marks, this.ticks);
    byId("lanes").append(area);
    this.parts = new WeakMap(); // element: the lines of its tooltip
    describe(area, (element) => this.parts.get(element) ?? null);
    new ResizeObserver(() => this.draw()).observe(area);
    each(byId("states-legend"), STATES, () => make("li"), (item, state) => {
      item.replaceChildren(make("i", { class: `swatch ${state}` }), state);
    });
    this.events = make("tbody");
    this.summary = make("summary");
    byId("events").append(this.summary, makeTable("Events", EVENT_HEADS, this.events));
  }

  /** Show a training as it was at `now`. */
  show(training, now) {
    this.training = training;
    this.now = now;
    this.draw();
    this.showEvents();
  }

  /** Show a range only, {from, to} in seconds since 1970; null is everything. */
  zoom(window) {
    this.window = window;
    this.draw();
  }

  draw() {
    if (!this.training || !this.lanes.isConnected) return;
    const { lanes, marks } = this.training;
    const { from, to } = this.window ?? this.everything();
    const share = (at) => `${((at - from) / (to - from)) * 100}%`;
    this.lanes.classList.toggle("many", lanes.length > 12);
    each(this.lanes, lanes, newLane, (lane, { replica, spans }) => {
      const [name, track] = lane.children;
      setText(name, replica);
      name.title = replica;
      each(track, spans, newSpan, (element, span) => {
        const end = span.to ?? this.now;
        element.hidden = end < from || span.from > to;
        element.className = `span ${STATES.includes(span.state) ? span.state : "waiting"}`;
        element.style.left = share(Math.max(from, span.from));
        element.style.right = `calc(100% - ${share(Math.min(to, end))})`;
        const lines = this.linesOf(replica, span);
        this.parts.set(element, lines);
        element.setAttribute("aria-label", lines.join(", "));
      });
    });
    const visible = marks.filter(({ at }) => at >= from && at <= to);
    each(this.marks, visible, () => make("i"), (element, mark) => {
      element.className = `mark ${mark.kind}`;
      element.style.left = share(mark.at);
      this.parts.set(element, linesOfMarks([mark], this.start));
    });
    const width = this.marks.clientWidth;
    const most = Math.max(2, width / ROOM_OF_A_TICK);
    each(
      this.ticks,
      ticks(from - this.start, to - this.start, most),
      () => make("span"),
      (element, seconds) => {
        const at = this.start + seconds;
        const fits = ((to - at) / (to - from)) * width >= ROOM_OF_A_LABEL;
        setText(element, fits ? duration(seconds) : "");
        element.style.left = share(at);
      },
    );
  }

  everything() {
    const { lanes, marks } = this.training;
    this.start = startOf(this.training) ?? this.now;
    const ends = lanes.flatMap(({ spans }) => spans.map((span) => span.to ?? this.now));
    const to = [...ends, ...marks.map(({ at }) => at)].reduce(
      (a, b) => Math.max(a, b),
      this.start + 1,
    );
    return { from: this.start, to };
  }

  linesOf(replica, { from, to, state, text }) {
    const length = duration((to ?? this.now) - from);
    const until = to === null ? "now" : `${duration(to - this.start)} (${clock(to)})`;
    const when = `from ${duration(from - this.start)} (${clock(from)}) to ${until}`;
    return [`${replica}: ${state} for ${length}`, when, ...(text ? [text] : [])];
  }

  showEvents() {
    const { marks } = this.training;
    byId("events").hidden = marks.length === 0;
    setText(this.summary, counted(marks.length, "event"));
    each(
      this.events,
      marks,
      () => make("tr", {}, ...Array.from({ length: 4 }, () => make("td"))),
      (row, mark) => {
        const cells = [duration(mark.at - this.start), mark.step ?? "", mark.kind, mark.text];
        cells.forEach((text, index) => setText(row.children[index], String(text)));
      },
    );
  }
}

const newLane = () =>
  make("div", { class: "lane" }, make("bdi", { class: "name" }), make("div", { class: "track" }));

const newSpan = () => make("div", { class: "span", role: "img" });
