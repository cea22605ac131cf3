// Sign-in: the key of the control service, asked once.
import { useSignal } from "@preact/signals";
import { connect, sessionLeft } from "../state/console";
import { CallFailed, openSession } from "../wire/calls";
import { holdKey } from "../wire/key";
import { Mark } from "./Mark";

export function SignIn() {
  const trouble = useSignal("");
  const busy = useSignal(false);

  async function enter(event: SubmitEvent): Promise<void> {
    event.preventDefault();
    const key = String(new FormData(event.currentTarget as HTMLFormElement).get("key")).trim();
    busy.value = true;
    trouble.value = "";
    try {
      await openSession(key);
      holdKey(key);
      connect();
    } catch (error) {
      const refused = error instanceof CallFailed && error.refused;
      trouble.value = refused ? "The server does not know this key." : (error as Error).message;
    } finally {
      busy.value = false;
    }
  }

  return (
    <main class="signin">
      <form class="card" onSubmit={(event) => void enter(event)}>
        <h1>
          <Mark /> UltraServe
        </h1>
        <p>
          This console needs the key of the control service. <code>ultraserve console</code> prints an address that
          carries it.
        </p>
        <label>
          Key
          <input name="key" type="password" autocomplete="off" required autofocus aria-describedby="key-trouble" />
        </label>
        <p class="trouble" id="key-trouble" role="alert">
          {trouble.value || sessionLeft.value}
        </p>
        <button class="primary" disabled={busy}>
          Open the console
        </button>
      </form>
    </main>
  );
}
