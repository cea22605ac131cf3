import { expect, test } from "vitest";
import { EVENTS_KEPT, happened, receive, history as heard, looks } from "../src/state/console";
import { History, LOOKS_KEPT } from "../src/state/history";
import { Ring } from "../src/state/ring";
import type { ChipState as Chip, MachineSnapshot } from "../src/wire/report";
import { markOf } from "../src/words/chip_mark";
import { busiest, loadRatios } from "../src/words/expert_load";
import { sparkPath } from "../src/parts/Sparkline";

const CHIP: Chip = {
  chip: 0,
  rack: 0,
  tray: 0,
  position: 0,
  health: "up",
  slow_factor: 1,
  spare: false,
  rank: 0,
  stacks: [{ stack: 0, failed: false, capacity_bytes: 100, owner_bytes: { kv: 25, "weights/experts": 25 } }],
  cut_links: [],
  expert_slots: 0,
  expert_slots_filled: 0,
  watts: 200,
  phase: "serving",
};

function look(emulated_s: number, busy_s = 0, lag_s = 0): MachineSnapshot {
  const telemetry = { busy_s, lag_s, requests_running: 3, requests_waiting: 0, chip_watts: 200, facility_watts: 500, kv_blocks: 10, kv_blocks_used: 5 };
  const state = { chips: [CHIP] };
  const meters = [{ utilization: 0.5 }];
  const report = { emulated_s, state, telemetry, meters, power: { it_watts: 300, pue: 1.5, window: null }, step_times: { steps: 0, p50_s: null, p99_s: null } };
  return report as unknown as MachineSnapshot;
}

test("a ring forgets the oldest row, and says nothing where there was nothing to say", () => {
  const ring = new Ring(3, 2);
  for (let row = 0; row < 5; row += 1) ring.push([row, row === 3 ? NaN : 10 * row]);
  expect(ring.column(0)).toEqual([2, 3, 4]);
  expect(ring.column(1)).toEqual([20, null, 40]);
  expect(() => ring.push([1])).toThrow(RangeError);
});

test("history takes each look once, and begins anew with another run of the engine", () => {
  const history = new History();
  history.add(look(1), null);
  history.add(look(1), null);
  history.add(look(2), null);
  expect(history.of("emulated_s")).toEqual([1, 2]);
  expect(history.of("output_per_s")).toEqual([null, null]);
  expect(history.ofChip(0)).toEqual({ utilization: [0.5, 0.5], watts: [200, 200], hbm: [0.5, 0.5] });
  history.add(look(0.5), null);
  expect(history.of("emulated_s")).toEqual([0.5]);
});

test("a page that is open for hours keeps as much as after fifteen minutes", () => {
  const say = (event: string, said: unknown): void => receive({ event, data: JSON.stringify(said), id: null });
  for (let number = 1; number <= 2 * LOOKS_KEPT; number += 1) {
    say("hardware", look(number));
    say("happened", { number, unix_s: number, emulated_s: number, kind: "fault", words: "a fault" });
  }
  expect(looks.value).toBe(2 * LOOKS_KEPT);
  const times = heard.of("emulated_s");
  expect([times.length, times[0], times.at(-1)]).toEqual([LOOKS_KEPT, LOOKS_KEPT + 1, 2 * LOOKS_KEPT]);
  expect(heard.ofChip(0).watts.length).toBe(LOOKS_KEPT);
  expect(happened.value.map((event) => event.number)).toEqual(Array.from({ length: EVENTS_KEPT }, (_, index) => 2 * LOOKS_KEPT - EVENTS_KEPT + 1 + index));
});

test("lag is a share of the emulated time between two looks", () => {
  const history = new History();
  history.add(look(1, 1, 0), null);
  history.add(look(3, 3, 0.5), null);
  history.add(look(4, 3, 0.5), null);
  expect(history.of("lag_share")).toEqual([null, 0.25, 0]);
});

test("a chip has the mark that matters most", () => {
  const failed = { ...CHIP, stacks: [{ stack: 0, failed: true, capacity_bytes: 1, owner_bytes: {} }] };
  expect(markOf(CHIP)).toBe("serving");
  expect(markOf({ ...CHIP, spare: true })).toBe("spare");
  expect(markOf(failed)).toBe("impaired");
  expect(markOf({ ...failed, health: "slow" })).toBe("slow");
  expect(markOf({ ...failed, health: "slow", phase: "training" })).toBe("training");
  expect(markOf({ ...CHIP, health: "lost", phase: "training" })).toBe("lost");
});

test("experts are weighed against the mean of their own layer", () => {
  const load = { layers: 2, experts: 2, tokens: [10, 30, 0, 0], imbalance: null };
  const ratios = loadRatios(load);
  expect([...ratios]).toEqual([0.5, 1.5, 0, 0]);
  expect(busiest(load, ratios)).toEqual({ layer: 0, expert: 1 });
  const none = { ...load, tokens: [0, 0, 0, 0] };
  expect(busiest(none, loadRatios(none))).toBeNull();
});

test("a line begins at zero, and leaves out what is not known", () => {
  expect(sparkPath([5])).toBeNull();
  expect(sparkPath([null, 0, 10])?.line).toBe("M60,26L120,2");
});
