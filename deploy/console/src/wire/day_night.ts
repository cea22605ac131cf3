// The day and night, from the wire's JSON: an enum is PHASE_TRAINING there, a 64-bit count a text,
// and what is zero or empty may be left out.
import type { DayNight, Group } from "./report";

type Loose = Record<string, unknown>;

export function dayNightOf(said: unknown): DayNight {
  const wire = said as Loose;
  const job = wire["job"] as Loose | undefined;
  return {
    policy: word(wire["policy"]),
    policy_words: word(wire["policy_words"]),
    emulated_s: number(wire["emulated_s"]),
    day_s: number(wire["day_s"]),
    time_of_day: word(wire["time_of_day"]),
    day_length_s: number(wire["day_length_s"]),
    groups_desired: number(wire["groups_desired"]),
    reason: word(wire["reason"]),
    next_change_day_s: optional(wire["next_change_day_s"]),
    next_change_if: word(wire["next_change_if"]),
    load_per_s: number(wire["load_per_s"]),
    group_requests_per_s: optional(wire["group_requests_per_s"]),
    slo: word(wire["slo"]),
    burst_response_s: number(wire["burst_response_s"]),
    ttft_attainment: optional(wire["ttft_attainment"]),
    groups: list(wire["groups"]).map(groupOf),
    job: job
      ? {
          phase: enumWord(job["phase"], "JOB_PHASE_"),
          step: number(job["step"]),
          tokens: number(job["tokens"]),
          loss: optional(job["loss"]),
          held_out_loss: optional(job["held_out_loss"]),
          watts: number(job["watts"]),
          joules: number(job["joules"]),
          trouble: word(job["trouble"]),
        }
      : null,
    trouble: word(wire["trouble"]),
  };
}

function groupOf(group: Loose): Group {
  return {
    group: number(group["group"]),
    chips: (group["chips"] as number[] | undefined) ?? [],
    phase: enumWord(group["phase"], "PHASE_"),
    desired: enumWord(group["desired"], "PHASE_"),
    lease: optional(group["lease"]),
    failures: number(group["failures"]),
    trouble: word(group["trouble"]),
  };
}

export function word(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** A count or a figure; 64-bit ones are texts in proto3's JSON. */
export function number(value: unknown): number {
  return optional(value) ?? 0;
}

export function optional(value: unknown): number | null {
  return value === undefined || value === null ? null : Number(value);
}

export function list(value: unknown): Loose[] {
  return (value as Loose[] | undefined) ?? [];
}

/** `training` of `PHASE_TRAINING`; a word that is one already stays. */
export function enumWord(value: unknown, prefix: string): string {
  return word(value).replace(new RegExp(`^${prefix}`), "").toLowerCase().replaceAll("_", "-");
}
