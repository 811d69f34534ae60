// A legend whose items hide and show what they name.

import { each, make, setText } from "./elements.js";

export class Legend {
  /** `toggled` is called with the key of an item, and whether it is shown. */
  constructor(element, toggled) {
    this.element = element;
    this.toggled = toggled;
    this.hidden = new Set();
  }

  /** Show items, {key, name, style, value}. */
  show(items) {
    each(this.element, items, () => this.item(), (item, { key, name, style, value = "" }) => {
      const button = item.firstElementChild;
      const [swatch, label, output] = button.children;
      button.dataset.key = key;
      button.setAttribute("aria-pressed", !this.hidden.has(key));
      swatch.className = style;
      setText(label, name);
      setText(output, value);
    });
  }

  item() {
    const onclick = ({ currentTarget: button }) => {
      const { key } = button.dataset;
      if (!this.hidden.delete(key)) this.hidden.add(key);
      button.setAttribute("aria-pressed", !this.hidden.has(key));
      this.toggled(key, !this.hidden.has(key));
    };
    const parts = [make("i"), make("bdi"), make("output")];
    return make("li", {}, make("button", { type: "button", onclick }, ...parts));
  }
}
