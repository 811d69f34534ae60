// The addresses of a run, and its data, which is fetched for as long as the page is visible.

const [dag, run] = location.pathname.split("/").slice(-2);

/** The folder of all routes: {base}/aerotrain/. */
const ROOT = new URL("../../", location.href);

const RUNNING_SECONDS = 5;
const IDLE_SECONDS = 30;
const LONGEST_SECONDS = 120;
const TIMEOUT_SECONDS = 30;

const REASONS = {
  401: "you are no longer signed in: reload the page of Airflow",
  403: "you may not read this DAG",
  404: "this run does not exist",
  503: "the store has not answered yet",
};

export const fetchRun = () => get(`data/${dag}/${run}`);

/** Suspend a training of the run, or resume it. */
export const suspend = (task, suspended) =>
  get(`data/${dag}/${run}`, { method: "POST", body: new URLSearchParams({ task, suspended }) });

/** Whether a run may still change: Airflow runs it, or replicas report that they train. */
export const isActive = ({ active, trainings }) =>
  active || trainings.some(({ running }) => running);

/** The address of a file of the run. */
export const addressOfFile = (href) => new URL(href, ROOT).href;

export const names = { dag: decodeURIComponent(dag), run: decodeURIComponent(run) };

/** Fetch JSON, or send a change; the message of the error says why it failed. */
async function get(path, change = {}) {
  const signal = AbortSignal.timeout(TIMEOUT_SECONDS * 1000);
  let answer;
  try {
    answer = await fetch(new URL(path, ROOT), { signal, headers: { accept: "application/json" }, ...change });
  } catch (error) {
    const slow = error.name === "TimeoutError";
    throw new Error(slow ? `no answer within ${TIMEOUT_SECONDS} s` : "Airflow cannot be reached");
  }
  if (!answer.ok)
    throw new Error(REASONS[answer.status] ?? `Airflow answered with ${answer.status}`);
  if (answer.status === 204) return null;
  try {
    return await answer.json();
  } catch {
    throw new Error("the answer of Airflow is not JSON");
  }
}

/** Call `show` with the data of the run, again and again: soon while something runs, later if not, and
    with growing delays, and `fail`, after errors, those of `show` too. Nothing is fetched while the page is
    hidden. Returns a function that fetches at once. */
export function follow(show, fail) {
  let errors = 0;
  let timer = null;
  let fetching = false;
  const next = (seconds) => {
    clearTimeout(timer);
    timer = document.hidden ? null : setTimeout(poll, seconds * 1000);
  };
  async function poll() {
    if (fetching) return;
    fetching = true;
    let seconds = IDLE_SECONDS;
    try {
      const data = await fetchRun();
      if (isActive(data)) seconds = RUNNING_SECONDS;
      show(data);
      errors = 0;
    } catch (error) {
      errors += 1;
      seconds = Math.min(LONGEST_SECONDS, RUNNING_SECONDS * 2 ** errors);
      fail(error.message);
    } finally {
      fetching = false;
      next(seconds);
    }
  }
  document.addEventListener("visibilitychange", () => next(0));
  poll();
  return poll;
}
