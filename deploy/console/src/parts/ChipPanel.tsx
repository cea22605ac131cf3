// One chip: its engines, HBM, links, rank, what has happened to it, and what can be done to it.
import { useEffect, useRef } from "preact/hooks";
import { chosenChip, dayNight, happened, history, looks } from "../state/console";
import { propose, proposed } from "../state/action";
import { CHIP_FAULTS, drainAction, FAULT_BUTTONS, faultAction, healAction, resumeAction } from "../state/actions";
import type { ChipState as Chip, ChipMeters, MachineEvent as Happened, MachineSnapshot, LeaseState as Lease } from "../wire/report";
import { capacityBytes, MARKS, markOf, troubles, usedBytes } from "../words/chip_mark";
import { stackUses, USE_WORDS, USES } from "../words/hbm_use";
import { count, duration, memory, moment, scaled, share, text, watts } from "../words/quantity";
import { shortLists } from "../words/number_lists";
import { Chart } from "./Chart";

export function ChipPanel({ report }: { report: MachineSnapshot }) {
  const number = chosenChip.value;
  const heading = useRef<HTMLHeadingElement>(null);

  useEffect(() => {
    if (number === null) return undefined;
    heading.current?.focus({ preventScroll: true });
    const close = (event: KeyboardEvent): void => {
      if (event.key === "Escape" && proposed.value === null) shut(number);
    };
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
  }, [number]);

  const chip = number === null ? undefined : report.state.chips[number];
  if (!chip) return null;
  const meters = report.meters[chip.chip];
  const mark = markOf(chip);
  return (
    <div class="panel" role="dialog" aria-labelledby="panel-title" data-panel-chip={chip.chip}>
      <header>
        <i class={`swatch ${mark}`} aria-hidden="true">
          {MARKS[mark].letter}
        </i>
        <div>
          <h2 id="panel-title" ref={heading} tabIndex={-1}>
            Chip {chip.chip}
          </h2>
          <p>
            {[MARKS[mark].word, ...troubles(chip)].join(" · ")} · rack {chip.rack}, tray {chip.tray}, place {chip.position}
          </p>
        </div>
        <button type="button" class="icon" aria-label="Close the panel" onClick={() => shut(chip.chip)}>
          <svg viewBox="0 0 24 24" class="sign" aria-hidden="true">
            <path d="M6 6l12 12 M18 6L6 18" />
          </svg>
        </button>
      </header>
      <div class="scroll" tabIndex={0} role="region" aria-label={`About chip ${chip.chip}`}>
        <Engines meters={meters} window={report.window_s} />
        <Facts chip={chip} meters={meters} report={report} />
        <Hbm chip={chip} />
        <Timeline chip={chip} />
        <Happenings chip={chip} />
      </div>
      <Actions chip={chip} report={report} />
    </div>
  );
}

function shut(chip: number): void {
  chosenChip.value = null;
  document.getElementById(`chip-${chip}`)?.focus();
}

function Engines({ meters, window }: { meters: ChipMeters | undefined; window: number }) {
  if (!meters) return null;
  const rows = [
    ["all", meters.utilization],
    ...Object.entries(meters.engine_utilization),
    ["HBM traffic", meters.hbm_utilization],
    ["links", meters.link_utilization],
  ] as [string, number][];
  return (
    <section>
      <h3>
        Busy <small>share of the last {text(duration(window))} of emulated time</small>
      </h3>
      <dl class="bars">
        {rows.map(([name, value]) => (
          <div key={name} data-engine={name} data-utilization={value}>
            <dt>{name}</dt>
            <dd>
              <span class="bar">
                <i style={{ width: `${Math.min(100, 100 * value)}%` }} />
              </span>
              <span>{share(value)}</span>
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Facts({ chip, meters, report }: { chip: Chip; meters: ChipMeters | undefined; report: MachineSnapshot }) {
  const rank = chip.rank === null ? undefined : report.state.ranks[chip.rank];
  const facts: [string, string][] = [["Draws", `${watts(chip.watts)} of ${watts(report.power.chip_budget_watts)}`]];
  if (meters) {
    facts.push(["Computes", `${text(scaled(meters.flops_per_s, "FLOP/s", 1_000))}`]);
    facts.push(["Energy", text(scaled(meters.joules, "J", 1_000))]);
    facts.push(["Sent over links", text(scaled(meters.link_bytes, "B", 1_000))]);
    facts.push(["HBM traffic", text(scaled(meters.hbm_bytes, "B", 1_000))]);
    for (const [name, value] of Object.entries(meters.figures)) {
      const words = name.replace(/_bytes$/, "").replaceAll("_", " ");
      const unit = name.endsWith("_bytes") ? "B" : "";
      facts.push([words.charAt(0).toUpperCase() + words.slice(1), text(scaled(value, unit, 1_000))]);
    }
  }
  if (rank) {
    const queue = `${count(rank.requests_running)} running, ${count(rank.requests_waiting)} waiting`;
    const kv = rank.kv_blocks > 0 ? share(rank.kv_blocks_used / rank.kv_blocks) : "–";
    facts.push([`Rank ${rank.rank}`, rank.up ? queue : "down"], ["KV blocks", `${kv} used`]);
  }
  if (chip.expert_slots > 0) facts.push(["Expert slots", `${count(chip.expert_slots_filled)} of ${count(chip.expert_slots)}`]);
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Hbm({ chip }: { chip: Chip }) {
  const shown = USES.filter((use) => chip.stacks.some((stack) => stackUses(stack).has(use)));
  return (
    <section>
      <h3>
        HBM <small>{`${memory(usedBytes(chip))} of ${memory(capacityBytes(chip))} held`}</small>
      </h3>
      <dl class="bars">
        {chip.stacks.map((stack) => {
          const uses = stackUses(stack);
          const held = [...uses.values()].reduce((sum, bytes) => sum + bytes, 0);
          return (
            <div key={stack.stack}>
              <dt>stack {stack.stack}</dt>
              <dd>
                <span class={stack.failed ? "bar failed" : "bar"}>
                  {USES.filter((use) => uses.has(use)).map((use) => (
                    <i
                      key={use}
                      class={`use-${use}`}
                      style={{ width: `${(100 * (uses.get(use) ?? 0)) / (stack.capacity_bytes || 1)}%` }}
                    />
                  ))}
                </span>
                <span>{stack.failed ? "failed" : share(held / stack.capacity_bytes)}</span>
              </dd>
            </div>
          );
        })}
      </dl>
      <ul class="legend">
        {shown.map((use) => (
          <li key={use}>
            <i class={`dot use-${use}`} /> {USE_WORDS[use]}{" "}
            {memory(chip.stacks.reduce((sum, stack) => sum + (stackUses(stack).get(use) ?? 0), 0))}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Timeline({ chip }: { chip: Chip }) {
  looks.value; // drawn again at each look
  const times = history.of("emulated_s");
  const past = history.ofChip(chip.chip);
  return (
    <section>
      <Chart
        key={`busy-${chip.chip}`}
        title="Busy"
        times={times}
        least={0.1}
        shown={share}
        series={[{ name: "", colour: "line-1", values: past.utilization }]}
      />
      <Chart
        key={`watts-${chip.chip}`}
        title="Watts"
        times={times}
        shown={watts}
        series={[{ name: "", colour: "line-3", values: past.watts }]}
      />
    </section>
  );
}

function Happenings({ chip }: { chip: Chip }) {
  const own = happened.value.filter((event) => touches(event, chip.chip)).slice(-12).reverse();
  return (
    <section>
      <h3>What happened to it</h3>
      {own.length === 0 && <p class="none">Nothing that the server remembers.</p>}
      <ol class="events">
        {own.map((event) => (
          <li key={event.number}>
            <time>{moment(event.emulated_s)}</time> {shortLists(event.words)}
          </li>
        ))}
      </ol>
    </section>
  );
}

function touches(event: Happened, chip: number): boolean {
  return event.fault?.fault.chip === chip || (event.lease?.chips.includes(chip) ?? false);
}

function Actions({ chip, report }: { chip: Chip; report: MachineSnapshot }) {
  const lease = report.state.leases.find((each) => each.phase !== "serving" && each.chips.includes(chip.chip));
  const gone = chip.health === "lost" || chip.health === "hung";
  const broken = chip.health !== "up" || troubles(chip).length > 0;
  return (
    <footer>
      {!gone &&
        CHIP_FAULTS.map((kind) => (
          <button type="button" key={kind} data-action={kind} class="small" onClick={() => propose(faultAction(kind, chip))}>
            {FAULT_BUTTONS[kind]}…
          </button>
        ))}
      {broken && (
        <button type="button" data-action="heal" class="small good" onClick={() => propose(healAction({ chip: chip.chip }))}>
          Heal…
        </button>
      )}
      {!lease && chip.rank !== null && !gone && (
        <button type="button" data-action="drain" class="small" onClick={() => propose(drainOf(chip, report))}>
          Drain {lentWith(chip, report).whose}…
        </button>
      )}
      {lease && <ResumeButton lease={lease} />}
    </footer>
  );
}

function ResumeButton({ lease }: { lease: Lease }) {
  return (
    <button type="button" data-action="resume" class="small good" onClick={() => propose(resumeAction(lease))}>
      Resume lease {lease.number}…
    </button>
  );
}

/** What leaves together: the group, where groups change hands by day and night; else the rank. */
function lentWith(chip: Chip, report: MachineSnapshot): { chips: readonly number[]; whose: string } {
  const group = dayNight.value?.groups.find((each) => each.chips.includes(chip.chip));
  if (group) return { chips: group.chips, whose: `group ${group.group}` };
  const chips = report.state.chips.filter((each) => each.rank === chip.rank).map((each) => each.chip);
  return { chips, whose: `rank ${chip.rank}` };
}

function drainOf(chip: Chip, report: MachineSnapshot) {
  const { chips, whose } = lentWith(chip, report);
  return drainAction(chips, whose);
}
