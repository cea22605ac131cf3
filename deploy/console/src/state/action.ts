// What a button of the page would do: said first, tried on the server without effect where it can be, and
// done only when it is confirmed with the key.
import { signal } from "@preact/signals";

export type Values = Readonly<Record<string, string>>;

export interface Field {
  name: string;
  label: string;
  value: string;
  hint?: string;
  /** Value and words of each choice; without them it is a line of text, or a number. */
  options?: readonly (readonly [string, string])[];
  numeric?: boolean;
}

export interface DryRunResult {
  good: boolean;
  words: string;
}

export interface Action {
  title: string;
  /** What happens, in the page's words. */
  words: string;
  button: string;
  danger: boolean;
  fields: readonly Field[];
  /** The server's own words on what would happen; it changes nothing. */
  dryRun?: (values: Values, key: string) => Promise<DryRunResult>;
  /** Do it; what came of it, in one line. */
  act: (values: Values, key: string) => Promise<string>;
}

/** The action that waits for confirmation. */
export const proposed = signal<Action | null>(null);

/** What the last action came to. */
export const outcome = signal<string>("");

export function propose(action: Action): void {
  proposed.value = action;
}
