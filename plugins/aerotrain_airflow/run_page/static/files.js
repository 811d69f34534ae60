// The files of the run: links, and commands and addresses that the user copies.

import { addressOfFile } from "./data.js";
import { byId, each, make } from "./elements.js";

export function showFiles(files) {
  byId("files").hidden = files.length === 0;
  each(byId("files-list"), files, () => make("li"), showFile);
}

function showFile(element, { title, href, text }) {
  const key = JSON.stringify([title, href, text]);
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  if (text) element.replaceChildren(`${title}: `, make("code", { class: "address", text }));
  else element.replaceChildren(make("a", { href: addressOfFile(href), text: title }));
}
