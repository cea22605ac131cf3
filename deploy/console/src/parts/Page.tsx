// The whole page, or what it says while there is nothing to show.
import { dayNight, admission, chosenReplica, experts, line, look, service } from "../state/console";
import { proposed } from "../state/action";
import { Charts } from "./Charts";
import { ChipPanel } from "./ChipPanel";
import { Confirmation } from "./Confirmation";
import { DayNightCard } from "./DayNightCard";
import { AdmissionCard } from "./AdmissionCard";
import { EventLog } from "./EventLog";
import { ExpertMap } from "./ExpertMap";
import { Figures } from "./Figures";
import { Header } from "./Header";
import { News } from "./News";
import { LARGE_UP_TO, Racks } from "./Racks";
import { Service } from "./Service";
import { StepCard } from "./StepCard";
import { SignIn } from "./SignIn";

export function Page() {
  if (line.value.is === "refused" && look.value === null) return <SignIn />;
  const all = chosenReplica.value === null ? service.value : null;
  const report = look.value;
  return (
    <>
      <a class="skip" href="#machine">
        Skip to the chips
      </a>
      <Header />
      <News />
      <main data-emulated-s={report?.emulated_s} aria-busy={report === null && all === null}>
        {all !== null ? (
          <Service list={all} />
        ) : report === null ? (
          <p class="waiting">{line.value.is === "broken" ? line.value.why : "Waiting for the engine’s first answer…"}</p>
        ) : (
          <>
            <Figures report={report} />
            <div class={report.state.chips.length > LARGE_UP_TO ? "machine" : "machine few"}>
              <Racks report={report} />
              <Charts />
            </div>
            <div class="cards" style={{ "--cards": 2 + (experts.value ? 1 : 0) + (dayNight.value ? 1 : 0) }}>
              {experts.value && <ExpertMap load={experts.value} />}
              {dayNight.value && <DayNightCard state={dayNight.value} leases={report.state.leases} />}
              <div class="stack">
                {admission.value && <AdmissionCard admission={admission.value} />}
                <StepCard report={report} />
              </div>
              <EventLog />
            </div>
          </>
        )}
      </main>
      {report && <ChipPanel report={report} />}
      {proposed.value && <Confirmation action={proposed.value} />}
    </>
  );
}
