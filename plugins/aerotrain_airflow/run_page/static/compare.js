// The choice of other runs of the DAG, whose curves are drawn over those of this one.

import { fetchCurves, names } from "./data.js";
import { byId, each, make, setText } from "./elements.js";
import { moment, number, title } from "./words.js";

/** A place of each run that can be shown at once: a colour and a letter. */
export const SLOTS = Array.from({ length: 10 }, (_, index) => index);

/** The letter of a run, by its slot. */
export const letterOf = (slot) => String.fromCharCode(65 + slot);

/** The chosen runs and their places, for as long as the tab is open. */
const KEY = `compared with ${names.dag}/${names.run}`;

export class Compare {
  /** `changed` is called after the chosen runs have changed. */
  constructor(changed) {
    this.changed = changed;
    this.slots = new Map(); // run id: slot
    this.curves = new Map(); // run id: trainings
    this.message = make("p", { class: "hint" });
    this.list = make("ul", { class: "runs" });
    byId("compare").append(
      make("summary", { text: "Compare with other runs" }),
      this.message,
      this.list,
    );
    setText(
      this.message,
      `Up to ${SLOTS.length} runs, the newest first. They are drawn over steps.`,
    );
  }

  /** Offer the runs of the trend that have trained the same task, and show those chosen before the
      page was loaded again. */
  offer(trend, task) {
    const first = this.runs === undefined;
    this.runs = trend.filter((run) => run.task === task && run.run_id !== names.run).reverse();
    byId("compare").hidden = this.runs.length === 0;
    if (first) this.slots = new Map(JSON.parse(sessionStorage.getItem(KEY) ?? "[]"));
    this.showList();
    if (first && this.slots.size) this.showCurves();
  }

  showList() {
    const full = this.slots.size === SLOTS.length;
    each(
      this.list,
      this.runs,
      () => this.item(),
      (item, run) => {
        const [box, swatch, name, facts] = item.firstElementChild.children;
        const slot = this.slots.get(run.run_id);
        box.value = run.run_id;
        box.checked = slot !== undefined;
        box.disabled = full && slot === undefined;
        swatch.className = slot === undefined ? "swatch" : `swatch run-${slot}`;
        setText(swatch, slot === undefined ? "" : letterOf(slot));
        setText(name, run.run_id);
        setText(facts, factsOf(run));
      },
    );
  }

  /** The chosen runs also stand outside of the list, which may be closed; a click removes one. */
  showChosen() {
    const chosen = [...this.slots].sort(([, a], [, b]) => a - b);
    byId("compared").hidden = chosen.length === 0;
    const create = () => {
      const button = make("button", {
        type: "button",
        title: "remove",
        onclick: () => this.choose(button.value, false),
      });
      button.append(make("b"), make("bdi"), make("span", { text: "×" }));
      return make("li", {}, button);
    };
    each(byId("compared"), chosen, create, ({ firstElementChild: button }, [run, slot]) => {
      const [swatch, name] = button.children;
      button.value = run;
      swatch.className = `swatch run-${slot}`;
      setText(swatch, letterOf(slot));
      setText(name, run);
    });
  }

  item() {
    const box = make("input", {
      type: "checkbox",
      onchange: () => this.choose(box.value, box.checked),
    });
    return make(
      "li",
      {},
      make(
        "label",
        {},
        box,
        make("b", { class: "swatch" }),
        make("bdi"),
        make("span", { class: "quiet" }),
      ),
    );
  }

  async choose(run, chosen) {
    if (chosen)
      this.slots.set(
        run,
        SLOTS.find((slot) => ![...this.slots.values()].includes(slot)),
      );
    else this.forget(run);
    sessionStorage.setItem(KEY, JSON.stringify([...this.slots]));
    this.showList();
    await this.showCurves();
  }

  async showCurves() {
    this.showChosen();
    await this.fetch();
    this.changed();
  }

  /** The run may still train: its curves are read again if it is chosen again. */
  forget(run) {
    this.slots.delete(run);
    this.curves.delete(run);
  }

  async fetch() {
    const missing = [...this.slots.keys()].filter((run) => !this.curves.has(run));
    if (!missing.length) return;
    try {
      const { runs } = await fetchCurves(missing);
      for (const { run_id: run, trainings } of runs) this.curves.set(run, trainings);
      setText(this.message, "");
    } catch (error) {
      setText(this.message, `The curves could not be read: ${error.message}.`);
    }
  }

  /** The chosen runs that have curves of a task: [{slot, options, curves, epochs, evaluations}]. */
  chosen(task) {
    const found = [...this.slots].map(([run, slot]) => {
      const training = this.curves.get(run)?.find((each) => each.task === task);
      if (!training) return null;
      const { options, curves, epochs, evaluations } = training;
      return { slot, options, curves, epochs, evaluations };
    });
    return found.filter(Boolean).sort((a, b) => a.slot - b.slot);
  }
}

function factsOf({ at, metrics }) {
  const shown = Object.entries(metrics).slice(0, 3);
  const values = shown.map(([name, value]) => `${title(name)} ${number(value)}`).join(", ");
  return values ? `${moment(at)} · evaluated: ${values}` : moment(at);
}
