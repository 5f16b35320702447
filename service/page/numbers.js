// Formats numbers for readers, and scales them.

const whole = new Intl.NumberFormat("en");

export const count = (number) => whole.format(number);

// counted(1, "token") is "1 token", counted(2, "token") "2 tokens".
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

export function short(number) {
  if (!Number.isFinite(number)) return "–";
  const size = Math.abs(number);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return number.toExponential(1);
  return String(Number(number.toPrecision(3)));
}

export function range(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

export const shareOf = (value, [low, high]) => (high > low ? (value - low) / (high - low) : 0.5);
