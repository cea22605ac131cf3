// The machine's figures over the time that the page has looked.
import { history, looks } from "../state/console";
import { duration, scaled, text, things, watts } from "../words/quantity";
import { Chart } from "./Chart";

const rate = (value: number): string => text(scaled(value, "", 1_000));
const number = (value: number): string => text(things(value));
const time = (value: number): string => text(duration(value));

export function Charts() {
  looks.value; // drawn again at each look
  const times = history.of("emulated_s");
  return (
    <section class="card charts" aria-label="Over time">
      <Chart
        title="Tokens per second"
        times={times}
        shown={rate}
        series={[
          { name: "output", colour: "line-1", values: history.of("output_per_s") },
          { name: "prompt", colour: "line-2", values: history.of("input_per_s") },
        ]}
      />
      <Chart
        title="Power"
        times={times}
        shown={watts}
        series={[
          { name: "chips", colour: "line-1", values: history.of("chip_watts") },
          { name: "racks", colour: "line-2", values: history.of("it_watts") },
          { name: "site", colour: "line-3", values: history.of("facility_watts") },
        ]}
      />
      <Chart
        title="Step time"
        times={times}
        shown={time}
        series={[
          { name: "p50", colour: "line-1", values: history.of("step_p50_s") },
          { name: "p99", colour: "line-3", values: history.of("step_p99_s") },
        ]}
      />
      <Chart
        title="Requests"
        times={times}
        shown={number}
        least={4}
        series={[
          { name: "running", colour: "line-1", values: history.of("running") },
          { name: "waiting", colour: "line-3", values: history.of("waiting") },
        ]}
      />
    </section>
  );
}
