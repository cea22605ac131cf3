// Calls of the control service: its own methods as JSON (the Connect protocol's unary calls).
/** A call that did not do what was asked; `message` is the server's own line. */
export class CallFailed extends Error {
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message);
  }

  /** The key was missing or wrong. */
  get refused(): boolean {
    return this.code === "unauthenticated";
  }
}

const GOODBYE_MS = 10_000; // a server that has not answered by then is taken for one that does not

type Json = Record<string, unknown>;

/** Call `method`; what changes something needs `key`, for a look the session is enough. */
export async function call<T>(method: string, request: Json, key: string | null = null): Promise<T> {
  return post<T>(`/ultraserve.v1.ControlService/${method}`, request, key);
}

/** Begin a session, in which one may look; raises CallFailed for a wrong key. */
export async function openSession(key: string): Promise<void> {
  await post("/session", { key }, null);
}

/** End the session that this browser has. */
export async function closeSession(): Promise<void> {
  await post("/session", null, null);
}

/** Post `body`, or DELETE where there is none. */
async function post<T>(path: string, body: Json | null, key: string | null): Promise<T> {
  const headers: Record<string, string> = { "Content-Type": "application/json" };
  if (key !== null) headers["Authorization"] = `Bearer ${key}`;
  let response: Response;
  try {
    response = await fetch(path, body === null ? { method: "DELETE", headers, signal: AbortSignal.timeout(GOODBYE_MS) } : { method: "POST", headers, body: JSON.stringify(body) });
  } catch {
    throw new CallFailed("unavailable", "the server cannot be reached");
  }
  const text = await response.text();
  if (response.ok) return (text ? JSON.parse(text) : {}) as T;
  throw failure(response.status, text);
}

function failure(status: number, text: string): CallFailed {
  try {
    const error = JSON.parse(text) as { code?: string; message?: string };
    return new CallFailed(error.code ?? codeOf(status), error.message ?? `the server answers ${status}`);
  } catch {
    return new CallFailed(codeOf(status), text.trim().split("\n")[0] || `the server answers ${status}`);
  }
}

function codeOf(status: number): string {
  return status === 401 ? "unauthenticated" : `http-${status}`;
}
