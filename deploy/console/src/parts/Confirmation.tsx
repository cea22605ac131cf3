// Says what an action will do, asks the server what it would come to, and does it when confirmed.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type Action, type Field, type DryRunResult, outcome, proposed, type Values } from "../state/action";
import { CallFailed } from "../wire/calls";
import { heldKey, holdKey } from "../wire/key";

const TYPING_MS = 250;

export function Confirmation({ action }: { action: Action }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const values = useSignal<Values>(Object.fromEntries(action.fields.map((field) => [field.name, field.value])));
  const key = useSignal(heldKey() ?? "");
  const asked = useSignal(heldKey() === null); // the key's field is there
  const dryRunResult = useSignal<DryRunResult | null>(null);
  const trouble = useSignal("");
  const busy = useSignal(false);

  useEffect(() => {
    dialog.current?.showModal();
  }, []);

  useEffect(() => {
    const dryRun = action.dryRun;
    if (!dryRun || !key.value) return undefined;
    let current = true;
    dryRunResult.value = null;
    const timer = setTimeout(() => {
      dryRun(values.value, key.value).then(
        (said) => {
          if (!current) return;
          dryRunResult.value = said;
          trouble.value = "";
        },
        (error: unknown) => {
          if (current) fail(error);
        },
      );
    }, TYPING_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [values.value, key.value]);

  function fail(error: unknown): void {
    const refused = error instanceof CallFailed && error.refused;
    if (refused) asked.value = true;
    trouble.value = refused ? "The server does not know this key." : (error as Error).message;
  }

  async function act(event: SubmitEvent): Promise<void> {
    event.preventDefault();
    busy.value = true;
    try {
      outcome.value = await action.act(values.value, key.value);
      if (proposed.value === action) holdKey(key.value); // not when signed out meanwhile
      dialog.current?.close();
    } catch (error) {
      fail(error);
    } finally {
      busy.value = false;
    }
  }

  return (
    <dialog ref={dialog} onClose={() => (proposed.value = null)} aria-labelledby="action-title" aria-describedby="action-words">
      <form onSubmit={(event) => void act(event)}>
        <h2 id="action-title">{action.title}?</h2>
        <p id="action-words">{action.words}</p>
        {action.fields.map((field) => (
          <Input key={field.name} field={field} value={values.value[field.name] ?? ""} onInput={(value) => {
            values.value = { ...values.value, [field.name]: value };
          }} />
        ))}
        {asked.value && (
          <label>
            Key of the control service
            <input
              name="key"
              type="password"
              autocomplete="off"
              required
              value={key.value}
              onChange={(event) => {
                key.value = event.currentTarget.value.trim();
              }}
            />
          </label>
        )}
        {action.dryRun && <DryRun said={dryRunResult.value} failed={trouble.value !== ""} known={key.value !== ""} />}
        <p class="trouble" role="alert">
          {trouble.value}
        </p>
        <footer>
          <button type="button" class="plain" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
          <button class={action.danger ? "danger" : "primary"} disabled={busy.value} data-confirm>
            {action.button}
          </button>
        </footer>
      </form>
    </dialog>
  );
}

function DryRun({ said, failed, known }: { said: DryRunResult | null; failed: boolean; known: boolean }) {
  if (failed) return null;
  if (!known) return <p class="dry-run">With the key, the server says here what would happen.</p>;
  if (said === null) return <p class="dry-run">Asking the server what would happen…</p>;
  return (
    <p class={`dry-run ${said.good ? "good" : "bad"}`} data-dry-run={said.good ? "good" : "bad"} role="status">
      <b>{said.good ? "No accepted request is lost." : "Requests would be lost."}</b> {said.words}
    </p>
  );
}

function Input({ field, value, onInput }: { field: Field; value: string; onInput: (value: string) => void }) {
  return (
    <label>
      {field.label}
      {field.options ? (
        <select name={field.name} value={value} onChange={(event) => onInput(event.currentTarget.value)}>
          {field.options.map(([option, words]) => (
            <option key={option} value={option}>
              {words}
            </option>
          ))}
        </select>
      ) : (
        <input
          name={field.name}
          value={value}
          inputMode={field.numeric ? "decimal" : "text"}
          placeholder={field.hint ?? ""}
          onInput={(event) => onInput(event.currentTarget.value)}
        />
      )}
    </label>
  );
}
