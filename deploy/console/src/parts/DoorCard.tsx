// The door: who is inside, who waits, and what was refused.
import { propose } from "../state/action";
import { doorAction } from "../state/actions";
import type { AdmissionReport, ClassReport } from "../wire/report";
import { count, duration, text } from "../words/quantity";

export function DoorCard({ door }: { door: AdmissionReport }) {
  return (
    <section class="card door" aria-label="Admission" data-door={door.is_open ? "open" : "closed"}>
      <header>
        <h2>Admission</h2>
        <span class={door.is_open ? "side" : "side bad"}>{door.is_open ? "door open" : `door closed: ${door.closed}`}</span>
      </header>
      <table>
        <thead>
          <tr>
            <th scope="col">Class</th>
            <th scope="col">inside</th>
            <th scope="col">queued</th>
            <th scope="col">finished</th>
            <th scope="col">refused</th>
          </tr>
        </thead>
        <tbody>
          {door.classes.map((each) => (
            <tr key={each.work_class}>
              <th scope="row">{each.work_class}</th>
              <td>{count(each.in_flight)}</td>
              <td>{count(each.queued)}</td>
              <td>{count(each.finished)}</td>
              <td title={refusedWords(each)}>{count(refused(each))}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <footer>
        <span>
          Expected wait <b>{text(duration(door.expected_wait_s))}</b>
          {door.expected_wait_s !== null && <>, at most {text(duration(door.expected_wait_s + door.margin_s))} for 99 of 100</>}
        </span>
        <button type="button" class="small" data-action="door" onClick={() => propose(doorAction(door.is_open))}>
          {door.is_open ? "Close…" : "Open…"}
        </button>
      </footer>
    </section>
  );
}

function refused(each: ClassReport): number {
  return Object.values(each.refused).reduce((sum, number) => sum + number, 0);
}

function refusedWords(each: ClassReport): string {
  return Object.entries(each.refused)
    .map(([reason, number]) => `${reason}: ${count(number)}`)
    .join(", ");
}
