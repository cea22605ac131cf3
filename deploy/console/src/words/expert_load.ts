// Tokens of experts against the mean of their layer.
import type { ExpertChoices } from "../wire/report";

/** Row-major as `tokens`: 1 is the layer's mean; 0 throughout a layer that routed nothing. */
export function loadRatios(load: ExpertChoices): Float64Array {
  const ratios = new Float64Array(load.layers * load.experts);
  for (let layer = 0; layer < load.layers; layer += 1) {
    const first = layer * load.experts;
    const row = load.tokens.slice(first, first + load.experts);
    const mean = row.reduce((sum, tokens) => sum + tokens, 0) / load.experts;
    if (mean > 0) row.forEach((tokens, expert) => (ratios[first + expert] = tokens / mean));
  }
  return ratios;
}

/** The expert that is the most above its layer's mean; null when no token was routed. */
export function busiest(load: ExpertChoices, ratios: Float64Array): { layer: number; expert: number } | null {
  let best = -1;
  ratios.forEach((ratio, index) => {
    if (ratio > 0 && (best < 0 || ratio > (ratios[best] ?? 0))) best = index;
  });
  return best < 0 ? null : { layer: Math.floor(best / load.experts), expert: best % load.experts };
}
