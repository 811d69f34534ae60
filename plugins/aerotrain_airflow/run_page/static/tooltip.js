// One tooltip for the whole page, next to what the pointer is on.

import { each, make } from "./elements.js";

const box = make("div", { class: "tooltip", role: "tooltip", id: "tooltip", hidden: true });
document.body.append(box);

/** Show lines of text at a point of the window. */
export function showTooltip(lines, left, top) {
  each(box, lines, () => make("div"), (line, text) => {
    line.textContent = text;
  });
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const below = top + 14 + height > innerHeight;
  box.style.left = `${Math.max(4, Math.min(left + 12, innerWidth - width - 4))}px`;
  box.style.top = `${Math.max(4, below ? top - height - 10 : top + 14)}px`;
}

export function hideTooltip() {
  box.hidden = true;
}

/** Show the lines of the part under the pointer; `linesOf` gives null for other elements. */
export function describe(container, linesOf) {
  container.addEventListener("pointermove", ({ target, clientX, clientY }) => {
    const lines = linesOf(target);
    if (lines) showTooltip(lines, clientX, clientY);
    else hideTooltip();
  });
  container.addEventListener("pointerleave", hideTooltip);
}

addEventListener("scroll", hideTooltip, { passive: true });
