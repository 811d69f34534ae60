// What the page has to do with Airflow's page around its frame: colour scheme, links in tabs, and room.

const DARK = matchMedia("(prefers-color-scheme: dark)");
const SCHEMES = ["light", "dark"];

/** Apply the colour scheme of Airflow's UI, follow it, and call `redraw` after each change. */
export function followTheme(redraw) {
  const root = document.documentElement;
  const apply = () => {
    const scheme = currentScheme();
    if (root.style.colorScheme === scheme) return;
    root.style.colorScheme = scheme;
    redraw();
  };
  const outer = rootAround();
  if (outer)
    new MutationObserver(apply).observe(outer, { attributes: true, attributeFilter: ["class"] });
  addEventListener("storage", apply);
  DARK.addEventListener("change", apply);
  apply();
}

/** Airflow 3.3 uses next-themes: a class of the root element is "light" or "dark", and localStorage has
    the user's choice: "light", "dark" or "system". */
function currentScheme() {
  const outer = rootAround();
  const chosen = [...(outer?.classList ?? []), localStorage.getItem("theme")];
  return chosen.find((name) => SCHEMES.includes(name)) ?? (DARK.matches ? "dark" : "light");
}

/** The root element of the page around this frame; null if there is none of this origin. */
function rootAround() {
  if (parent === window) return null;
  try {
    return parent.document.documentElement;
  } catch {
    return null; // a page of another origin
  }
}

/** A colour of run.css as a canvas needs it, without variables and light-dark(). */
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

const LEAST_ROOM = 240; // in pixels, in which the page can be read

/** Use the visible part of the frame alone: on a narrow screen, Airflow's frame is wider than that, and
    scrolled with the tabs. Where it is too narrow, only the link to the page's own address is shown. */
export function fitToScreen() {
  const frame = rootAround() && window.frameElement;
  if (!frame) return;
  const fit = () => {
    const around = [];
    for (let each = frame; each; each = each.parentElement) around.push(each.getBoundingClientRect().left);
    const hidden = Math.max(...around) - around[0];
    const room = window.parent.innerWidth - Math.max(...around);
    Object.assign(document.body.style, { marginLeft: `${hidden}px`, maxWidth: `${room}px` });
    document.body.classList.toggle("cut", Math.min(room, frame.clientWidth - hidden) < LEAST_ROOM);
  };
  window.parent.addEventListener("resize", fit);
  window.parent.addEventListener("scroll", fit, { capture: true, passive: true });
  addEventListener("resize", fit);
  fit();
}

/** The frame may open no tab, but the page of Airflow around it, which is of the same origin, may. */
export function openLinksInTabs(links = "a[href]") {
  if (window.parent === window) return; // then <base> of the page does it
  document.addEventListener("click", (event) => {
    const link = event.target.closest(links);
    if (!link) return;
    event.preventDefault();
    const outside = window.parent.document.createElement("a");
    Object.assign(outside, { href: link.href, target: "_blank", rel: "noopener" });
    outside.click();
  });
}
