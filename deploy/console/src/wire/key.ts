// The key of the control service. It comes in the address's fragment, which no server ever sees, or
// is typed in; it stays in this tab's session storage and nowhere else.

const PLACE = "ultraserve-key";

/** Take the key out of `#key=...`, and the fragment out of the address. */
export function keyFromAddress(): string | null {
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (key === null) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return key;
}

/** The replica that the address names, `?replica=1`; null: none. */
export function replicaFromAddress(): number | null {
  const named = new URLSearchParams(location.search).get("replica");
  return named !== null && /^\d+$/.test(named) ? Number(named) : null;
}

/** Let the address name what is shown, so that it can be kept and loaded again. */
export function nameReplicaInAddress(replica: number | null): void {
  history.replaceState(null, "", location.pathname + (replica === null ? "" : `?replica=${replica}`));
}

export function heldKey(): string | null {
  return sessionStorage.getItem(PLACE);
}

export function holdKey(key: string): void {
  sessionStorage.setItem(PLACE, key);
}

export function forgetKey(): void {
  sessionStorage.removeItem(PLACE);
}
