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

export function heldKey(): string | null {
  return sessionStorage.getItem(PLACE);
}

export function holdKey(key: string): void {
  sessionStorage.setItem(PLACE, key);
}

export function forgetKey(): void {
  sessionStorage.removeItem(PLACE);
}
