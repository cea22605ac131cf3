// Numbers as a reader wants them: three digits that count, an SI prefix, a unit.

const PREFIXES: readonly [number, string][] = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];
export const NONE = "–"; // nothing to say, which is not zero

export interface Quantity {
  number: string;
  unit: string;
}

/** Three significant digits, no more than the number has; thousands are grouped. */
export function digits(value: number): string {
  const size = Math.abs(value);
  const places = size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
}

/** `12.3` and `kW`; a number below ten thousand keeps its unit unless `from` is lower. */
export function scaled(value: number | null | undefined, unit: string, from = 10_000): Quantity {
  if (value === null || value === undefined || !Number.isFinite(value)) return { number: NONE, unit: "" };
  if (Math.abs(value) >= from) {
    for (const [size, prefix] of PREFIXES) {
      if (Math.abs(value) >= size) return { number: digits(value / size), unit: prefix + unit };
    }
  }
  return { number: digits(value), unit };
}

export function text(quantity: Quantity): string {
  return quantity.unit ? `${quantity.number}\u00a0${quantity.unit}` : quantity.number;
}

export const watts = (value: number): string => text(scaled(value, "W", 1_000));
/** Things that are counted: whole below ten thousand. */
export function things(value: number): Quantity {
  return Math.abs(value) < 10_000 ? { number: count(value), unit: "" } : scaled(value, "");
}

export const count = (value: number): string => value.toLocaleString("en-US", { maximumFractionDigits: 0 });

export function share(part: number | null | undefined): string {
  if (part === null || part === undefined || !Number.isFinite(part)) return NONE;
  const percent = 100 * part;
  if (percent > 0 && percent < 0.05) return "<0.1\u00a0%";
  return `${percent.toFixed(percent !== 0 && percent < 9.95 ? 1 : 0)}\u00a0%`;
}

/** GiB = 2^30 bytes, as HBM is counted; GB = 10^9 for what moves. */
export function memory(bytes: number): string {
  const GIB = 2 ** 30;
  return bytes >= GIB ? `${digits(bytes / GIB)}\u00a0GiB` : `${digits(bytes / 2 ** 20)}\u00a0MiB`;
}

/** A short time: `1.24 ms`, `312 µs`, `2.50 s`. */
export function duration(seconds: number | null | undefined): Quantity {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return { number: NONE, unit: "" };
  if (seconds === 0) return { number: "0", unit: "s" };
  if (seconds < 1e-3) return { number: digits(seconds * 1e6), unit: "µs" };
  if (seconds < 1) return { number: digits(seconds * 1e3), unit: "ms" };
  if (seconds < 600) return { number: digits(seconds), unit: "s" };
  return { number: digits(seconds / 60), unit: "min" };
}

/** A moment since the start: `1:02:03.4`. */
export function moment(seconds: number): string {
  const tenths = Math.floor(seconds * 10 + 1e-9);
  const whole = Math.floor(tenths / 10);
  const h = Math.floor(whole / 3600);
  const m = Math.floor((whole % 3600) / 60);
  const s = whole % 60;
  const two = (n: number): string => String(n).padStart(2, "0");
  return `${h > 0 ? `${h}:${two(m)}` : m}:${two(s)}.${tenths % 10}`;
}

/** How far away a moment is: `in 3 h 20 min`. */
export function span(seconds: number): string {
  const size = Math.max(0, seconds);
  if (size < 90) return `${digits(size)}\u00a0s`;
  if (size < 5_400) return `${Math.round(size / 60)}\u00a0min`;
  const h = Math.floor(size / 3600);
  const m = Math.round((size - 3600 * h) / 60);
  return m ? `${h}\u00a0h ${m}\u00a0min` : `${h}\u00a0h`;
}

/** `1 chip`, `3 chips`. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}
