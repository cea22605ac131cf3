// The other tabs of this browser that show the same console: they share its session, so one that
// signs out tells the others. Each has the key, and would begin the session again.

const NAME = "ultraserve-signed-out";

let channel: BroadcastChannel | null = null;

/** From now on, call `onSignedOut` when another tab signs out. */
export function onSignOut(onSignedOut: () => void): void {
  channel = new BroadcastChannel(NAME);
  channel.onmessage = onSignedOut;
}

/** Tell the other tabs that this one signs out; its own message does not come back. */
export function tellSignOut(): void {
  channel?.postMessage(null);
}
