// Where the steps' emulated time has gone since the start, and how many there were of each kind.
import type { MachineSnapshot, StepDurations } from "../wire/report";
import { count, duration, share, text } from "../words/quantity";

/** The parts that are listed; the rest are small, and are one row. */
const LISTED = 10;

export function StepCard({ report }: { report: MachineSnapshot }) {
  const parts = Object.entries(report.parts_s)
    .filter(([, seconds]) => seconds > 0)
    .sort(([, a], [, b]) => b - a);
  const total = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
  const rest = parts.slice(LISTED).reduce((sum, [, seconds]) => sum + seconds, 0);
  const rows = [...parts.slice(0, LISTED), ...(rest > 0 ? [["the rest", rest] as const] : [])];
  return (
    <section class="card steps" aria-label="Steps">
      <header>
        <h2>Steps</h2>
        <span class="side">{phases(report.steps_by_phase)}</span>
      </header>
      {rows.length === 0 && <p class="none">No step has run yet.</p>}
      <dl class="bars">
        {rows.map(([name, seconds]) => (
          <div key={name} data-part={name}>
            <dt>{name.replaceAll("_", " ")}</dt>
            <dd>
              <span class="bar">
                <i style={{ width: `${(100 * seconds) / total}%` }} />
              </span>
              <span>{share(seconds / total)}</span>
            </dd>
          </div>
        ))}
      </dl>
      <dl class="facts">
        <Times name="A step" times={report.step_times} />
        <Times name="Of it the chips’ own work" times={report.device_times} />
      </dl>
    </section>
  );
}

function Times({ name, times }: { name: string; times: StepDurations }) {
  if (times.p50_s === null) return null;
  return (
    <div data-times={name} data-p50-s={times.p50_s} data-p99-s={times.p99_s}>
      <dt>{name}</dt>
      <dd>
        p50 {text(duration(times.p50_s))}, p99 {text(duration(times.p99_s))}
      </dd>
    </div>
  );
}

function phases(steps: Record<string, number>): string {
  return Object.entries(steps)
    .filter(([, number]) => number > 0)
    .map(([phase, number]) => `${count(number)} ${phase}`)
    .join(" · ");
}
