// The racks chip by chip, as they stand: a row is a compute tray. Arrow keys walk, Enter opens.
import { useRef, useState } from "preact/hooks";
import { propose } from "../state/action";
import { healAction, pullAction } from "../state/actions";
import type { ChipState as Chip, MachineSnapshot } from "../wire/report";
import { MARKS, type Mark, markOf } from "../words/chip_mark";
import { watts } from "../words/quantity";
import { ChipCell } from "./ChipCell";

/** Up to so many chips, a cell has room for each of its engines. */
export const LARGE_UP_TO = 16;

export function Racks({ report }: { report: MachineSnapshot }) {
  const { chips } = report.state;
  const [focused, setFocused] = useState(0);
  const grid = useRef<HTMLDivElement>(null);
  const large = chips.length <= LARGE_UP_TO;

  function walk(event: KeyboardEvent): void {
    const cells = [...(grid.current?.querySelectorAll<HTMLElement>("[data-chip]") ?? [])];
    const from = cells.find((cell) => cell === document.activeElement);
    const to = from && neighbour(cells, from, event.key);
    if (!to) return;
    event.preventDefault();
    setFocused(Number(to.dataset["chip"]));
    to.focus();
  }

  return (
    <section class="card racks" id="machine" tabIndex={-1} aria-label="Chips">
      <header>
        <h2>Chips</h2>
        <Legend chips={chips} />
      </header>
      <div class={large ? "floor large" : "floor"} ref={grid} onKeyDown={walk}>
        {racksOf(chips).map(([rack, trays]) => (
          <section class="rack" key={rack} aria-label={`Rack ${rack}`}>
            <RackHead rack={rack} report={report} />
            {trays.map(([tray, members]) => (
              <div class="tray" key={tray} role="group" aria-label={`Rack ${rack}, tray ${tray}`}>
                <span class="traynumber" aria-hidden="true">
                  {tray}
                </span>
                <div class="slots" style={{ "--across": Math.min(perRow(chips), 8) }}>
                  {members.map((chip) => (
                    <ChipCell
                      key={chip.chip}
                      chip={chip}
                      meters={report.meters[chip.chip]}
                      large={large}
                      tabbable={chip.chip === focused}
                      onFocus={() => setFocused(chip.chip)}
                    />
                  ))}
                </div>
              </div>
            ))}
          </section>
        ))}
      </div>
      <p class="hint">
        {large ? "Bars: shares of emulated time, and of HBM. " : "At the right: watts. Fill: share of emulated time at work. Lower bar: HBM held. "}
        <span class="keys">
          <kbd>←↑↓→</kbd> walk, <kbd>Enter</kbd> opens.
        </span>
      </p>
    </section>
  );
}

function perRow(chips: readonly Chip[]): number {
  return Math.max(...chips.map((chip) => chip.position)) + 1;
}

function racksOf(chips: readonly Chip[]): [number, [number, Chip[]][]][] {
  const racks = new Map<number, Map<number, Chip[]>>();
  for (const chip of chips) {
    const trays = racks.get(chip.rack) ?? new Map<number, Chip[]>();
    racks.set(chip.rack, trays);
    trays.set(chip.tray, [...(trays.get(chip.tray) ?? []), chip]);
  }
  return [...racks].map(([rack, trays]) => [rack, [...trays]]);
}

function RackHead({ rack, report }: { rack: number; report: MachineSnapshot }) {
  const power = report.power.racks.find((each) => each.rack === rack);
  const switches = report.state.racks.find((each) => each.rack === rack);
  const share = power && power.provisioned_watts > 0 ? power.it_watts / power.provisioned_watts : 0;
  return (
    <header class="rackhead" data-rack={rack} data-it-watts={power?.it_watts}>
      <h3>Rack {rack}</h3>
      {power && (
        <p title={`IT power of the partition’s chips here, of ${watts(power.provisioned_watts)} that they are given`}>
          <span class="meter" aria-hidden="true">
            <i style={{ width: `${Math.min(100, 100 * share)}%` }} class={share > 1 ? "over" : ""} />
          </span>
          {watts(power.it_watts)}
        </p>
      )}
      {switches && switches.switch_trays > 0 && (
        <Switches rack={rack} up={switches.switch_trays_up} of={switches.switch_trays} />
      )}
    </header>
  );
}

function Switches({ rack, up, of }: { rack: number; up: number; of: number }) {
  return (
    <span class="switches" data-switch-trays-up={up}>
      <button
        type="button"
        class="quiet"
        title="Pull one of the rack’s switch trays…"
        aria-label={`Rack ${rack}: ${up} of ${of} switch trays are in; pull one`}
        onClick={() => propose(pullAction(rack))}
      >
        <span class="pips" aria-hidden="true">
          {Array.from({ length: of }, (_, index) => (
            <i key={index} class={index < up ? "" : "out"} />
          ))}
        </span>
        {up < of ? `${up}/${of}` : "switches"}
      </button>
      {up < of && (
        <button type="button" class="quiet" onClick={() => propose(healAction({ rack }))}>
          Heal
        </button>
      )}
    </span>
  );
}

function Legend({ chips }: { chips: readonly Chip[] }) {
  const counts = new Map<Mark, number>();
  for (const chip of chips) counts.set(markOf(chip), (counts.get(markOf(chip)) ?? 0) + 1);
  const broken = chips.some((chip) => ["lost", "hung", "slow", "impaired"].includes(markOf(chip)));
  return (
    <>
      <ul class="legend" aria-label="Chips by state">
        {(Object.keys(MARKS) as Mark[])
          .filter((mark) => counts.has(mark))
          .reverse()
          .map((mark) => (
            <li key={mark} data-mark={mark} data-count={counts.get(mark)}>
              <i class={`swatch ${mark}`} aria-hidden="true">
                {MARKS[mark].letter}
              </i>
              {counts.get(mark)} {MARKS[mark].word}
            </li>
          ))}
      </ul>
      {broken && (
        <button type="button" class="small" onClick={() => propose(healAction(null))}>
          Heal all
        </button>
      )}
    </>
  );
}

/** The cell that an arrow leads to: the nearest in that direction, straight ahead before aside. */
function neighbour(cells: readonly HTMLElement[], from: HTMLElement, key: string): HTMLElement | undefined {
  if (key === "Home") return cells[0];
  if (key === "End") return cells[cells.length - 1];
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  if (!way) return undefined;
  const [dx, dy] = way as [number, number];
  const at = centre(from);
  let best: HTMLElement | undefined;
  let least = Infinity;
  for (const cell of cells) {
    const to = centre(cell);
    const ahead = (to.x - at.x) * dx + (to.y - at.y) * dy;
    const aside = Math.abs((to.x - at.x) * dy) + Math.abs((to.y - at.y) * dx);
    if (ahead < 4) continue;
    const far = ahead + 8 * aside;
    if (far < least) [best, least] = [cell, far];
  }
  return best;
}

function centre(cell: HTMLElement): { x: number; y: number } {
  const box = cell.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
}

