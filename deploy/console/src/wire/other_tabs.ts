// The other tabs of this browser that show the same console: they share its session, so one that
// signs out tells the others. Each has the key, and would begin the session again.

const NAME = "ultraserve-signed-out";

let channel: BroadcastChannel | null = null;

/** From now on, call `heard` when another tab signs out. */
export function onSignOut(heard: () => void): void {
  channel = new BroadcastChannel(NAME);
  channel.onmessage = heard;
}

/** Tell the other tabs that this one signs out; it does not hear itself. */
export function tellSignOut(): void {
  channel?.postMessage(null);
}
