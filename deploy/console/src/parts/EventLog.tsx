// What has happened, newest first.
import { happened, dropped } from "../state/console";
import type { MachineEvent as Happened } from "../wire/report";
import { shortLists } from "../words/number_lists";
import { moment, plural } from "../words/quantity";

const SHOWN = 100;

export function EventLog() {
  const events = happened.value.slice(-SHOWN).reverse();
  return (
    <section class="card log" aria-label="Events">
      <header>
        <h2>Events</h2>
        <span class="side">{happened.value.length ? "emulated time" : ""}</span>
      </header>
      {dropped.value > 0 && (
        <p class="none" data-dropped={dropped.value}>
          {plural(dropped.value, "event")} of before {dropped.value === 1 ? "is" : "are"} not shown: the server tells the newest alone.
        </p>
      )}
      {events.length === 0 && <p class="none">Nothing has happened yet.</p>}
      <ol class="events" tabIndex={0} aria-label="Events, newest first">
        {events.map((event) => (
          <li key={`${event.unix_s}-${event.number}`} class={kindOf(event)} data-event={event.number}>
            <time title={new Date(1000 * event.unix_s).toLocaleString()}>{moment(event.emulated_s)}</time>
            <span title={event.words}>{shortLists(event.words)}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}

function kindOf(event: Happened): string {
  if (event.kind === "engine-gone" || event.kind === "job") return "bad";
  if (event.kind !== "fault") return event.kind;
  const stage = event.fault?.stage;
  return stage === "healed" || stage === "recovered" ? "good" : "bad";
}
