// One chip of a rack: a button that shows its mark, how busy it is, its HBM and its watts.
import { chosenChip } from "../state/console";
import type { ChipState as Chip, ChipMeters } from "../wire/report";
import { capacityBytes, MARKS, markOf, troubles, usedBytes } from "../words/chip_mark";
import { chipUses, USES } from "../words/hbm_use";
import { share, watts } from "../words/quantity";

interface Props {
  chip: Chip;
  meters: ChipMeters | undefined;
  large: boolean;
  tabbable: boolean;
  onFocus: () => void;
}

export function ChipCell({ chip, meters, large, tabbable, onFocus }: Props) {
  const mark = markOf(chip);
  const capacity = capacityBytes(chip);
  const used = usedBytes(chip);
  const hbm = capacity > 0 ? used / capacity : 0;
  const busy = meters?.utilization ?? 0;
  const chosen = chosenChip.value === chip.chip;
  return (
    <button
      type="button"
      class={`chip ${mark}${chosen ? " chosen" : ""}`}
      id={`chip-${chip.chip}`}
      data-chip={chip.chip}
      data-mark={mark}
      data-health={chip.health}
      data-phase={chip.phase}
      data-watts={chip.watts}
      data-utilization={busy}
      data-hbm-bytes={used}
      tabIndex={tabbable ? 0 : -1}
      aria-expanded={chosen}
      aria-label={spoken(chip, busy, hbm)}
      onFocus={onFocus}
      onClick={() => {
        chosenChip.value = chosen ? null : chip.chip;
      }}
    >
      <span class="fill" style={{ "--busy-share": busy }} />
      <span class="name">
        <b>{chip.chip}</b>
        {MARKS[mark].letter && <em>{MARKS[mark].letter}</em>}
      </span>
      <span class="watts">{chip.health === "lost" ? "" : Math.round(chip.watts)}</span>
      {large ? (
        <Engines chip={chip} meters={meters} hbm={hbm} />
      ) : (
        <span class="hbm">
          <i style={{ width: `${100 * hbm}%` }} />
        </span>
      )}
    </button>
  );
}

function spoken(chip: Chip, busy: number, hbm: number): string {
  const said = [
    `Chip ${chip.chip}`,
    MARKS[markOf(chip)].word,
    ...troubles(chip),
    `busy ${share(busy)}`,
    `HBM ${share(hbm)}`,
    watts(chip.watts),
  ];
  return said.join(", ");
}

function Engines({ chip, meters, hbm }: { chip: Chip; meters: ChipMeters | undefined; hbm: number }) {
  const rows = Object.entries(meters?.engine_utilization ?? {});
  return (
    <span class="engines">
      <span class="what-it-is">
        {MARKS[markOf(chip)].word}
        {chip.rank !== null && ` · rank ${chip.rank}`}
      </span>
      <Row name="busy" kind="all" value={meters?.utilization ?? 0} />
      {rows.map(([engine, utilization]) => (
        <Row key={engine} name={engine} kind="" value={utilization} />
      ))}
      <span class="row hbm-row">
        <span>HBM</span>
        <span class="bar">
          <Uses chip={chip} />
        </span>
        <span>{share(hbm)}</span>
      </span>
    </span>
  );
}

function Row({ name, kind, value }: { name: string; kind: string; value: number }) {
  return (
    <span class={`row ${kind}`}>
      <span>{name}</span>
      <span class="bar">
        <i style={{ width: `${Math.min(100, 100 * value)}%` }} />
      </span>
      <span>{share(value)}</span>
    </span>
  );
}

function Uses({ chip }: { chip: Chip }) {
  const uses = chipUses(chip);
  const capacity = capacityBytes(chip) || 1;
  return (
    <>
      {USES.filter((use) => uses.has(use)).map((use) => (
        <i key={use} class={`use-${use}`} style={{ width: `${(100 * (uses.get(use) ?? 0)) / capacity}%` }} />
      ))}
    </>
  );
}
