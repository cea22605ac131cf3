// What the control port's stream says, named as in serving/telemetry: snake_case JSON. Times are
// emulated seconds since the engine's start unless a name says otherwise.

export type Health = "up" | "slow" | "hung" | "lost";
export type Phase = "serving" | "draining" | "training" | "restoring" | "maintenance";
export type Tier = "tray" | "backplane" | "cross-rack";
export type FaultKind =
  | "lose-chip"
  | "hang-chip"
  | "slow-chip"
  | "fail-stack"
  | "cut-link"
  | "pull-switch-tray";

export interface Partition {
  chips: number;
  tp: number;
  dp: number;
  ep: number;
  lnc: number;
  first_chip: number;
  spares: number;
}

export interface Stack {
  stack: number;
  failed: boolean;
  capacity_bytes: number;
  owner_bytes: Record<string, number>;
}

export interface CutLink {
  tier: Tier;
  lanes_cut: number;
  lanes: number;
}

export interface Chip {
  chip: number;
  rack: number;
  tray: number;
  position: number;
  health: Health;
  slow_factor: number;
  spare: boolean;
  rank: number | null;
  stacks: Stack[];
  cut_links: CutLink[];
  expert_slots: number;
  expert_slots_filled: number;
  watts: number;
  phase: Phase;
}

export interface Rank {
  rank: number;
  up: boolean;
  requests_running: number;
  requests_waiting: number;
  kv_blocks_used: number;
  kv_blocks: number;
  version: number;
}

export interface RackSwitches {
  rack: number;
  switch_trays_up: number;
  switch_trays: number;
}

export interface Fault {
  kind: FaultKind;
  chip: number;
  factor: number;
  stack: number;
  tier: Tier | null;
  lanes: number;
  rack: number;
}

export interface FaultRecord {
  number: number;
  fault: Fault;
  injected_emulated_s: number;
  survivable: boolean;
  reason: string;
  stage: "pending" | "recovering" | "recovered" | "failed" | "healed" | "degraded";
  recovery: { emulated_ns: number; wall_s: number; requests_moved: number; requests_failed: number } | null;
  healed_emulated_s: number | null;
}

export interface Training {
  steps: number;
  tokens: number;
  loss: number | null;
  joules: number;
  emulated_s: number;
  watts: number;
}

export interface Lease {
  number: number;
  chips: number[];
  ranks: number[];
  phase: Phase;
  reason: string;
  since_emulated_s: number;
  until_emulated_s: number | null;
  training: Training | null;
}

export interface MachineState {
  emulated_s: number;
  dilation: number;
  steps: number;
  system: string;
  model: string;
  weights: string;
  routing: string;
  partition: Partition;
  chip_watts: number;
  facility_watts: number;
  chips: Chip[];
  ranks: Rank[];
  racks: RackSwitches[];
  faults: FaultRecord[];
  expert_balance: { imbalance: number | null; rebalances: number; moved_bytes: number };
  leases: Lease[];
}

// Nothing is computed until then.
export interface Stall {
  until_emulated_s: number;
  left_s: number;
  wall_left_s: number;
  reason: string;
}

export interface Telemetry {
  emulated_s: number;
  dilation: number;
  steps: number;
  busy_s: number;
  lag_s: number;
  prompt_tokens: number;
  output_tokens: number;
  requests_arrived: number;
  requests_running: number;
  requests_waiting: number;
  kv_blocks_used: number;
  kv_blocks: number;
  chips: number;
  chips_up: number;
  chips_lent: number;
  chip_watts: number;
  facility_watts: number;
  chip_joules: number;
  facility_joules: number;
  expert_imbalance: number | null;
  stall: Stall | null;
}

export type Basis = "provisioned" | "drawn" | "all-in";

export interface TokensPerMegawatt {
  basis: Basis;
  watts: number;
  why: string;
  output: number;
  input: number;
  total: number;
}

export interface PowerReport {
  chip_watts: number;
  it_watts: number;
  facility_watts: number;
  parts_watts: Record<string, number>;
  chip_budget_watts: number;
  provisioned_watts: number;
  pue: number;
  racks: { rack: number; chips: number; chip_watts: number; it_watts: number; provisioned_watts: number }[];
  window: {
    emulated_s: number;
    prompt_tokens: number;
    output_tokens: number;
    facility_joules: number;
    tokens_per_megawatt: TokensPerMegawatt[];
  } | null;
}

export interface ChipMeters {
  chip: number;
  engine_busy_s: Record<string, number>;
  busy_s: number;
  flops: number;
  hbm_bytes: number;
  link_bytes: number;
  joules: number;
  utilization: number;
  engine_utilization: Record<string, number>;
  link_utilization: number;
  hbm_utilization: number;
  flops_per_s: number;
}

export interface StepTimes {
  steps: number;
  p50_s: number | null;
  p99_s: number | null;
}

export interface HardwareReport {
  emulated_s: number;
  window_s: number;
  state: MachineState;
  telemetry: Telemetry;
  power: PowerReport;
  meters: ChipMeters[];
  parts_s: Record<string, number>;
  steps_by_phase: Record<string, number>;
  step_times: StepTimes;
  device_times: StepTimes;
}

export interface Happened {
  number: number;
  emulated_s: number;
  unix_s: number;
  kind: "fault" | "lease" | "version" | "sleep" | "door" | "engine-gone" | "stall" | "job";
  words: string;
  fault: FaultRecord | null;
  lease: Lease | null;
}

export interface Latency {
  ttft_p50_s: number | null;
  ttft_p99_s: number | null;
  tpot_p50_s: number | null;
  tpot_p99_s: number | null;
  e2e_p50_s: number | null;
  window_s: number;
  requests: number;
}

export interface ExpertLoad {
  layers: number;
  experts: number;
  tokens: number[];
  imbalance: number | null;
}

export interface Group {
  group: number;
  chips: number[];
  phase: string;
  desired: string;
  lease: number | null;
  failures: number;
  trouble: string;
}

export interface DayNight {
  policy: string;
  policy_words: string;
  emulated_s: number;
  day_s: number;
  time_of_day: string;
  day_length_s: number;
  groups_desired: number;
  reason: string;
  next_change_day_s: number | null;
  next_change_if: string;
  load_per_s: number;
  group_requests_per_s: number | null;
  slo: string;
  ttft_attainment: number | null;
  burst_response_s: number;
  groups: Group[];
  job: {
    phase: string;
    step: number;
    tokens: number;
    loss: number | null;
    held_out_loss: number | null;
    watts: number;
    joules: number;
    trouble: string;
  } | null;
  trouble: string;
}

export interface DoorClass {
  work_class: string;
  in_flight: number;
  queued: number;
  waiting: number;
  entered: number;
  finished: number;
  aborted: number;
  failed: number;
  refused_later: number;
  refused: Record<string, number>;
}

export interface Door {
  is_open: boolean;
  closed: string;
  in_flight: number;
  sequences: number;
  expected_wait_s: number | null;
  margin_s: number;
  classes: DoorClass[];
}
