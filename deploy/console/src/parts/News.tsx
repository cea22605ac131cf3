// What the reader must know now: a broken line, an engine that is gone, what a button came to. It
// is also where a screen reader hears of events.
import { useEffect } from "preact/hooks";
import { engineGone, happened, line, look, lookedAt } from "../state/console";
import { outcome } from "../state/action";
import { SignIn } from "./SignIn";

const OUTCOME_SHOWN_MS = 8_000;

export function News() {
  const last = happened.value[happened.value.length - 1];
  useEffect(() => {
    if (!outcome.value) return undefined;
    const timer = setTimeout(() => {
      outcome.value = "";
    }, OUTCOME_SHOWN_MS);
    return () => clearTimeout(timer);
  }, [outcome.value]);
  const stall = look.value?.telemetry.stall ?? null;
  return (
    <>
      {engineGone.value !== null && (
        <p class="banner bad" role="alert">
          The engine is gone: {engineGone.value}. What is shown is the last that it said.
        </p>
      )}
      {line.value.is === "broken" && engineGone.value === null && look.value && (
        <p class="banner busy" role="alert">
          The connection broke ({line.value.why}); it is tried again. What is shown is of {clockTime(lookedAt.value)}.
        </p>
      )}
      {stall && (
        <p class="banner busy" role="alert" data-stall={stall.until_emulated_s}>
          {stall.reason.charAt(0).toUpperCase() + stall.reason.slice(1)}; {Math.ceil(stall.wall_left_s).toLocaleString("en")} s
          of wall time are left.
        </p>
      )}
      {line.value.is === "refused" && look.value && <SignIn />}
      {outcome.value && <p class="toast">{outcome.value}</p>}
      <p class="unseen" role="status" aria-live="polite">
        {outcome.value || (last ? last.words : "")}
      </p>
    </>
  );
}

function clockTime(ms: number): string {
  return new Date(ms).toLocaleTimeString();
}
