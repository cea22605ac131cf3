// Admission control: requests inside, waiting and refused.
import { propose } from "../state/action";
import { admissionAction } from "../state/actions";
import type { AdmissionReport, ClassReport } from "../wire/report";
import { count, duration, text } from "../words/quantity";

export function AdmissionCard({ admission }: { admission: AdmissionReport }) {
  return (
    <section class="card admission" aria-label="Admission" data-admission={admission.is_open ? "open" : "closed"}>
      <header>
        <h2>Admission</h2>
        <span class={admission.is_open ? "side" : "side bad"}>{admission.is_open ? "open" : `closed: ${admission.closed}`}</span>
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
          {admission.classes.map((each) => (
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
          Expected wait <b>{text(duration(admission.expected_wait_s))}</b>
          {admission.expected_wait_s !== null && <>, at most {text(duration(admission.expected_wait_s + admission.margin_s))} for 99 of 100</>}
        </span>
        <button type="button" class="small" data-action="admission" onClick={() => propose(admissionAction(admission.is_open))}>
          {admission.is_open ? "Close…" : "Open…"}
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
