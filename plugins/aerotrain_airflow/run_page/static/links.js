// Links of the page open in a tab of their own: in Airflow's frame there is no way back from them.

/** The frame may open no tab, but the page of Airflow around it, which is of the same origin, may. */
export function openLinksInTabs() {
  if (window.parent === window) return; // then <base> of the page does it
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link) return;
    event.preventDefault();
    const outside = window.parent.document.createElement("a");
    Object.assign(outside, { href: link.href, target: "_blank", rel: "noopener" });
    outside.click();
  });
}
