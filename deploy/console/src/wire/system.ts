// What is emulated, of DescribeSystem's answer: what the header and the racks say.
// It is proto3's JSON: a 64-bit count is a text there, and what is absent may be left out.

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

type Loose = Record<string, unknown>;

function word(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown): number {
  return value === undefined || value === null ? 0 : Number(value);
}

function list(value: unknown): Loose[] {
  return (value as Loose[] | undefined) ?? [];
}
