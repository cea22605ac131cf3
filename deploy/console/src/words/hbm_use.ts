// Owners of HBM, put together by use: `weights/experts` and `weights/attention` are weights.
import type { ChipState as Chip, StackUsage as Stack } from "../wire/report";

export const USES = ["weights", "kv", "activations", "collectives", "microcode", "training", "other"] as const;
export type Use = (typeof USES)[number];
export const USE_WORDS: Record<Use, string> = {
  weights: "weights",
  kv: "KV cache",
  activations: "activations",
  collectives: "collectives",
  microcode: "microcode",
  training: "training",
  other: "other",
};

function useOf(owner: string): Use {
  const use = owner.split("/", 1)[0] as Use;
  return USES.includes(use) ? use : "other";
}

export function stackUses(stack: Stack): Map<Use, number> {
  const uses = new Map<Use, number>();
  for (const [owner, bytes] of Object.entries(stack.owner_bytes)) {
    const use = useOf(owner);
    uses.set(use, (uses.get(use) ?? 0) + bytes);
  }
  return uses;
}

export function chipUses(chip: Chip): Map<Use, number> {
  const uses = new Map<Use, number>();
  for (const stack of chip.stacks) {
    for (const [use, bytes] of stackUses(stack)) uses.set(use, (uses.get(use) ?? 0) + bytes);
  }
  return uses;
}
