import { afterEach, expect, test, vi } from "vitest";
import { call } from "../src/wire/calls";

const UNKNOWN = { code: "deadline_exceeded", message: "not known yet", details: [{ debug: {} }, { debug: { reason: "OUTCOME_UNKNOWN" } }] };
const keys: (string | null)[] = [];

function server(...answers: (Response | TypeError)[]): void {
  keys.length = 0;
  vi.useFakeTimers();
  vi.stubGlobal("fetch", async (_: string, { headers }: RequestInit) => {
    keys.push(new Headers(headers).get("idempotency-key"));
    const answer = answers.shift();
    if (answer instanceof TypeError) throw answer;
    return answer as Response;
  });
}

const failed = (said: unknown): Response => new Response(JSON.stringify(said), { status: 504 });

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("a change is asked for with one key until its outcome is known", async () => {
  server(failed(UNKNOWN), failed(UNKNOWN), new Response("{}"));
  const done = call("Heal", {}, "a key");
  await vi.runAllTimersAsync();
  expect(await done).toEqual({});
  expect(keys).toHaveLength(3);
  expect(keys[0]).toMatch(/^[0-9a-f]{16}$/);
  expect(new Set(keys).size).toBe(1);
});

test("a change whose answer is lost on the way is asked for again, a look is not", async () => {
  server(new TypeError("reset"), new Response("{}"), new TypeError("reset"));
  const done = call("Heal", {}, "a key");
  await vi.runAllTimersAsync();
  expect(await done).toEqual({});
  expect(keys[0]).toBe(keys[1]);
  await expect(call("GetState", {})).rejects.toThrow("the server cannot be reached");
  expect(keys).toHaveLength(3);
});

test("two changes have two keys, and a look has none", async () => {
  server(new Response("{}"), new Response("{}"), new Response("{}"));
  await call("Heal", {}, "a key");
  await call("Heal", {}, "a key");
  await call("GetState", {});
  expect(new Set(keys).size).toBe(3);
  expect(keys[2]).toBeNull();
});

test("a refusal is told at once", async () => {
  server(failed({ code: "failed_precondition", message: "no", details: [{ debug: { reason: "NOT_NOW" } }] }));
  await expect(call("Heal", {}, "a key")).rejects.toThrow("no");
  expect(keys).toHaveLength(1);
});
