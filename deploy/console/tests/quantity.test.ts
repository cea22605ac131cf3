import { expect, test } from "vitest";
import { shortLists } from "../src/words/number_lists";
import { digits, duration, memory, moment, scaled, share, span, text, things, watts } from "../src/words/quantity";

const plain = (said: string): string => said.replaceAll("\u00a0", " ");

test("three digits count, and thousands are grouped", () => {
  expect([0, 0.123, 1.5, 12.34, 123.4, 6176].map(digits)).toEqual(["0", "0.123", "1.50", "12.3", "123", "6,176"]);
});

test("prefixes begin where they shorten", () => {
  expect(text(scaled(9_999, ""))).toBe("9,999");
  expect(plain(text(scaled(37_820, "")))).toBe("37.8 k");
  expect([800, 31_900, 2.5e6].map(watts).map(plain)).toEqual(["800 W", "31.9 kW", "2.50 MW"]);
  expect(plain(text(scaled(5.81e12, "B", 1_000)))).toBe("5.81 TB");
});

test("nothing to say is no zero", () => {
  expect([null, undefined, NaN].map((value) => text(scaled(value, "W")))).toEqual(["–", "–", "–"]);
  expect(text(duration(null))).toBe("–");
  expect(plain(text(duration(0)))).toBe("0 s");
  expect(text(things(3))).toBe("3");
});

test("times take the unit that fits", () => {
  expect([18e-6, 0.0475, 1.31, 900].map((s) => plain(text(duration(s))))).toEqual(["18.0 µs", "47.5 ms", "1.31 s", "15.0 min"]);
  expect([4.44, 3_723.4].map(moment)).toEqual(["0:04.4", "1:02:03.4"]);
  expect([30, 1_200, 12_000].map(span).map(plain)).toEqual(["30.0 s", "20 min", "3 h 20 min"]);
});

test("a share that is small is not said to be none", () => {
  expect([0, 0.0001, 0.031, 0.64].map(share).map(plain)).toEqual(["0 %", "<0.1 %", "3.1 %", "64 %"]);
});

test("HBM is counted in GiB of 2^30 bytes", () => {
  expect(plain(memory(36 * 2 ** 30))).toBe("36.0 GiB");
});

test("numbers that follow each other are a range", () => {
  expect(shortLists("lease 1 of chips 112, 113, 114, 116: out")).toBe("lease 1 of chips 112–114, 116: out");
  expect(shortLists("chips 1, 2, 4, 5, 6, 7")).toBe("chips 1, 2, 4–7");
  expect(shortLists("14,336 experts on chips 3, 4")).toBe("14,336 experts on chips 3, 4");
});
