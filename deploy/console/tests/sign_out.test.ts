import { Signal } from "@preact/signals";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import * as page from "../src/state/console";
import { outcome, proposed, type Action } from "../src/state/action";

const ACTION: Action = { title: "Lose chip 0", words: "", button: "Lose", danger: true, fields: [], act: async () => "" };

interface Asked {
  path: string;
  method: string;
  answer: (response: Response) => void;
  fail: () => void;
}
const asked: Asked[] = [];
const last = (method: string): Asked => asked.filter((each) => each.method === method).at(-1) as Asked;

function say(event: string, said: unknown, id: string | null = null): void {
  page.receive({ event, data: JSON.stringify(said), id });
}

function happen(run: string, number: number): void {
  say("happened", { number, unix_s: number, emulated_s: number, kind: "fault", words: "a fault" }, `${run}:${number}`);
}

beforeEach(() => {
  asked.length = 0;
  const kept = new Map([["ultraserve-key", "a key"]]);
  vi.stubGlobal("sessionStorage", { getItem: (name: string) => kept.get(name) ?? null, removeItem: (name: string) => kept.delete(name) });
  vi.stubGlobal("fetch", (path: string, { method = "GET" }: RequestInit) => {
    return new Promise<Response>((answer, refuse) => {
      asked.push({ path, method, answer, fail: () => refuse(new TypeError("no way")) });
    });
  });
});

afterEach(() => {
  page.forgetAll();
  vi.unstubAllGlobals();
});

test("signing out forgets everything before the server has answered", async () => {
  page.connect();
  say("replicas", { replicas: [{}, {}], figures: null });
  page.chooseReplica(1);
  const state = { chips: [] };
  const telemetry = { lag_s: 0, kv_blocks: 0 };
  say("hardware", { emulated_s: 1, state, telemetry, meters: [], power: { window: null }, step_times: {} });
  for (const event of ["latency", "admission", "daynight", "experts", "late"]) say(event, {});
  say("gone", {});
  say("dropped", { events: 7 });
  happen("a", 8);
  page.chosenChip.value = 3;
  page.system.value = {} as NonNullable<typeof page.system.value>;
  proposed.value = ACTION;
  outcome.value = "lost";
  const signals = Object.entries({ ...page, proposed, outcome }).filter(([name, each]) => each instanceof Signal && name !== "line");
  const empty = (value: unknown): boolean => [null, 0, ""].includes(value as null) || (Array.isArray(value) && value.length === 0);
  const shown = (): string[] => signals.filter(([, each]) => !empty((each as Signal).value)).map(([name]) => name);
  expect(shown()).toEqual(signals.map(([name]) => name).filter((name) => name !== "sessionLeft"));

  const out = page.signOut();
  expect(shown()).toEqual([]);
  expect(page.line.value).toEqual({ is: "refused" });
  expect(page.history.length).toBe(0);
  expect(sessionStorage.getItem("ultraserve-key")).toBeNull();
  last("DELETE").answer(new Response("{}"));
  await out;
  expect(page.sessionLeft.value).toBe("");
});

test("a session that could not be ended is said, until one signs in again", async () => {
  let out = page.signOut();
  last("DELETE").fail();
  await out;
  expect(page.sessionLeft.value).toContain("the server cannot be reached");
  page.connect();
  expect(page.sessionLeft.value).toBe("");

  out = page.signOut();
  page.connect();
  last("DELETE").fail();
  await out;
  expect(page.sessionLeft.value).toBe("");
});

test("what the server has forgotten is counted once, and for its own run alone", () => {
  say("dropped", { events: 7 });
  say("dropped", { events: 7 }); // the line broke between the two, and it is said again
  happen("a", 8);
  say("dropped", { events: 2 });
  happen("a", 11);
  expect(page.dropped.value).toBe(9);
  say("dropped", { events: 4 });
  happen("b", 5);
  expect(page.dropped.value).toBe(4);
  happen("c", 1);
  expect(page.dropped.value).toBe(0);

  say("dropped", { events: 3 });
  happen("c", 5);
  page.connect(); // without the last event: all is told again
  expect([page.dropped.value, page.happened.value]).toEqual([0, []]);
});
