// What the page remembers of the looks it was sent: the machine's figures, and each chip's.
import type { MachineSnapshot, LatencyReport as Latency } from "../wire/report";
import { capacityBytes, usedBytes } from "../words/chip_mark";
import { Ring } from "./ring";

/** Fifteen minutes at a look a second: 144 chips are then 3 MB. */
export const LOOKS_KEPT = 900;

export const FIGURES = [
  "emulated_s",
  "output_per_s",
  "input_per_s",
  "mw_provisioned",
  "mw_drawn",
  "mw_all_in",
  "ttft_p50_s",
  "ttft_p99_s",
  "tpot_p50_s",
  "tpot_p99_s",
  "running",
  "waiting",
  "chip_watts",
  "it_watts",
  "facility_watts",
  "pue",
  "lag_share",
  "step_p50_s",
  "step_p99_s",
  "kv_share",
] as const;
export type Figure = (typeof FIGURES)[number];
/** By what tokens are divided: a TokensPerMegawatt's `basis`. */
export type Basis = "provisioned" | "drawn" | "all-in";

export const MW_OF: Record<Basis, Figure> = {
  provisioned: "mw_provisioned",
  drawn: "mw_drawn",
  "all-in": "mw_all_in",
};

const CHIP_FIGURES = 3;

export class History {
  private readonly figures = new Ring(LOOKS_KEPT, FIGURES.length);
  private chips: Ring | null = null;
  private chipCount = 0;
  private last: MachineSnapshot | null = null;

  /** A look; one of another run of the engine, or of another machine, begins anew. */
  add(look: MachineSnapshot, latency: Latency | null): void {
    const before = this.last;
    if (before && (look.emulated_s < before.emulated_s || look.state.chips.length !== this.chipCount)) this.clear();
    if (this.last && look.emulated_s === this.last.emulated_s) return; // the same look, sent again
    const row = figuresOf(look, this.last, latency);
    this.figures.push(FIGURES.map((name) => row[name] ?? NaN));
    this.addChips(look);
    this.last = look;
  }

  clear(): void {
    this.figures.clear();
    this.chips = null;
    this.chipCount = 0;
    this.last = null;
  }

  get length(): number {
    return this.figures.length;
  }

  of(figure: Figure): (number | null)[] {
    return this.figures.column(FIGURES.indexOf(figure));
  }

  /** Of one chip, beside `of("emulated_s")`: utilization, watts, share of its HBM that is held. */
  ofChip(chip: number): { utilization: (number | null)[]; watts: (number | null)[]; hbm: (number | null)[] } {
    const column = (index: number): (number | null)[] => this.chips?.column(chip * CHIP_FIGURES + index) ?? [];
    return { utilization: column(0), watts: column(1), hbm: column(2) };
  }

  private addChips(look: MachineSnapshot): void {
    const { chips } = look.state;
    if (this.chips === null) {
      this.chipCount = chips.length;
      this.chips = new Ring(LOOKS_KEPT, chips.length * CHIP_FIGURES);
    }
    const row = new Float64Array(chips.length * CHIP_FIGURES);
    chips.forEach((chip, index) => {
      const capacity = capacityBytes(chip);
      row[index * CHIP_FIGURES] = look.meters[index]?.utilization ?? NaN;
      row[index * CHIP_FIGURES + 1] = chip.watts;
      row[index * CHIP_FIGURES + 2] = capacity > 0 ? usedBytes(chip) / capacity : NaN;
    });
    this.chips.push(row);
  }
}

function figuresOf(
  look: MachineSnapshot,
  before: MachineSnapshot | null,
  latency: Latency | null,
): Partial<Record<Figure, number | null>> {
  const { telemetry, power } = look;
  const window = power.window;
  const perMw = (basis: Basis): number | null =>
    window?.tokens_per_megawatt.find((each) => each.basis === basis)?.output ?? null;
  return {
    emulated_s: look.emulated_s,
    output_per_s: window && window.output_tokens / window.emulated_s,
    input_per_s: window && window.prompt_tokens / window.emulated_s,
    mw_provisioned: perMw("provisioned"),
    mw_drawn: perMw("drawn"),
    mw_all_in: perMw("all-in"),
    ttft_p50_s: latency?.ttft_p50_s ?? null,
    ttft_p99_s: latency?.ttft_p99_s ?? null,
    tpot_p50_s: latency?.tpot_p50_s ?? null,
    tpot_p99_s: latency?.tpot_p99_s ?? null,
    running: telemetry.requests_running,
    waiting: telemetry.requests_waiting,
    chip_watts: telemetry.chip_watts,
    it_watts: power.it_watts,
    facility_watts: telemetry.facility_watts,
    pue: power.pue,
    lag_share: lagShare(look, before),
    step_p50_s: look.step_times.p50_s,
    step_p99_s: look.step_times.p99_s,
    kv_share: telemetry.kv_blocks > 0 ? telemetry.kv_blocks_used / telemetry.kv_blocks : null,
  };
}

/** Of the emulated time since the look before, how much the host came late by; null at the first. */
function lagShare(look: MachineSnapshot, before: MachineSnapshot | null): number | null {
  if (before === null) return null;
  const lag = look.telemetry.lag_s - before.telemetry.lag_s;
  return lag / (look.emulated_s - before.emulated_s);
}
