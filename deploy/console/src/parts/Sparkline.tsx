// A figure's last minutes as a line without axes: its shape, not its values.
const WIDTH = 120;
const HEIGHT = 28;
const SHOWN = 180;

export function Sparkline({ values }: { values: readonly (number | null)[] }) {
  const drawn = sparkPath(values.slice(-SHOWN));
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      {drawn && <path class="area" d={`${drawn.line}L${drawn.end},${HEIGHT}L${drawn.start},${HEIGHT}Z`} />}
      {drawn && <path class="line" d={drawn.line} />}
    </svg>
  );
}

/** From zero, so that a figure that hardly moves looks like one; null for fewer than two values. */
export function sparkPath(values: readonly (number | null)[]): { line: string; start: number; end: number } | null {
  const known = values.flatMap((value, index) => (value === null ? [] : [[index, value] as const]));
  if (known.length < 2) return null;
  const top = Math.max(...known.map(([, value]) => value)) || 1;
  const step = WIDTH / Math.max(values.length - 1, 1);
  const points = known.map(([index, value]) => {
    const y = HEIGHT - 2 - (value / top) * (HEIGHT - 4);
    return `${round(index * step)},${round(y)}`;
  });
  const first = known[0]?.[0] ?? 0;
  const last = known[known.length - 1]?.[0] ?? 0;
  return { line: `M${points.join("L")}`, start: round(first * step), end: round(last * step) };
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
