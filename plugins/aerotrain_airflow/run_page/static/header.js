// The top of the page: the outcome in one line, the run, how fresh the data is, and which trainings there are.

import { addressOfFile, names, suspend } from "./data.js";
import { byId, each, make, setText } from "./elements.js";
import { outcomeOf } from "./outcome.js";
import { stateOf } from "./progress.js";
import { startOf } from "./series.js";
import { clock, timeZone } from "./words.js";

export class Header {
  /** `choose` is called with the task of the training that the user wants to see, and `changed` after a
      change of its size. */
  constructor(choose, changed) {
    this.choose = choose;
    byId("suspend").onclick = ({ target }) => this.suspend(target).then(changed, (error) => this.fail(error.message));
    byId("title").replaceChildren(make("bdi", { text: names.dag }), ", run ", make("bdi", { text: names.run }));
    document.title = `${names.dag}: ${names.run}`;
    if (window.parent !== window)
      byId("own-page").replaceChildren(make("a", { href: location.href, text: "Open on its own page" }));
    byId("status").title = byId("progress").title = timeZone;
    this.shownAt = null;
  }

  show(data, chosen) {
    const { trainings, now } = data;
    const outcome = outcomeOf(chosen, data);
    setText(byId("outcome"), outcome.text);
    byId("outcome").classList.toggle("failed", outcome.failed);
    byId("card").hidden = outcome.card === null;
    if (outcome.card !== null) byId("card").href = addressOfFile(outcome.card);
    this.setStatus(`, as of ${clock(now)}`, false);
    const ended = chosen && !chosen.running && !chosen.suspended; // of others, the first line has it
    setText(byId("progress"), ended ? `${chosen.task} ${stateOf(chosen, now)}` : "");
    this.chosen = chosen;
    byId("size").hidden = !(data.active && data.may_change && chosen && !chosen.ended && startOf(chosen) !== null);
    byId("suspend").disabled = false;
    setText(byId("suspend"), chosen?.to_suspend ? "Resume" : "Suspend");
    byId("trainings").hidden = trainings.length < 2;
    each(byId("trainings"), trainings, () => this.training(), (label, training) => {
      const [radio, name, text] = label.children;
      radio.value = training.task;
      radio.checked = training.task === chosen.task;
      setText(name, training.task);
      setText(text, outcomeOf(training, data).text);
    });
    this.shownAt = now;
  }

  /** Say that there is no new data, and from when that is which is shown. */
  fail(message) {
    const shown = this.shownAt === null ? "" : ` This is the data of ${clock(this.shownAt)}.`;
    this.setStatus(`. No new data: ${message}. The page tries again.${shown}`, true);
  }

  setStatus(text, failed) {
    setText(byId("status"), text);
    byId("status").classList.toggle("failed", failed);
  }

  async suspend(button) {
    button.disabled = true; // until the next data
    await suspend(this.chosen.task, !this.chosen.to_suspend);
  }

  training() {
    const radio = make("input", {
      type: "radio",
      name: "training",
      onchange: () => this.choose(radio.value),
    });
    return make("label", {}, radio, make("bdi"), make("span"));
  }
}
