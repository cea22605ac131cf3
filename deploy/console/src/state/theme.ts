// Light or dark: as the system has it, or as the reader chose.
import { signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";
const PLACE = "ultraserve-theme";
const THEMES: readonly Theme[] = ["auto", "light", "dark"];

export const theme = signal<Theme>("auto");
/** Counts changes of what is shown, the system's too: canvases are drawn again. */
export const repainted = signal(0);

export function startTheme(): void {
  const stored = localStorage.getItem(PLACE) as Theme | null;
  show(stored && THEMES.includes(stored) ? stored : "auto");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    repainted.value += 1;
  });
}

export function nextTheme(): void {
  const following = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] as Theme;
  localStorage.setItem(PLACE, following);
  show(following);
}

function show(chosen: Theme): void {
  theme.value = chosen;
  if (chosen === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
  repainted.value += 1;
}

/** A colour of the style sheet as canvases take it: light-dark() is resolved by the browser. */
export function colour(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}
