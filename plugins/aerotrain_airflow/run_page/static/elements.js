// Elements of the page. Text of the data is only ever set as text, never as markup.

/** A new element: `make("td", {class: "wide", text: name}, child, …)`. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** A table that scrolls sideways if it is wider than the page, with a name for screen readers. */
export function makeTable(name, heads, body) {
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col", text })));
  const table = make("table", {}, make("thead", {}, head), body);
  return make("div", { class: "table", tabindex: 0, role: "group", "aria-label": name }, table);
}

/** A row of a table: a name, a bar, and so many cells. */
export function makeRow(bar, cells) {
  const name = make("th", { scope: "row" }, make("bdi"));
  const others = Array.from({ length: cells }, () => make("td"));
  return make("tr", {}, name, make("td", { class: "bar" }, bar), ...others);
}

/** Keep one child per item: existing ones are updated in place, so that focus and hover remain. */
export function each(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => {
    if (index === parent.children.length) parent.append(create());
    update(parent.children[index], item, index);
  });
}

/** Change the text of an element only if it differs: a screen reader announces each change. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A function that says whether a value differs from that of its last call. */
export function changes() {
  let last;
  return (value) => {
    const text = JSON.stringify(value);
    const changed = text !== last;
    last = text;
    return changed;
  };
}
