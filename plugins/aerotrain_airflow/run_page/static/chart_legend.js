// The legend of one chart: hides lines, and shows their values at the cursor.

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

  /** Have one item for each line with its band. */
  show(lines) {
    const items = new Map();
    for (const line of lines) {
      const { label, part } = line;
      if (!items.has(label)) items.set(label, { key: label, name: title(label), style: part, lines: [] });
      items.get(label).lines.push(line);
    }
    this.items = [...items.values()];
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
