// What a chip is at a glance: one mark, which has a letter and a pattern as well as a colour.
import type { ChipState as Chip } from "../wire/report";

export type Mark =
  | "lost"
  | "hung"
  | "draining"
  | "training"
  | "restoring"
  | "maintenance"
  | "slow"
  | "impaired"
  | "spare"
  | "serving";

export interface MarkWords {
  letter: string;
  word: string;
}

/** In the order of how much they matter; a chip has the first that fits. */
export const MARKS: Record<Mark, MarkWords> = {
  lost: { letter: "×", word: "lost" },
  hung: { letter: "H", word: "hung" },
  draining: { letter: "D", word: "draining" },
  training: { letter: "T", word: "training" },
  restoring: { letter: "R", word: "restoring" },
  maintenance: { letter: "M", word: "in maintenance" },
  slow: { letter: "S", word: "slow" },
  impaired: { letter: "!", word: "impaired" },
  spare: { letter: "+", word: "spare" },
  serving: { letter: "", word: "serving" },
};

export function markOf(chip: Chip): Mark {
  if (chip.health === "lost") return "lost";
  if (chip.health === "hung") return "hung";
  if (chip.phase !== "serving") return chip.phase;
  if (chip.health === "slow") return "slow";
  if (chip.cut_links.length > 0 || chip.stacks.some((stack) => stack.failed)) return "impaired";
  return chip.spare ? "spare" : "serving";
}

/** Everything that is wrong with it, in words; empty for a sound chip. */
export function troubles(chip: Chip): string[] {
  const said: string[] = [];
  if (chip.health === "slow") said.push(`${chip.slow_factor}× slower`);
  for (const stack of chip.stacks) if (stack.failed) said.push(`HBM stack ${stack.stack} failed`);
  for (const cut of chip.cut_links) said.push(`${cut.lanes_cut} of ${cut.lanes} ${cut.tier} lanes cut`);
  return said;
}

export function usedBytes(chip: Chip): number {
  let used = 0;
  for (const stack of chip.stacks) for (const held of Object.values(stack.owner_bytes)) used += held;
  return used;
}

export function capacityBytes(chip: Chip): number {
  return chip.stacks.reduce((sum, stack) => sum + (stack.failed ? 0 : stack.capacity_bytes), 0);
}
