// A time series over emulated time, drawn by uPlot.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { colour, repainted } from "../state/theme";
import { moment } from "../words/quantity";

export interface Series {
  name: string;
  /** A colour of the style sheet. */
  colour: string;
  values: (number | null)[];
}

interface Props {
  title: string;
  times: (number | null)[];
  series: readonly Series[];
  shown: (value: number) => string;
  /** The axis goes at least this high. */
  least?: number;
}

export function Chart({ title, times, series, shown, least = 0 }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const paint = repainted.value;

  useEffect(() => {
    const host = place.current as HTMLDivElement;
    const made = new uPlot(options(host, series, shown, least), [[]], host);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize(sizeOf(host)));
    watch.observe(host);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [paint]);

  useEffect(() => {
    plot.current?.setData([times as number[], ...series.map((each) => each.values)]);
  }, [times, paint]);

  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        <ul>
          {series.map((each) => (
            <li key={each.name}>
              <i style={{ background: `var(--${each.colour})` }} />
              {each.name} <b>{lastShown(each.values, shown)}</b>
            </li>
          ))}
        </ul>
      </figcaption>
      <div ref={place} role="img" aria-label={`${title} over emulated time`} />
    </figure>
  );
}

function lastShown(values: readonly (number | null)[], shown: (value: number) => string): string {
  const last = values[values.length - 1];
  return last === null || last === undefined ? "–" : shown(last);
}

function sizeOf(host: HTMLElement): { width: number; height: number } {
  return { width: host.clientWidth, height: host.clientHeight };
}

function options(
  host: HTMLElement,
  series: readonly Series[],
  shown: (value: number) => string,
  least: number,
): uPlot.Options {
  const ink = colour("ink-3");
  const grid = { stroke: colour("hairline"), width: 1 };
  const font = "11px Inter Variable, sans-serif";
  return {
    ...sizeOf(host),
    legend: { show: false },
    cursor: { show: false },
    padding: [6, 18, 0, 0],
    scales: {
      x: { time: false },
      y: { range: (_plot, _low, high) => [0, Math.max((high ?? 0) * 1.12, least) || 1] },
    },
    axes: [
      {
        stroke: ink,
        font,
        grid: { show: false },
        ticks: { show: false },
        size: 22,
        gap: 4,
        space: 90,
        values: (_plot, ticks) => instants(ticks),
      },
      {
        stroke: ink,
        font,
        grid,
        ticks: { show: false },
        size: 58,
        gap: 6,
        space: 28,
        values: (_plot, ticks) => ticks.map((tick) => (tick === 0 ? "0" : shown(tick))),
      },
    ],
    series: [
      {},
      ...series.map((each) => ({
        label: each.name,
        stroke: colour(each.colour),
        width: 1.5,
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}

/** Tenths are said when the ticks differ by them. */
function instants(ticks: readonly number[]): string[] {
  const whole = ticks.every((tick) => Math.abs(tick - Math.round(tick)) < 1e-6);
  return ticks.map((tick) => (whole ? moment(tick).replace(/\.\d$/, "") : moment(tick)));
}
