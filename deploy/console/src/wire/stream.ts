// The control port's stream, opened again when it breaks, from the last event that was seen.
import { CallFailed, openSession } from "./calls";
import { forgetKey, heldKey } from "./key";
import { EventParser, type ServerEvent } from "./server_events";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8_000;
const SILENCE_MS = 30_000; // a line this silent is taken for dead: the server looks each second

export interface StreamSubscriber {
  onOpen(): void;
  onEvent(event: ServerEvent): void;
  /** The line broke, for this reason; it is tried again in `pause_ms`. */
  onBreak(why: string, pause_ms: number): void;
  /** The server wants a key; nothing more comes. */
  onRefused(): void;
}

/** The last event that was seen, and whether the server has said that its engine is gone. */
interface Place {
  lastId: string | null;
  engineGone: boolean;
}

/** Listen until the returned function is called: to one replica of a service, or to the server itself. */
export function listen(intervalS: number, subscriber: StreamSubscriber, replica: number | null = null): () => void {
  const ended = new AbortController();
  const path = `/stream?interval_s=${intervalS}${replica === null ? "" : `&replica=${replica}`}`;
  void follow(path, subscriber, ended.signal);
  return () => ended.abort();
}

async function follow(path: string, subscriber: StreamSubscriber, ended: AbortSignal): Promise<void> {
  const place: Place = { lastId: null, engineGone: false };
  let pauseMs = FIRST_PAUSE_MS;
  while (!ended.aborted) {
    let why = "the server ended the stream";
    try {
      const response = await open(path, place.lastId, ended);
      if (ended.aborted) return;
      if (response.status === 401 || response.status === 403) return subscriber.onRefused();
      if (response.status === 400 || response.status === 412) place.lastId = null; // another run's event
      if (!response.ok || response.body === null) throw new Error(`the server answers ${response.status}`);
      subscriber.onOpen();
      pauseMs = FIRST_PAUSE_MS;
      place.engineGone = false;
      await read(response.body, subscriber, place, ended);
    } catch (error) {
      why = error instanceof TypeError ? "the server cannot be reached" : String((error as Error).message);
    }
    if (ended.aborted) return;
    if (place.engineGone) pauseMs = LONGEST_PAUSE_MS; // until another server is in this one's place
    subscriber.onBreak(why, pauseMs);
    await new Promise((wake) => setTimeout(wake, pauseMs));
    pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
  }
}

async function open(path: string, lastId: string | null, ended: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (lastId !== null) headers["Last-Event-ID"] = lastId;
  const look = (): Promise<Response> => fetch(path, { headers, signal: ended, cache: "no-store" });
  const response = await look();
  const key = heldKey();
  if (response.status !== 401 || key === null) return response;
  try {
    await openSession(key); // the session was another server's, or is over
  } catch (error) {
    if (!(error instanceof CallFailed && error.refused)) throw error;
    forgetKey();
    return response;
  }
  return look();
}

async function read(
  body: ReadableStream<Uint8Array>,
  subscriber: StreamSubscriber,
  place: Place,
  ended: AbortSignal,
): Promise<void> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    while (!ended.aborted) {
      const { done, value } = await inTime(reader.read());
      if (done) return;
      for (const event of parser.push(decoder.decode(value, { stream: true }))) {
        if (event.id) place.lastId = event.id;
        if (event.event === "gone") place.engineGone = true;
        subscriber.onEvent(event);
      }
    }
  } finally {
    reader.cancel().catch(() => undefined); // it may be broken already
  }
}

async function inTime<T>(answer: Promise<T>): Promise<T> {
  let timer = 0;
  const silence = new Promise<never>((_, refuse) => {
    timer = window.setTimeout(() => refuse(new Error("the server is silent")), SILENCE_MS);
  });
  return Promise.race([answer, silence]).finally(() => clearTimeout(timer));
}
