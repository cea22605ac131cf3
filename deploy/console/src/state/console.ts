// Everything the page shows, as signals: each part of the page reads what it needs.
import { batch, computed, signal } from "@preact/signals";
import { call, callReplica, closeSession } from "../wire/calls";
import { forgetKey } from "../wire/key";
import { tellSignOut } from "../wire/other_tabs";
import type { DayNightState as DayNight, AdmissionReport, ExpertChoices, MachineEvent as Happened, MachineSnapshot, ReplicaList, LatencyReport as Latency } from "../wire/report";
import type { ServerEvent } from "../wire/server_events";
import { listen, type StreamSubscriber } from "../wire/stream";
import { systemOf, type System } from "../wire/system";
import { outcome, proposed } from "./action";
import { History } from "./history";

export type Line =
  | { is: "connecting" }
  | { is: "live" }
  | { is: "broken"; why: string }
  | { is: "refused" };

/** What happened that the page still shows; the oldest is forgotten for the next. */
export const EVENTS_KEPT = 500;
const EVERY_S = 1;

/** The server's stream, and the one of the replica that is shown. */
const serverLine = signal<Line>({ is: "connecting" });
const replicaLine = signal<Line | null>(null);
export const line = computed<Line>(() => (serverLine.value.is === "live" && replicaLine.value) || serverLine.value);
/** All replicas, where the server is a service of several. */
export const service = signal<ReplicaList | null>(null);
/** The one that the page shows; null: all. */
export const chosenReplica = signal<number | null>(null);
export const engineGone = signal<string | null>(null);
export const look = signal<MachineSnapshot | null>(null);
/** Counts the looks; what is drawn from `history` follows it. */
export const looks = signal(0);
export const lookedAt = signal(0);
/** How many wall seconds old the look is, when the engine is late with the next. */
export const late = signal<{ age_s: number | null } | null>(null);
/** Events that the server has forgotten before this page was told them. */
export const dropped = signal(0);
export const latency = signal<Latency | null>(null);
export const admission = signal<AdmissionReport | null>(null);
export const dayNight = signal<DayNight | null>(null);
export const experts = signal<ExpertChoices | null>(null);
export const happened = signal<readonly Happened[]>([]);
export const system = signal<System | null>(null);
export const chosenChip = signal<number | null>(null);
/** Why the session may live on although the reader has signed out; empty when it does not. */
export const sessionLeft = signal("");
export const history = new History();

let hangUp: (() => void) | null = null;
let hangUpReplica: (() => void) | null = null;
let run: string | null = null; // the server's, whose events are told
let droppedNext = 0; // what `dropped` grows by with the next event

/** Begin to listen, or begin again with another key. */
export function connect(): void {
  hangUp?.();
  stopReplica();
  batch(() => {
    serverLine.value = { is: "connecting" };
    sessionLeft.value = "";
    outcome.value = ""; // of an action that was under way when the last session ended
    forgetEvents(); // the server tells them again
  });
  hangUp = listen(EVERY_S, subscriber((now) => (serverLine.value = now)));
}

/** Show one replica of a service, or all of them; its stream begins once the service is known. */
export function chooseReplica(number: number | null): void {
  stopReplica();
  callReplica(number);
  batch(() => {
    chosenReplica.value = number;
    forgetMachine();
  });
  if (service.value !== null) listenToReplica();
}

function listenToReplica(): void {
  const number = chosenReplica.value;
  if (number === null) return;
  replicaLine.value = { is: "connecting" };
  hangUpReplica = listen(EVERY_S, subscriber((now) => (replicaLine.value = now)), number);
}

function stopReplica(): void {
  hangUpReplica?.();
  hangUpReplica = null;
  replicaLine.value = null;
}

function subscriber(tell: (line: Line) => void): StreamSubscriber {
  return {
    onOpen: () => {
      tell({ is: "live" });
      void learnSystem();
    },
    onEvent: receive,
    onBreak: (why) => tell({ is: "broken", why }),
    onRefused: () => tell({ is: "refused" }),
  };
}

/** Show nothing any more, forget the key, here and in the other tabs, and end the session. */
export async function signOut(): Promise<void> {
  forgetAll();
  tellSignOut();
  try {
    await closeSession();
  } catch (error) {
    if (hangUp !== null) return; // signed in again
    sessionLeft.value = `The session could not be ended (${(error as Error).message}): this browser may still look when the page is loaded again.`;
  }
}

/** What signing out comes to in this tab; the session is not touched. */
export function forgetAll(): void {
  hangUp?.();
  hangUp = null;
  stopReplica();
  forgetKey();
  batch(() => {
    serverLine.value = { is: "refused" };
    service.value = null;
    chosenReplica.value = null;
    callReplica(null);
    system.value = null;
    outcome.value = "";
    sessionLeft.value = "";
    forgetMachine();
  });
}

function forgetMachine(): void {
  for (const one of [engineGone, look, late, latency, admission, dayNight, experts, chosenChip, proposed]) one.value = null;
  looks.value = 0;
  lookedAt.value = 0;
  history.clear();
  forgetEvents();
}

function forgetEvents(): void {
  happened.value = [];
  dropped.value = 0;
  droppedNext = 0;
  run = null;
}

async function learnSystem(): Promise<void> {
  const asking = hangUp;
  let learnt: System | null = null;
  try {
    learnt = systemOf(await call("DescribeSystem", {}));
  } catch {
    // the page goes without: only words of the header come from it
  }
  if (hangUp === asking) system.value = learnt;
}

/** Take in what the stream says. */
export function receive({ event, data, id }: ServerEvent): void {
  const said: unknown = JSON.parse(data);
  batch(() => {
    if (event === "hardware") receiveSnapshot(said as MachineSnapshot);
    else if (event === "happened") receiveEvent(said as Happened, id);
    else if (event === "late") late.value = said as { age_s: number | null };
    else if (event === "dropped") droppedNext = (said as { events: number }).events;
    else if (event === "latency") latency.value = said as Latency;
    else if (event === "admission") admission.value = said as AdmissionReport;
    else if (event === "daynight") dayNight.value = said as DayNight;
    else if (event === "experts") experts.value = said as ExpertChoices;
    else if (event === "gone") engineGone.value = goneWords(said);
    else if (event === "replicas") receiveReplicas(said as ReplicaList);
  });
}

function receiveReplicas(list: ReplicaList): void {
  const isFirst = service.value === null;
  service.value = list;
  if ((chosenReplica.value ?? 0) >= list.replicas.length) chooseReplica(null);
  else if (isFirst) listenToReplica();
}

function receiveSnapshot(report: MachineSnapshot): void {
  history.add(report, latency.value);
  look.value = report;
  late.value = null;
  lookedAt.value = Date.now();
  engineGone.value = null;
  looks.value += 1;
}

/** An event, whose id is `RUN:NUMBER`. The count of dropped events comes right before the event that it precedes. */
function receiveEvent(event: Happened, id: string | null): void {
  const ofRun = id?.split(":")[0] ?? run;
  dropped.value = (ofRun === run ? dropped.value : 0) + droppedNext;
  droppedNext = 0;
  run = ofRun;
  const known = happened.value;
  const last = known[known.length - 1];
  // A lower number: the server has started again, and its events count from 1.
  if (last && event.number === last.number && event.unix_s === last.unix_s) return;
  happened.value = [...known, event].slice(-EVENTS_KEPT);
  if (event.kind === "engine-gone") engineGone.value = event.words;
}

function goneWords(said: unknown): string {
  const message = (said as { words?: unknown } | null)?.words;
  return typeof message === "string" && message ? message : "the engine is gone";
}
