// The legend of one chart: hides lines, and shows their values at the cursor.

import { letterOf } from "./compare.js";
import { each, make, setText } from "./elements.js";
import { title } from "./words.js";

export class ChartLegend {
  /** `toggled` is called with lines and whether to show them. */
  constructor(toggled) {
    this.toggled = toggled;
    this.hidden = new Set();
    this.items = [];
    this.element = make("ul", { class: "legend values" });
  }

  /** Have one item for each run, or, if no runs are compared, for each line with its band. */
  show(lines, slots) {
    const items = new Map();
    for (const line of lines) {
      const key = slots.length ? line.run : line.label;
      if (!items.has(key)) items.set(key, { key, ...nameOf(line, slots), lines: [] });
      items.get(key).lines.push(line);
    }
    this.items = [...items.values()];
    this.element.classList.toggle("compared", slots.length > 0);
    for (const item of this.items.filter(({ key }) => this.hidden.has(key)))
      this.toggled(item.lines, false);
  }

  /** Show the value of each line; `valueOf` gives its text. */
  showValues(valueOf) {
    const create = () => this.item();
    each(this.element, this.items, create, (item, { key, name, style, lines }) => {
      const button = item.firstElementChild;
      const [swatch, label, value] = button.children;
      button.setAttribute("aria-pressed", !this.hidden.has(key));
      swatch.className = `swatch ${style}`;
      setText(label, name);
      const shown = lines.filter(({ bound }) => !bound);
      setText(value, shown.map(valueOf).join(" / "));
    });
  }

  item() {
    const button = make("button", { type: "button" }, make("i"), make("bdi"), make("output"));
    const item = make("li", {}, button);
    button.addEventListener("click", () => {
      const { key, lines } = this.items[[...this.element.children].indexOf(item)];
      if (!this.hidden.delete(key)) this.hidden.add(key);
      button.setAttribute("aria-pressed", !this.hidden.has(key));
      this.toggled(lines, !this.hidden.has(key));
    });
    return item;
  }
}

function nameOf({ label, run, part }, slots) {
  if (!slots.length) return { name: title(label), style: part };
  if (run === 0) return { name: "this run", style: "own" };
  return { name: letterOf(slots[run - 1]), style: `run-${slots[run - 1]}` };
}
