// Numbers, durations and sizes as text.

const GROUPED = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
// Swedish is as Airflow writes times: "2026-11-26 22:28:01". They are those of the reader's zone.
const CLOCK = new Intl.DateTimeFormat("sv", { timeStyle: "medium" });
const MOMENT = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Four significant digits, at most. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-3)) return shortest(value.toExponential(2));
  return size >= 1000 ? GROUPED.format(Math.round(value)) : String(Number(value.toPrecision(4)));
}

const shortest = (text) =>
  text
    .replace(/\.?0+e/, "e")
    .replace("e+", "e")
    .replace("-", "−");

export const count = (value) => GROUPED.format(value);

/** A count in the room of an axis label: "5,000", "12.5M". */
export const compact = (value) => (value < 1e6 ? GROUPED : COMPACT).format(value);

export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

export function percent(share) {
  if (share === null || share === undefined) return "–";
  const digits = share !== 0 && share < 0.1 ? 1 : 0;
  return `${(share * 100).toFixed(digits)} %`;
}

/** The two largest units of a duration in seconds: "2 h 5 min", "3 min 20 s", "4.2 s". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds);
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  const shown = parts.slice(first, first + 2).filter(([amount]) => amount > 0);
  return shown.map(([amount, unit]) => `${count(amount)} ${unit}`).join(" ");
}

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  const power = size < 1024 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(size) / 10));
  return `${number(Number((size / 1024 ** power).toPrecision(3)))} ${UNITS[power]}`;
}

export const clock = (at) => CLOCK.format(at * 1000);

export const moment = (at) => MOMENT.format(at * 1000);

export const { timeZone } = MOMENT.resolvedOptions();

/** A name of the data as a title: "learning_rate" is "learning rate". */
export const title = (name) => TITLES.get(name) ?? name.replaceAll("_", " ");

const TITLES = new Map([
  ["input_wait", "share of time waiting for input"],
  ["communication", "share of time in communication"],
]);
