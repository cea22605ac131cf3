// The console: takes the key out of the address, begins a session, listens, and draws.
import { render } from "preact";
import { Page } from "./parts/Page";
import { chooseReplica, connect, forgetAll } from "./state/console";
import { startTheme } from "./state/theme";
import "./style/tokens.css";
import "./style/page.css";
import "./style/racks.css";
import "./style/figures.css";
import "./style/panel.css";
import "./style/dialog.css";
import "./style/service.css";
import { CallFailed, openSession } from "./wire/calls";
import { forgetKey, heldKey, holdKey, keyFromAddress, replicaFromAddress } from "./wire/key";
import { onSignOut } from "./wire/other_tabs";

async function start(): Promise<void> {
  const given = keyFromAddress();
  if (given !== null) holdKey(given);
  const key = heldKey();
  if (key !== null) await begin(key);
  chooseReplica(replicaFromAddress());
  connect();
}

async function begin(key: string): Promise<void> {
  try {
    await openSession(key);
  } catch (error) {
    if (error instanceof CallFailed && error.refused) forgetKey();
  }
}

startTheme();
onSignOut(forgetAll);
render(<Page />, document.getElementById("console") as HTMLElement);
void start();
