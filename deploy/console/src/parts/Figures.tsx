// The big figures, each with what it was in the last minutes.
import { signal } from "@preact/signals";
import { history, latency, looks } from "../state/console";
import { type Basis, type Figure, MW_OF } from "../state/history";
import type { MachineSnapshot } from "../wire/report";
import { duration, type Quantity, NONE, scaled, share, text, things, watts } from "../words/quantity";
import { Sparkline } from "./Sparkline";

export const BASES: readonly Basis[] = ["provisioned", "drawn", "all-in"];
export const basis = signal<Basis>("provisioned");

export function Figures({ report }: { report: MachineSnapshot }) {
  const { telemetry, power } = report;
  const window = power.window;
  const output = window && window.output_tokens / window.emulated_s;
  const input = window && window.prompt_tokens / window.emulated_s;
  const times = latency.value;
  return (
    <section class="figures" aria-label="Figures, in emulated time">
      <Tile name="Output tokens/s" id="output_per_s" value={output} shown={scaled(output, "")} history="output_per_s">
        {text(scaled(input, ""))} prompt tokens/s
      </Tile>
      <PerMegawatt report={report} />
      <Tile name="TTFT p50" id="ttft_p50_s" value={times?.ttft_p50_s} shown={duration(times?.ttft_p50_s)} history="ttft_p50_s">
        p99 {text(duration(times?.ttft_p99_s))}
      </Tile>
      <Tile name="TPOT p50" id="tpot_p50_s" value={times?.tpot_p50_s} shown={duration(times?.tpot_p50_s)} history="tpot_p50_s">
        p99 {text(duration(times?.tpot_p99_s))}
      </Tile>
      <Tile
        name="Running"
        id="requests_running"
        value={telemetry.requests_running}
        shown={things(telemetry.requests_running)}
        history="running"
      >
        <span data-figure="requests_waiting" data-value={telemetry.requests_waiting}>
          {text(things(telemetry.requests_waiting))} waiting
        </span>
      </Tile>
      <Tile name="Chips draw" id="chip_watts" value={telemetry.chip_watts} shown={scaled(telemetry.chip_watts, "W", 1_000)} history="chip_watts">
        of {watts(power.chip_budget_watts * report.state.chips.length)} budget
      </Tile>
      <Tile name="Facility power" id="facility_watts" value={telemetry.facility_watts} shown={scaled(telemetry.facility_watts, "W", 1_000)} history="facility_watts">
        PUE {power.pue.toFixed(2)}, worst day
      </Tile>
      <Tile name="Clock lag" id="lag_s" value={telemetry.lag_s} shown={lagNow()} history="lag_share">
        {text(duration(telemetry.lag_s))} since the start
      </Tile>
    </section>
  );
}

function lagNow(): Quantity {
  const shares = history.of("lag_share");
  const [number, unit] = share(shares[shares.length - 1]).split("\u00a0");
  return { number: number ?? NONE, unit: unit ?? "" };
}

interface TileProps {
  name: string;
  id: string;
  value: number | null | undefined;
  shown: Quantity;
  history: Figure;
  children: preact.ComponentChildren;
}

function Tile({ name, id, value, shown, history: figure, children }: TileProps) {
  return (
    <div class="tile" data-figure={id} data-value={value ?? ""}>
      <h2>{name}</h2>
      <p class="big">
        {shown.number}
        {shown.unit && <small>{shown.unit}</small>}
      </p>
      <p class="more">{children}</p>
      <Spark figure={figure} />
    </div>
  );
}

function Spark({ figure }: { figure: Figure }) {
  looks.value; // drawn again at each look
  return <Sparkline values={history.of(figure)} />;
}

function PerMegawatt({ report }: { report: MachineSnapshot }) {
  const all = report.power.window?.tokens_per_megawatt ?? [];
  const chosen = all.find((each) => each.basis === basis.value);
  const shown = scaled(chosen?.output, "");
  return (
    <div class="tile" data-figure="output_per_s_per_mw" data-value={chosen?.output ?? ""} data-basis={basis.value}>
      <h2>Tokens/s/MW</h2>
      <p class="big">
        {shown.number}
        {shown.unit && <small>{shown.unit}</small>}
      </p>
      <div class="segments" role="radiogroup" aria-label="Watts that tokens are divided by">
        {BASES.map((each) => (
          <label key={each} title={all.find((one) => one.basis === each)?.why ?? ""}>
            <input
              type="radio"
              name="basis"
              checked={basis.value === each}
              onChange={() => {
                basis.value = each;
              }}
            />
            <span>{each}</span>
          </label>
        ))}
      </div>
      <Spark figure={MW_OF[basis.value]} />
    </div>
  );
}
