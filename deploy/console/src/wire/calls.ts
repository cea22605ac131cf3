// Calls of the control service: its own methods as JSON (the Connect protocol's unary calls).
/** A call that did not do what was asked; `message` is the server's own line. */
export class CallFailed extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly reason = "",
  ) {
    super(message);
  }

  /** What was asked may be done, or may be yet; the same call with the same key says which. */
  get isUnknown(): boolean {
    return this.reason === "OUTCOME_UNKNOWN" || this.reason === NO_ANSWER;
  }

  /** The key was missing or wrong. */
  get refused(): boolean {
    return this.code === "unauthenticated";
  }
}

const GOODBYE_MS = 10_000; // a server that has not answered by then is taken for one that does not

const NO_ANSWER = "NO_ANSWER"; // the way to the server ended; nothing is known of the server's side
const TRY_MS = 10_000; // the server answers within 2 s, with an outcome or without
const OUTCOME_MS = 120_000; // a call without an outcome for so long is told as that
const ASK_AGAIN_MS = 500;

type Json = Record<string, unknown>;

let replica: number | null = null;

/** From now on calls are for this replica of a service; null: the server is one engine, or all are meant. */
export function callReplica(number: number | null): void {
  replica = number;
}

/** Call `method`; what changes something needs `key`, for a look the session is enough.
 *
 * A change is done at most once: while its outcome is unknown, the same call is asked for it. */
export async function call<T>(method: string, request: Json, key: string | null = null): Promise<T> {
  const path = `/ultraserve.v1.ControlService/${method}`;
  const named = replica === null ? {} : { "Ultraserve-Replica": String(replica) }; // also while its outcome is asked for
  if (key === null) return post<T>(path, request, named);
  const action = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const until = Date.now() + OUTCOME_MS;
  for (;;) {
    try {
      return await post<T>(path, request, { ...named, Authorization: `Bearer ${key}`, "Idempotency-Key": action });
    } catch (error) {
      if (!(error instanceof CallFailed && error.isUnknown) || Date.now() >= until) throw error;
    }
    await new Promise((asked) => setTimeout(asked, ASK_AGAIN_MS));
  }
}

/** Begin a session, in which one may look; raises CallFailed for a wrong key. */
export async function openSession(key: string): Promise<void> {
  await post("/session", { key });
}

/** End the session that this browser has. */
export async function closeSession(): Promise<void> {
  await post("/session", null);
}

/** Post `body`, or DELETE where there is none. */
async function post<T>(path: string, body: Json | null, named: Record<string, string> = {}): Promise<T> {
  const headers = { "Content-Type": "application/json", ...named };
  let response: Response;
  let text: string;
  try {
    const signal = AbortSignal.timeout(body === null ? GOODBYE_MS : TRY_MS);
    response = await fetch(path, body === null ? { method: "DELETE", headers, signal } : { method: "POST", headers, signal, body: JSON.stringify(body) });
    text = await response.text();
  } catch {
    throw new CallFailed("unavailable", "the server cannot be reached", NO_ANSWER);
  }
  if (response.ok) return (text ? JSON.parse(text) : {}) as T;
  throw failure(response.status, text);
}

function failure(status: number, text: string): CallFailed {
  try {
    const error = JSON.parse(text) as { code?: string; message?: string; details?: { debug?: { reason?: string } }[] };
    const reason = error.details?.find((detail) => detail.debug?.reason)?.debug?.reason;
    return new CallFailed(error.code ?? codeOf(status), error.message ?? `the server answers ${status}`, reason);
  } catch {
    return new CallFailed(codeOf(status), text.trim().split("\n")[0] || `the server answers ${status}`);
  }
}

function codeOf(status: number): string {
  return status === 401 ? "unauthenticated" : `http-${status}`;
}
