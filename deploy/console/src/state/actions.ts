// Every action of the page, as a call of the control service.
import { call } from "../wire/calls";
import type { ChipState as Chip, FaultKind, GroupState as Group, LeaseState as Lease } from "../wire/report";
import { plural } from "../words/quantity";
import type { Action, Field, DryRunResult, Values } from "./action";

interface FaultReport {
  report?: { survivable?: boolean; reason?: string; number?: number };
}
interface LeaseReport {
  report?: { lease?: { number?: number }; reason?: string };
}

interface FaultWords {
  title: string;
  words: string;
  fields: (chip: Chip) => Field[];
}

const FAULTS: Record<Exclude<FaultKind, "pull-switch-tray">, FaultWords> = {
  "lose-chip": {
    title: "Lose",
    words: "The chip is gone until it is healed: its requests go on elsewhere, and its experts are filled again from other copies or the checkpoint.",
    fields: () => [],
  },
  "hang-chip": {
    title: "Hang",
    words: "The chip stops answering. The engine finds out when a step does not end in time, then goes on without it.",
    fields: () => [],
  },
  "slow-chip": {
    title: "Slow",
    words: "The chip's engines take longer, and all chips wait for it in every step.",
    fields: () => [{ name: "factor", label: "Times as long", value: "2", numeric: true, hint: "above 1" }],
  },
  "fail-stack": {
    title: "Fail an HBM stack of",
    words: "The stack and what it holds are gone.",
    fields: (chip) => [
      {
        name: "stack",
        label: "HBM stack",
        value: String(chip.stacks.find((stack) => !stack.failed)?.stack ?? 0),
        options: chip.stacks
          .filter((stack) => !stack.failed)
          .map((stack) => [String(stack.stack), `stack ${stack.stack}`] as const),
      },
    ],
  },
  "cut-link": {
    title: "Cut links of",
    words: "The chip has fewer lanes in the tier, and what crosses them takes longer.",
    fields: () => [
      {
        name: "tier",
        label: "Tier",
        value: "tray",
        options: [
          ["tray", "within the tray"],
          ["backplane", "backplane"],
          ["cross-rack", "cross-rack"],
        ],
      },
      { name: "lanes", label: "Lanes", value: "", numeric: true, hint: "empty: all of them" },
    ],
  },
};

export const CHIP_FAULTS = Object.keys(FAULTS) as Exclude<FaultKind, "pull-switch-tray">[];
export const FAULT_BUTTONS: Record<Exclude<FaultKind, "pull-switch-tray">, string> = {
  "lose-chip": "Lose",
  "hang-chip": "Hang",
  "slow-chip": "Slow",
  "fail-stack": "Fail a stack",
  "cut-link": "Cut links",
};

export function faultAction(kind: Exclude<FaultKind, "pull-switch-tray">, chip: Chip): Action {
  const told = FAULTS[kind];
  return {
    title: `${told.title} chip ${chip.chip}`,
    words: told.words,
    button: FAULT_BUTTONS[kind],
    danger: true,
    fields: told.fields(chip),
    ...injecting((values) => ({ kind: enumName("FAULT_KIND", kind), chip: chip.chip, ...details(values) })),
  };
}

export function pullAction(rack: number): Action {
  return {
    title: `Pull a switch tray of rack ${rack}`,
    words: "The rack's chips have less bandwidth between their trays until it is healed.",
    button: "Pull",
    danger: true,
    fields: [],
    ...injecting(() => ({ kind: enumName("FAULT_KIND", "pull-switch-tray"), rack })),
  };
}

export function healAction(what: { chip: number } | { rack: number } | null): Action {
  const whose =
    what === null ? "everything" : "chip" in what ? `chip ${what.chip}` : `the switch trays of rack ${what.rack}`;
  return {
    title: `Heal ${whose}`,
    words: "What faults have broken there is repaired, and a chip that was lost is taken in again.",
    button: "Heal",
    danger: false,
    fields: [],
    act: async (_values, key) => {
      const { report } = await call<{ report?: { healed?: number[] } }>("Heal", what ?? {}, key);
      const healed = report?.healed ?? [];
      return healed.length ? `Healed: ${plural(healed.length, "fault")} (${healed.join(", ")}).` : "There was nothing to heal.";
    },
  };
}

export function drainAction(chips: readonly number[], ranks: string): Action {
  const request = (values: Values, dryRun: boolean) => ({ chips, grace_s: Number(values["grace_s"]), dryRun });
  return {
    title: `Drain ${ranks} for maintenance`,
    words: `${plural(chips.length, "chip stops", "chips stop")} serving. Requests there may end within the grace time, and then go on on other chips.`,
    button: "Drain",
    danger: true,
    fields: [{ name: "grace_s", label: "Grace, emulated seconds", value: "5", numeric: true }],
    dryRun: async (values, key) => {
      const { report } = await call<LeaseReport>("Drain", wire(request(values, true)), key);
      return { good: true, words: report?.reason ?? "" };
    },
    act: async (values, key) => {
      const { report } = await call<LeaseReport>("Drain", wire(request(values, false)), key);
      const number = report?.lease?.number;
      return `${number ? `Lease ${number}: ` : ""}${report?.reason ?? "it begins"}`;
    },
  };
}

export function resumeAction(lease: Lease): Action {
  return {
    title: `Take back ${plural(lease.chips.length, "chip")} of lease ${lease.number}`,
    words: "The chips read their weights again and serve; a job on them saves first. A lease that still drains is called off.",
    button: "Resume",
    danger: false,
    fields: [],
    act: async (_values, key) => {
      const { report } = await call<LeaseReport>("Resume", { lease: lease.number }, key);
      return report?.reason ?? "They come back.";
    },
  };
}

export function phaseAction(group: Group, phase: "serving" | "training"): Action {
  const chips = plural(group.chips.length, "chip");
  return {
    title: phase === "training" ? `Let group ${group.group} train` : `Let group ${group.group} serve`,
    words:
      phase === "training"
        ? `Its ${chips} are drained and lent to the training job; what they serve goes on on the others.`
        : `The training job saves and stops there, and its ${chips} read their weights and serve.`,
    button: phase === "training" ? "Train" : "Serve",
    danger: phase === "training",
    fields: [],
    act: async (_values, key) => {
      await call("SetPhase", { group: group.group, phase: enumName("PHASE", phase) }, key);
      return `Group ${group.group} is to be ${phase}.`;
    },
  };
}

export function policyAction(now: string): Action {
  return {
    title: "Change the policy",
    words: "Another policy decides which groups serve and which train, from now on. With manual, whoever uses this page does.",
    button: "Change",
    danger: true,
    fields: [
      { name: "policy", label: "Policy", value: now, hint: "manual, never, demand, schedule:22:00-06:00@Europe/Berlin, …" },
    ],
    act: async (values, key) => {
      await call("SetPolicy", { policy: values["policy"] }, key);
      return `The policy is ${values["policy"]}.`;
    },
  };
}

export function admissionAction(isOpen: boolean): Action {
  if (!isOpen) {
    return {
      title: "Open admission",
      words: "New requests are taken in again.",
      button: "Open",
      danger: false,
      fields: [],
      act: async (_values, key) => {
        await call("UndrainEngine", {}, key);
        return "Admission is open.";
      },
    };
  }
  return {
    title: "Close admission",
    words: "New requests are refused as draining; those inside go on to their end.",
    button: "Close",
    danger: true,
    fields: [{ name: "reason", label: "What clients are told", value: "", hint: "empty: the server's own words" }],
    act: async (values, key) => {
      await call("DrainEngine", { reason: values["reason"] ?? "" }, key);
      return "Admission is closed.";
    },
  };
}

function injecting(fault: (values: Values) => Record<string, unknown>): Pick<Action, "dryRun" | "act"> {
  return {
    dryRun: async (values, key): Promise<DryRunResult> => {
      const { report } = await call<FaultReport>("InjectFault", { fault: fault(values), dryRun: true }, key);
      return { good: report?.survivable ?? false, words: report?.reason ?? "" };
    },
    act: async (values, key) => {
      const { report } = await call<FaultReport>("InjectFault", { fault: fault(values) }, key);
      return `Fault ${report?.number ?? ""} has happened.`;
    },
  };
}

/** The fields that a form has, as the message wants them; an empty one is absent. */
function details(values: Values): Record<string, unknown> {
  const told: Record<string, unknown> = {};
  if (values["factor"]) told["factor"] = Number(values["factor"]);
  if (values["stack"]) told["stack"] = Number(values["stack"]);
  if (values["tier"]) told["tier"] = enumName("LINK_TIER", values["tier"]);
  if (values["lanes"]) told["lanes"] = Number(values["lanes"]);
  return told;
}

function wire(request: { chips: readonly number[]; grace_s: number; dryRun: boolean }): Record<string, unknown> {
  return { chips: request.chips, graceS: request.grace_s, dryRun: request.dryRun };
}

function enumName(prefix: string, word: string): string {
  return `${prefix}_${word.toUpperCase().replaceAll("-", "_")}`;
}
