// What is emulated, how its time passes, and whether the page still hears of it.
import { chooseReplica, chosenReplica, engineGone, late, line, look, service, signOut, system } from "../state/console";
import { nextTheme, theme } from "../state/theme";
import { nameReplicaInAddress } from "../wire/key";
import { digits, moment, span } from "../words/quantity";
import { Mark } from "./Mark";

const THEME_WORDS = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };

export function Header() {
  const state = look.value?.state;
  return (
    <header class="top">
      <h1>
        <Mark />
        <span>UltraServe</span>
      </h1>
      {service.value && <Replicas />}
      {state && (
        <dl class="what">
          <Item name="Model" value={state.model} />
          <Item name="System" value={state.system} />
          {system.value?.ultraserver && <Item name="UltraServer" value={system.value.ultraserver} />}
          <Item name="Partition" value={partitionWords(state.partition)} />
          <Item name="Clock" value={clockWords(state.dilation)} />
          <div class="time">
            <dt>Emulated time</dt>
            <dd data-figure="emulated-time">{moment(look.value?.emulated_s ?? 0)}</dd>
          </div>
        </dl>
      )}
      <Connection />
      <button class="icon" type="button" onClick={nextTheme} aria-label={THEME_WORDS[theme.value]} title={THEME_WORDS[theme.value]}>
        <ThemeSign />
      </button>
      <button class="icon" type="button" onClick={() => void signOut()} aria-label="Sign out" title="Sign out">
        <svg viewBox="0 0 24 24" class="sign" aria-hidden="true">
          <path d="M14 4H6v16h8 M10 12h10 M16.5 8.5L20 12l-3.5 3.5" />
        </svg>
      </button>
    </header>
  );
}

function Replicas() {
  return (
    <select
      class="which"
      aria-label="What is shown"
      value={chosenReplica.value === null ? "" : String(chosenReplica.value)}
      onChange={(event) => showReplica(event.currentTarget.value === "" ? null : Number(event.currentTarget.value))}
    >
      <option value="">All replicas</option>
      {service.value?.replicas.map((each) => (
        <option key={each.replica} value={String(each.replica)}>
          Replica {each.replica} · {each.state}
        </option>
      ))}
    </select>
  );
}

export function showReplica(number: number | null): void {
  nameReplicaInAddress(number);
  chooseReplica(number);
}

function Item({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function partitionWords(part: { chips: number; tp: number; dp: number; ep: number; lnc: number; spares: number }): string {
  const spares = part.spares ? ` + ${part.spares} spare` : "";
  return `${part.chips} chips${spares} · TP ${part.tp} · DP ${part.dp} · EP ${part.ep} · LNC ${part.lnc}`;
}

function clockWords(dilation: number): string {
  if (dilation === 0) return "virtual";
  return dilation === 1 ? "real time" : `1 emulated s = ${digits(dilation)} s`;
}

function Connection() {
  const now = line.value;
  if (engineGone.value !== null) return <Pill kind="bad" word="Engine gone" more={engineGone.value} />;
  if (now.is === "live" && late.value !== null) return <Pill kind="busy" word={lateWords(late.value.age_s)} more="The engine has not answered since; what is shown is the last that it said." />;
  if (now.is === "live") return <Pill kind="good" word="Live" more="A look each second." />;
  if (now.is === "connecting") return <Pill kind="busy" word="Connecting" more="" />;
  if (now.is === "refused") return <Pill kind="bad" word="Session over" more="Load the page again with the key." />;
  return <Pill kind="busy" word="Reconnecting" more={now.why} />;
}

function lateWords(age_s: number | null): string {
  return age_s === null ? "Engine silent" : `Engine silent for ${span(age_s)}`;
}

function Pill({ kind, word, more }: { kind: "good" | "busy" | "bad"; word: string; more: string }) {
  return (
    <span class={`pill ${kind}`} title={more} data-connection={kind} role="status">
      <i aria-hidden="true" />
      {word}
    </span>
  );
}

function ThemeSign() {
  const paths = {
    auto: "M12 3a9 9 0 1 0 0 18a9 9 0 0 0 0-18z",
    light: "M12 8a4 4 0 1 0 0 8a4 4 0 0 0 0-8z M12 2v2.5 M12 19.5V22 M2 12h2.5 M19.5 12H22 M5 5l1.7 1.7 M17.3 17.3L19 19 M19 5l-1.7 1.7 M6.7 17.3L5 19",
    dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
  };
  return (
    <svg viewBox="0 0 24 24" class="sign" aria-hidden="true">
      <path d={paths[theme.value]} />
      {theme.value === "auto" && <path class="full" d="M12 3a9 9 0 0 1 0 18z" />}
    </svg>
  );
}
