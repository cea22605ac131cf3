// What a button of the page would do: said first, asked of the server where it can foresee it, and
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

export interface Foresight {
  good: boolean;
  words: string;
}

export interface Deed {
  title: string;
  /** What happens, in the page's words. */
  words: string;
  button: string;
  danger: boolean;
  fields: readonly Field[];
  /** The server's own words on what would happen; it changes nothing. */
  foresee?: (values: Values, key: string) => Promise<Foresight>;
  /** Do it; what came of it, in one line. */
  act: (values: Values, key: string) => Promise<string>;
}

/** The deed that waits for confirmation. */
export const proposed = signal<Deed | null>(null);

/** What the last deed came to. */
export const outcome = signal<string>("");

export function propose(deed: Deed): void {
  proposed.value = deed;
}
