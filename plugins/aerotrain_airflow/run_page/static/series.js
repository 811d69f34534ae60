// Pure computations on the points of a training. A table is {at, step, values: {name: [...]}}.

const VALIDATION = "val_";

/** Larger numbers cannot be drawn: the ends of an axis would not be finite. */
const LARGEST = 1e100;

/** The indices of the points to draw over steps. If the step goes back after a restart, the earlier
    points from there on are superseded. */
export function currentPoints(step) {
  const kept = [];
  let next = Infinity;
  for (let index = step.length - 1; index >= 0; index -= 1) {
    if (step[index] !== null && step[index] < next) {
      next = step[index];
      kept.push(index);
    }
  }
  return kept.reverse();
}

/** The indices of the points to draw over time. */
export function pointsInTime(at) {
  return [...at.keys()].filter((index) => at[index] !== null).sort((a, b) => at[a] - at[b]);
}

/** The first moment of a training, in seconds since 1970; null before anything happened. */
export function startOf(training) {
  const moments = [training.curves.at[0], training.epochs.at[0], training.marks[0]?.at];
  moments.push(...training.lanes.map((lane) => lane.spans[0]?.from));
  const known = moments.filter((at) => at !== undefined && at !== null);
  return known.length ? Math.min(...known) : null;
}

/** A table with x (step, or seconds since the start) and those of its columns that can be drawn: values by
    name, and of those whose points stand for several the extremes, [least, greatest]. */
export function tableOver(axis, table, start) {
  const points = axis === "step" ? currentPoints(table.step) : pointsInTime(table.at);
  const shown = (column) => points.map((index) => drawable(column[index]));
  const values = new Map();
  const extremes = new Map();
  for (const [name, column] of Object.entries(table.values)) {
    if (shown(column).every((value) => value === null)) continue;
    values.set(name, shown(column));
    const [lowest, highest] = [table.lowest[name], table.highest[name]];
    if (lowest || highest) extremes.set(name, [lowest ?? column, highest ?? column].map(shown));
  }
  const x = points.map((index) => (axis === "step" ? table.step[index] : table.at[index] - start));
  return { x, values, extremes };
}

const columnsOf = ({ x, values, extremes }) =>
  [...values].map(([name, column]) => [name, x, column, extremes.get(name)]);

const drawable = (value) => (value === undefined || Math.abs(value) > LARGEST ? null : value);

/** The last step that counts: that of the curves, or of a checkpoint when all were preempted. */
export const lastStep = ({ curves, marks }) =>
  Math.max(curves.step.at(-1) ?? 0, ...marks.map(({ kind, step }) => (kind === "preemption" ? step : 0)));

/** Seconds until the planned end, at the pace since the last restart; null if unknown. */
export function timeLeft(training) {
  const { at, step } = training.curves;
  const last = step.length - 1;
  let first = last;
  while (first > 0 && last - first < 50 && step[first - 1] < step[first]) first -= 1;
  if (training.steps === null || last < 1 || first === last) return null;
  const pace = (at[last] - at[first]) / (step[last] - step[first]);
  return Math.max(0, (training.steps - step[last]) * pace);
}

/** The charts of a training. Each is {name, lines}; a line is {label, part, x, values}, where part is
    "train" or "validation". Of points that stand for several, two more lines have the extremes, with "min"
    and "max" as their bound. */
export function chartsOf(axis, training) {
  const charts = new Map();
  const start = startOf(training);
  const add = (name, line, extremes) => {
    if (!charts.has(name)) charts.set(name, { name, lines: [] });
    const { lines } = charts.get(name);
    lines.push(line);
    if (!extremes) return;
    ["min", "max"].forEach((bound, index) =>
      lines.push({ ...line, bound, values: extremes[index] }),
    );
  };
  const curves = tableOver(axis, training.curves, start);
  for (const [name, x, values, extremes] of columnsOf(curves))
    add(name, { label: name, part: "train", x, values }, extremes);
  const tables = [training.epochs, training.evaluations];
  for (const [name, x, values, extremes] of tables.flatMap((table) =>
    columnsOf(tableOver(axis, table, start)),
  )) {
    const validation = name.startsWith(VALIDATION);
    const metric = validation ? name.slice(VALIDATION.length) : name;
    if (!validation && curves.values.has(metric)) continue; // its last point of an epoch is the same
    const part = validation ? "validation" : "train";
    add(metric, { label: name, part, x, values, epochs: true }, extremes);
  }
  return [...charts.values()].sort((a, b) => place(a.name) - place(b.name));
}

/** Loss first, then the metrics, then what describes the progress. */
function place(name) {
  const last = ["learning_rate", "examples_per_second", "input_wait", "communication"];
  return name === "loss" ? -1 : last.indexOf(name) + 1;
}

/** The least and the largest x of all charts. */
export function extent(charts) {
  let [min, max] = [Infinity, -Infinity];
  for (const { lines } of charts) {
    for (const { x } of lines) {
      if (!x.length) continue;
      min = Math.min(min, x[0]);
      max = Math.max(max, x.at(-1));
    }
  }
  if (min > max) return { min: 0, max: 1 };
  return min === max ? { min: min - 1, max: max + 1 } : { min, max };
}
