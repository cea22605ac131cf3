// A service of several replicas: what they do together, and a row for each.
import type { ReplicaFigures, ReplicaList, ReplicaReport } from "../wire/report";
import { count, NONE, plural, type Quantity, scaled, text, things, watts } from "../words/quantity";
import { basis, BASES } from "./Figures";
import { showReplica } from "./Header";

export function Service({ list }: { list: ReplicaList }) {
  const ready = list.replicas.filter((each) => each.state === "ready").length;
  return (
    <>
      {list.figures && <Together all={list.figures} ready={ready} of={list.replicas.length} />}
      <section class="card replicas" aria-label="Replicas">
        <header>
          <h2>Replicas</h2>
          <span class={ready === list.replicas.length ? "side" : "side bad"} data-figure="replicas_ready" data-value={ready}>
            {ready} of {list.replicas.length} ready
          </span>
        </header>
        <table>
          <thead>
            <tr>
              {COLUMNS.map(([name]) => (
                <th key={name} scope="col">
                  {name}
                </th>
              ))}
              <th scope="col">Tokens/s/MW, {basis.value}</th>
            </tr>
          </thead>
          <tbody>
            {list.replicas.map((each) => (
              <Row key={each.replica} replica={each} />
            ))}
          </tbody>
        </table>
      </section>
    </>
  );
}

function Together({ all, ready, of }: { all: ReplicaFigures; ready: number; of: number }) {
  return (
    <section class="figures" aria-label="Figures of all replicas, in emulated time">
      <Sum name="Output tokens/s" id="output_per_s" value={all.output_tokens_per_s} shown={scaled(all.output_tokens_per_s, "")}>
        {text(scaled(all.prompt_tokens_per_s, ""))} prompt tokens/s
      </Sum>
      <PerMegawatt all={all} />
      <Sum name="Replicas ready" id="ready" value={ready} shown={things(ready)}>
        of {count(of)}
      </Sum>
      <Sum name="Running" id="requests_running" value={all.requests_running} shown={things(all.requests_running)}>
        {text(things(all.requests_waiting))} waiting
      </Sum>
      <Sum name="Ranks up" id="ranks_up" value={all.ranks_up} shown={things(all.ranks_up)}>
        of {count(all.ranks)}
      </Sum>
      <Sum name="Chips up" id="chips_up" value={all.chips_up} shown={things(all.chips_up)}>
        of {count(all.chips)}, {plural(all.faults_open, "fault")} open
      </Sum>
      <Sum name="Chips draw" id="chip_watts" value={all.chip_watts} shown={scaled(all.chip_watts, "W", 1_000)}>
        of all replicas
      </Sum>
      <Sum name="Facility power" id="facility_watts" value={all.facility_watts} shown={scaled(all.facility_watts, "W", 1_000)}>
        racks and cooling too
      </Sum>
    </section>
  );
}

interface SumProps {
  name: string;
  id: string;
  value: number;
  shown: Quantity;
  children: preact.ComponentChildren;
}

function Sum({ name, id, value, shown, children }: SumProps) {
  return (
    <div class="tile" data-figure={id} data-value={value}>
      <h2>{name}</h2>
      <p class="big">
        {shown.number}
        {shown.unit && <small>{shown.unit}</small>}
      </p>
      <p class="more">{children}</p>
    </div>
  );
}

function PerMegawatt({ all }: { all: ReplicaFigures }) {
  const value = all.output_per_s_per_mw[basis.value];
  const shown = scaled(value, "");
  return (
    <div class="tile" data-figure="output_per_s_per_mw" data-value={value ?? ""} data-basis={basis.value}>
      <h2>Tokens/s/MW</h2>
      <p class="big">
        {shown.number}
        {shown.unit && <small>{shown.unit}</small>}
      </p>
      <div class="segments" role="radiogroup" aria-label="Watts that tokens are divided by">
        {BASES.map((each) => (
          <label key={each}>
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
    </div>
  );
}

/** A column's name, and what it says of a replica; of its machine nothing while that says nothing. */
const COLUMNS: readonly [string, (each: ReplicaReport) => string][] = [
  ["Replica", (each) => String(each.replica)],
  ["State", (each) => (each.reason ? `${each.state}: ${each.reason}` : each.state)],
  ["Role", (each) => each.role ?? NONE],
  ["Chips", (each) => `${each.ultraserver}: ${each.first_chip}–${each.first_chip + each.chips - 1}`],
  ["Chips up", ofMachine((each) => `${each.chips_up} of ${each.chips}`)],
  ["Ranks up", ofMachine((each) => `${each.ranks_up} of ${each.ranks}`)],
  ["Faults", ofMachine((each) => count(each.faults_open))],
  ["Running", ofMachine((each) => count(each.requests_running))],
  ["Waiting", ofMachine((each) => count(each.requests_waiting))],
  ["Sent", (each) => count(each.requests)],
  ["Lost", (each) => count(each.lost_requests)],
  ["Restarts", (each) => count(each.restarts)],
  ["Weights", (each) => each.fingerprint.split("-").slice(-2).join("-") || NONE],
  ["Facility", ofMachine((each) => watts(each.facility_watts))],
  ["Tokens/s", ofMachine((each) => text(scaled(each.output_tokens_per_s, "")))],
];

function ofMachine(words: (each: ReplicaFigures) => string): (each: ReplicaReport) => string {
  return (each) => (each.figures ? words(each.figures) : NONE);
}

function Row({ replica }: { replica: ReplicaReport }) {
  const perMw = replica.figures?.output_per_s_per_mw[basis.value];
  return (
    <tr data-replica={replica.replica} data-state={replica.state} data-role={replica.role ?? ""}>
      {COLUMNS.map(([name, words], index) =>
        index === 0 ? (
          <th key={name} scope="row">
            <button type="button" class="small" onClick={() => showReplica(replica.replica)}>
              {words(replica)}
            </button>
          </th>
        ) : (
          <td key={name} class={name === "State" && replica.state !== "ready" ? "bad" : undefined}>
            {words(replica)}
          </td>
        ),
      )}
      <td>{text(scaled(perMw, ""))}</td>
    </tr>
  );
}
