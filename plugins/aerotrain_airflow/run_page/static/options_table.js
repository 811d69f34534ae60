// The options in which the compared runs differ.

import { letterOf } from "./compare.js";
import { byId, make, makeTable, setText } from "./elements.js";
import { number } from "./words.js";

/** Show the options that differ between a training and those it is compared with. */
export function showOptions(training, others) {
  const area = byId("options");
  area.hidden = others.length === 0;
  if (!others.length) return;
  const all = [training, ...others].map(({ options }) => options ?? {});
  const names = [...new Set(all.flatMap(Object.keys))];
  const differing = names.filter((name) => new Set(all.map((each) => textOf(each[name]))).size > 1);
  const head = make("p", { class: "hint" });
  setText(
    head,
    differing.length ? "Options that differ" : "These runs have the same options, data and code.",
  );
  const heads = ["option", "this run", ...others.map(({ slot }) => letterOf(slot))];
  const rows = differing.map((name) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", text: name }),
      ...all.map((each) => make("td", { text: textOf(each[name]) })),
    ),
  );
  const table = makeTable("Options that differ", heads, make("tbody", {}, ...rows));
  area.replaceChildren(head, ...(differing.length ? [table] : []));
}

function textOf(value) {
  if (value === undefined) return "–";
  if (typeof value === "number") return number(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}
