// What is emulated, of DescribeSystem's answer: what the header and the racks say.
import { list, number, word } from "./day_night";

export interface Figure {
  name: string;
  value: number;
  unit: string;
}

export interface System {
  name: string;
  ultraserver: string;
  version: string;
  vllm: string;
  chip: string;
  clock: string;
  topology: string;
  traysOfRack: Map<number, number>;
  chipsOfSystem: number;
  chipFigures: Figure[];
}

export function systemOf(answer: unknown): System {
  const told = ((answer as Record<string, unknown>)["description"] ?? {}) as Record<string, unknown>;
  const sheet = (name: string): Record<string, unknown> => (told[name] ?? {}) as Record<string, unknown>;
  const racks = list(told["racks"]);
  return {
    name: word(sheet("system")["name"]),
    ultraserver: word(told["ultraserver"]),
    version: word(told["ultraserveVersion"]),
    vllm: word(told["vllmVersion"]),
    chip: word(sheet("chip")["name"]),
    clock: word(told["clock"]),
    topology: word(told["topology"]),
    traysOfRack: new Map(racks.map((rack) => [number(rack["rack"]), number(rack["trays"])])),
    chipsOfSystem: racks.reduce((sum, rack) => sum + number(rack["trays"]) * number(rack["chipsPerTray"]), 0),
    chipFigures: list(sheet("chip")["figures"]).map((figure) => ({
      name: word(figure["name"]),
      value: number(figure["value"]),
      unit: word(figure["unit"]),
    })),
  };
}

