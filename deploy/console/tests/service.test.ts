import { afterEach, beforeEach, expect, test, vi } from "vitest";
import * as page from "../src/state/console";
import { call } from "../src/wire/calls";

interface Asked {
  path: string;
  replica: string | null;
}
const asked: Asked[] = [];
const streams = (): string[] => asked.map((each) => each.path).filter((path) => path.startsWith("/stream"));
const LIST = { replicas: [{ replica: 0 }, { replica: 1 }], figures: null };

function say(event: string, said: unknown): void {
  page.receive({ event, data: JSON.stringify(said), id: null });
}

beforeEach(() => {
  asked.length = 0;
  vi.stubGlobal("sessionStorage", { getItem: () => null, removeItem: () => undefined });
  vi.stubGlobal("fetch", (path: string, { headers = {} }: RequestInit) => {
    asked.push({ path, replica: new Headers(headers).get("ultraserve-replica") });
    return path.startsWith("/stream") ? new Promise(() => undefined) : Promise.resolve(new Response("{}"));
  });
});

afterEach(() => {
  page.forgetAll();
  vi.unstubAllGlobals();
});

test("a service's page listens to the replica that it shows, once it knows that there are several", () => {
  page.chooseReplica(1);
  page.connect();
  expect(streams()).toEqual(["/stream?interval_s=1"]);
  say("replicas", LIST);
  say("replicas", LIST);
  expect(streams()).toEqual(["/stream?interval_s=1", "/stream?interval_s=1&replica=1"]);
  expect(page.chosenReplica.value).toBe(1);
});

test("calls are for the replica that is shown, and nothing of another one stays", async () => {
  page.connect();
  say("replicas", LIST);
  await call("GetState", {});
  page.chooseReplica(0);
  say("late", { age_s: 3 });
  await call("Heal", {}, "key");
  page.chooseReplica(1);
  await call("Heal", {}, "key");
  expect(page.late.value).toBeNull();
  expect(asked.filter((each) => each.path.endsWith("Heal") || each.path.endsWith("GetState")).map((each) => each.replica)).toEqual([null, "0", "1"]);
});

test("a replica that the service has not is not asked for", () => {
  page.chooseReplica(7);
  page.connect();
  say("replicas", LIST);
  expect(page.chosenReplica.value).toBeNull();
  expect(streams()).toEqual(["/stream?interval_s=1"]);
});
