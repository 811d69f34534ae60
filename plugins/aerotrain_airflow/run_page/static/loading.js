// Says that a script of the page could not be loaded, and loads the page again. It is no module, so that it
// runs before all others.

const RELOAD_SECONDS = 10;

function reload() {
  const status = document.getElementById("status");
  status.textContent = `A part of this page could not be loaded. The page tries again in ${RELOAD_SECONDS} s.`;
  status.classList.add("failed");
  setTimeout(() => location.reload(), RELOAD_SECONDS * 1000);
}

/** Errors of elements do not bubble, but are seen on their way down. */
addEventListener(
  "error",
  ({ target }) => {
    if (!(target instanceof HTMLScriptElement)) return;
    if (document.readyState !== "loading") reload();
    else addEventListener("DOMContentLoaded", reload, { once: true });
  },
  true,
);
