// The ticks of an axis of time.

const [MINUTE, HOUR, DAY] = [60, 3600, 86400];

/** The distances between two ticks, in seconds. */
export const INCREMENTS = [
  ...[0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((each) => each * MINUTE),
  ...[1, 2, 3, 6, 12].map((each) => each * HOUR),
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500].map((each) => each * DAY),
];

/** The seconds at which ticks are, at most `most` of them. */
export function ticks(min, max, most) {
  const increment = INCREMENTS.find((each) => (max - min) / each <= most) ?? max - min;
  const first = Math.ceil(min / increment);
  const last = Math.floor(max / increment);
  return Array.from(
    { length: Math.max(0, last - first + 1) },
    (_, index) => (first + index) * increment,
  );
}
