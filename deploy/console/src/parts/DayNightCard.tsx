// Who serves and who trains, what decides it, and what changes hands next.
import { propose } from "../state/action";
import { phaseAction, policyAction } from "../state/actions";
import type { DayNightState as DayNight, GroupState as Group, LeaseState as Lease } from "../wire/report";
import { count, digits, duration, plural, share, span, text, scaled, watts } from "../words/quantity";

export function DayNightCard({ state, leases }: { state: DayNight; leases: readonly Lease[] }) {
  return (
    <section class="card daynight" aria-label="Day and night" data-policy={state.policy} data-emulated-s={state.emulated_s}>
      <header>
        <h2>Day and night</h2>
        <span class="side">{state.time_of_day}</span>
      </header>
      <p class="lead">
        <b>{nextWords(state)}</b>
      </p>
      <p class="reason">{state.reason}</p>
      <DayStrip state={state} />
      <ul class="groups">
        {state.groups.map((group) => (
          <GroupRow key={group.group} group={group} manual={state.policy === "manual"} lease={leases.find((lease) => lease.number === group.lease)} />
        ))}
      </ul>
      <dl class="facts">
        <Fact id="load_per_s" name="Load" value={state.load_per_s} shown={`${digits(state.load_per_s)} requests/s`} />
        {state.group_requests_per_s !== null && (
          <Fact id="group_requests_per_s" name="A group serves" value={state.group_requests_per_s} shown={`${digits(state.group_requests_per_s)} requests/s`} />
        )}
        <Fact id="slo" name="Target" value={state.slo} shown={state.slo} />
        <Fact id="burst_response_s" name="A burst is answered within" value={state.burst_response_s} shown={text(duration(state.burst_response_s))} />
        {state.ttft_attainment !== null && (
          <Fact id="ttft_attainment" name="TTFT in time" value={state.ttft_attainment} shown={share(state.ttft_attainment)} />
        )}
        {state.tpot_attainment !== null && (
          <Fact id="tpot_attainment" name="TPOT in time" value={state.tpot_attainment} shown={share(state.tpot_attainment)} />
        )}
        {state.job && <Fact id="job_step" name="Training job" value={state.job.step} shown={jobWords(state.job)} />}
        {state.job && state.job.emulated_s > 0 && <Fact id="job_share" name="Its chips" value={trainedShare(state.job)} shown={paceWords(state.job)} />}
        {state.job?.loss != null && <Fact id="job_loss" name="Loss" value={state.job.loss} shown={`${state.job.loss.toFixed(3)} nats/token`} />}
      </dl>
      {(state.trouble || state.job?.trouble) && <p class="trouble">{state.trouble || state.job?.trouble}</p>}
      <footer>
        <span class="policy" title={state.policy_words}>
          Policy <b>{state.policy}</b>
        </span>
        <button type="button" class="small" data-action="policy" onClick={() => propose(policyAction(state.policy))}>
          Change…
        </button>
      </footer>
    </section>
  );
}

function Fact({ id, name, value, shown }: { id: string; name: string; value: number | string; shown: string }) {
  return (
    <div data-fact={id} data-value={value}>
      <dt>{name}</dt>
      <dd>{shown}</dd>
    </div>
  );
}

function nextWords(state: DayNight): string {
  const moving = state.groups.filter((group) => group.phase === "draining" || group.phase === "restoring");
  if (moving.length > 0) return moving.map((group) => `Group ${group.group} is ${group.phase}`).join(", ");
  if (state.next_change_day_s === null) {
    if (state.policy === "manual") return "The next hand-over is yours to ask for";
    return state.next_change_if ? `No hand-over in sight: ${state.next_change_if}` : "No hand-over in sight within a day";
  }
  const away = span(state.next_change_day_s - state.day_s);
  return `Next hand-over in ${away} of the day${state.next_change_if ? `, if ${state.next_change_if}` : ""}`;
}

function jobWords(job: NonNullable<DayNight["job"]>): string {
  if (job.phase === "absent") return "not started";
  return `${job.phase}, step ${count(job.step)}, ${text(scaled(job.tokens, ""))} tokens${job.watts ? `, ${watts(job.watts)}` : ""}`;
}

function trainedShare(job: NonNullable<DayNight["job"]>): number {
  return job.emulated_s / (job.emulated_s + job.lag_s);
}

function paceWords(job: NonNullable<DayNight["job"]>): string {
  if (job.trained_tokens > job.tokens) {
    return `fast-forwarded to ${text(scaled(job.trained_tokens, ""))} tokens, ${share(job.tokens / job.trained_tokens)} computed`;
  }
  return job.lag_s > 0 ? `train ${share(trainedShare(job))} of what they would: ${text(duration(job.lag_s))} late` : "train at their pace";
}

function GroupRow({ group, manual, lease }: { group: Group; manual: boolean; lease: Lease | undefined }) {
  const other = group.desired === "training" ? "serving" : "training";
  const why = manual ? "" : "Another policy decides; change it to manual first.";
  return (
    <li data-group={group.group} data-phase={group.phase} data-desired={group.desired}>
      <i class={`swatch ${group.phase}`} aria-hidden="true">
        {group.phase === "serving" ? "" : group.phase[0]?.toUpperCase()}
      </i>
      <span>
        <b>Group {group.group}</b> {plural(group.chips.length, "chip")}
        <small>{group.trouble || lease?.reason || `${group.phase}${group.desired === group.phase ? "" : `, to be ${group.desired}`}`}</small>
      </span>
      <button type="button" class="small" disabled={!manual} title={why} data-action="phase" onClick={() => propose(phaseAction(group, other))}>
        {other === "training" ? "Train…" : "Serve…"}
      </button>
    </li>
  );
}

const DAY_S = 86_400;

/** The day of the policy's own clock: where it is now, and where the next change is. */
function DayStrip({ state }: { state: DayNight }) {
  const told = /(\d\d):(\d\d)/.exec(state.time_of_day);
  if (!told) return null;
  const now = (Number(told[1]) * 3_600 + Number(told[2]) * 60) / DAY_S;
  const next = state.next_change_day_s === null ? null : (now + (state.next_change_day_s - state.day_s) / DAY_S) % 1;
  return (
    <div class="day" aria-hidden="true">
      <div>
        <i class="now" style={{ left: `${100 * now}%` }} />
        {next !== null && <i class="next" style={{ left: `${100 * next}%` }} />}
      </div>
      <ol>
        {[0, 6, 12, 18, 24].map((hour) => (
          <li key={hour}>{hour}</li>
        ))}
      </ol>
    </div>
  );
}
