// The tokens of each expert in each layer, against the layer's mean: who is hot shows as who is dark.
import { useEffect, useRef, useState } from "preact/hooks";
import { colour, repainted } from "../state/theme";
import type { ExpertChoices } from "../wire/report";
import { busiest, loadRatios } from "../words/expert_load";

/** Three times the mean, and more, has the full colour. */
const FULL = 3;

export function ExpertMap({ load }: { load: ExpertChoices }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [over, setOver] = useState<{ layer: number; expert: number } | null>(null);
  const ratios = loadRatios(load);
  const top = busiest(load, ratios);
  const paint = repainted.value;

  useEffect(() => {
    if (canvas.current) draw(canvas.current, load, ratios);
  }, [load, paint]);

  const place = over ?? top;
  return (
    <section class="card experts" aria-label="Expert load" data-imbalance={load.imbalance ?? ""}>
      <header>
        <h2>Expert load</h2>
        <span class="side">
          {load.layers} layers × {load.experts} experts
        </span>
      </header>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`Tokens of each expert against its layer’s mean. ${words(load, ratios, top, "Busiest")}`}
        onPointerMove={(event) => setOver(under(event, load))}
        onPointerLeave={() => setOver(null)}
      />
      <p class="scale">
        <span>0</span>
        <i aria-hidden="true" />
        <span>{FULL}× the layer’s mean</span>
      </p>
      <p class="hint">{words(load, ratios, place, over ? "Here" : "Busiest")}</p>
      <footer>
        <span>
          Busiest chip over the mean <b>{load.imbalance === null ? "–" : `${load.imbalance.toFixed(2)}×`}</b>
        </span>
      </footer>
    </section>
  );
}

function words(load: ExpertChoices, ratios: Float64Array, place: { layer: number; expert: number } | null, what: string): string {
  if (place === null) return "No token has been routed yet.";
  const index = place.layer * load.experts + place.expert;
  const tokens = (load.tokens[index] ?? 0).toLocaleString("en-US", { maximumFractionDigits: 0 });
  return `${what}: layer ${place.layer}, expert ${place.expert}, ${tokens} tokens, ${(ratios[index] ?? 0).toFixed(2)}× the mean`;
}

function under(event: PointerEvent, load: ExpertChoices): { layer: number; expert: number } {
  const box = (event.currentTarget as HTMLCanvasElement).getBoundingClientRect();
  const part = (at: number, size: number, n: number): number => Math.min(n - 1, Math.max(0, Math.floor((at / size) * n)));
  return {
    layer: part(event.clientY - box.top, box.height, load.layers),
    expert: part(event.clientX - box.left, box.width, load.experts),
  };
}

function draw(canvas: HTMLCanvasElement, load: ExpertChoices, ratios: Float64Array): void {
  canvas.width = load.experts;
  canvas.height = load.layers;
  const context = canvas.getContext("2d");
  if (context === null || load.experts === 0 || load.layers === 0) return;
  const cold = rgb(colour("heat-0"));
  const mean = rgb(colour("heat-1"));
  const hot = rgb(colour("heat-2"));
  const picture = context.createImageData(load.experts, load.layers);
  ratios.forEach((ratio, index) => {
    const [from, to, part] = ratio < 1 ? [cold, mean, ratio] : [mean, hot, Math.min(1, (ratio - 1) / (FULL - 1))];
    for (let channel = 0; channel < 3; channel += 1) {
      const low = from[channel] ?? 0;
      picture.data[4 * index + channel] = low + part * ((to[channel] ?? 0) - low);
    }
    picture.data[4 * index + 3] = 255;
  });
  context.putImageData(picture, 0, 0);
}

function rgb(text: string): number[] {
  return (text.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
}
