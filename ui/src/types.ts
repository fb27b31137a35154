// Answers as `memscope-ctl --json` prints them, as far as the page reads them. What they mean stands in proto/memscope/v1.

import type { Int } from "./units.ts";

export type Maybe<T> = T | null | undefined;
export interface Amount {
  count: Int;
  bytes: Int;
}
export interface Note {
  code: string;
  text: string;
  affects: string[];
  lower_bound: boolean;
}
export interface CodeLine {
  file: string;
  line: number;
  name: string;
}
export interface Workload {
  job?: Maybe<string>;
  job_name?: Maybe<string>;
  pod?: Maybe<string>;
  container?: Maybe<string>;
  rank?: Maybe<number>;
  world_size?: Maybe<number>;
  slurm_job?: Maybe<string>;
}

export interface Process {
  /** Where many nodes are asked: the one that it runs on. */
  node?: string;
  pid: number;
  comm: string;
  cmdline: string[];
  state: string;
  level: string;
  attached_boot_ns: Int;
  ended_boot_ns: Maybe<Int>;
  allocated_bytes: Maybe<Int>;
  reserved_bytes: Maybe<Int>;
  lost_records: Int;
  known_from_unix_ns: Maybe<Int>;
  growing_lines: Maybe<Int>;
  growth_bytes_per_step: Maybe<number>;
  growth_bytes_per_s: Maybe<number>;
  workload?: Maybe<Workload>;
  waits_for_device: boolean;
}
export interface Answered {
  as_of?: Int;
  as_of_boot_ns?: Int;
  coverage?: Note[];
  process?: Process;
}
export interface ListAnswer {
  processes: Process[];
}

export interface DeviceHolder {
  process: Process;
  ordinal: Maybe<number>;
  allocated_bytes: Maybe<Int>;
  held_bytes: Maybe<Int>;
  at_least: boolean;
  context_bytes: Maybe<Int>;
}
export interface MachineDevice {
  node?: string;
  kind: Maybe<string>;
  name: Maybe<string>;
  total_bytes: Maybe<Int>;
  free_bytes: Maybe<Int>;
  held_bytes: Maybe<Int>;
  at_least: boolean;
  unexplained_bytes: Maybe<Int>;
  holders: DeviceHolder[];
  context_bytes: Maybe<Int>;
  driver_reserved_bytes: Maybe<Int>;
}
export interface DevicesAnswer extends Answered {
  devices: MachineDevice[];
}

export interface DeviceStats {
  device: Maybe<number>;
  source: string;
  allocated_bytes: Maybe<Int>;
  reserved_bytes: Maybe<Int>;
  peak_allocated_bytes: Maybe<Int>;
  peak_reserved_bytes: Maybe<Int>;
  requested_bytes: Maybe<Int>;
  live_blocks: Int;
  total_bytes: Maybe<Int>;
  free_bytes: Maybe<Int>;
  oom_count: Int;
  peak_unix_ns: Maybe<Int>;
  device_kind: Maybe<string>;
}
export interface StatsAnswer extends Answered {
  devices: DeviceStats[];
  failures: { function: string; status: number; count: Int; bytes: Int }[];
}

export interface OwnerCategory {
  category: string;
  blocks: Amount;
  unsure: Amount;
}
export interface OwnedDevice {
  device: Maybe<number>;
  categories: OwnerCategory[];
  blocks: Amount;
  pending_free_bytes: Int;
  cached_bytes: Maybe<Int>;
  device_used_bytes: Maybe<Int>;
  unexplained_bytes: Maybe<Int>;
  device_used_is_old: boolean;
  context_bytes: Maybe<Int>;
  driver_reserved_bytes: Maybe<Int>;
}
export interface Owner {
  category: string;
  device: Maybe<number>;
  owner: string;
  kind: string;
  name: string;
  key: string;
  blocks: Amount;
  place: string;
  address: Int;
  /** Where blocks were asked for; not there from a daemon that is too old to tell. */
  addresses?: Int[];
  evidence: string;
}
export interface OwnersAnswer extends Answered {
  devices: OwnedDevice[];
  owners: Owner[];
  more: Int;
  more_bytes: Int;
  explained: { address: Int; size_bytes: Int; owner: Owner; why: string[] }[];
}

export interface HolderStep {
  part: string;
  name: string;
  kind: string;
  length: Maybe<Int>;
  file: string;
  line: number;
}
export interface Holder {
  path: string;
  container: Maybe<string>;
  kind: Maybe<string>;
  length: Maybe<Int>;
  origin: string;
  via: string;
  blocks: Amount;
  unsure: Amount;
  other_references: Int;
  way: HolderStep[];
  example_address: Int;
}
export interface HoldersAnswer extends Answered {
  holders: Holder[];
  more: Int;
  blocks: Amount;
  unheld: Amount;
  garbage: Amount;
}

export interface LeakLine {
  device: Maybe<number>;
  source: string;
  line: Maybe<CodeLine>;
  verdict: string;
  confidence: Maybe<number>;
  groups: Int;
  stacks: Int;
  smallest_bytes: Int;
  largest_bytes: Int;
  live_count: Int;
  live_bytes: Int;
  growth_bytes: Int;
  growth_bytes_per_s: number;
  growth_bytes_per_step: Maybe<number>;
  growth_bytes_per_step_low: Maybe<number>;
  growth_bytes_per_step_high: Maybe<number>;
  first_step: Maybe<Int>;
  oldest_age_ns: Int;
  looks_like_kept_graph: boolean;
  reason: string;
  beside: boolean;
  stack: Maybe<number>;
  callers: CodeLine[];
}
export interface LeakGroup extends Omit<
  LeakLine,
  "groups" | "stacks" | "smallest_bytes" | "largest_bytes" | "looks_like_kept_graph" | "callers"
> {
  stream: Maybe<Int>;
  size_bytes: Int;
  growth_count: Int;
  newest_age_ns: Int;
  frames: CodeLine[];
  examples: Int[];
  freed_count: Int;
  freed_longest_steps: Int;
  floors?: Maybe<{ step?: Maybe<Int>; at_boot_ns?: Maybe<Int>; bytes?: Int; count?: Int }[]>;
}
export interface StepSummary {
  source: string;
  count: Maybe<Int>;
  median_ns: Maybe<Int>;
  evidence: string;
  /** Time since the last step, where that is unusually long; not there from a daemon that is too old to tell. */
  quiet_ns?: Maybe<Int>;
}
export interface LeaksAnswer extends Answered {
  groups: LeakGroup[];
  lines: LeakLine[];
  growing_lines: Int;
  growing_bytes: Int;
  watched_ns: Int;
  seconds_to_full: Maybe<number>;
  /** The moment of which the rows are, where the process freed memory as it ended; not there from an older daemon. */
  until_boot_ns?: Maybe<Int>;
  steps: Maybe<StepSummary>;
  young: Maybe<{ groups: Int; in_every_step: boolean; steps: Maybe<Int>; needed_steps: Maybe<Int> }>;
  holders: Holder[];
  unheld: Maybe<Amount>;
  looked_at: Maybe<Amount>;
  given_back: {
    bytes: Int;
    step: Maybe<Int>;
    line: Maybe<CodeLine>;
    device: Maybe<number>;
    reserved_unused_bytes: Maybe<Int>;
  }[];
  together: Maybe<{ line: CodeLine; lines: Int; growth_bytes: Int; growth_bytes_per_step: Maybe<number> }>;
  omitted_lines: Int;
}

export interface Interval {
  from_boot_ns: Int;
  to_boot_ns: Int;
  min_allocated_bytes: Int;
  max_allocated_bytes: Int;
  min_reserved_bytes: Int;
  max_reserved_bytes: Int;
  allocs: Int;
  frees: Int;
}
export interface FluctuationAnswer extends Answered {
  devices: {
    device: Maybe<number>;
    source: string;
    overall: Interval;
    intervals: Interval[];
    floor_slope_bytes_per_s: number;
  }[];
}

export interface StepRow {
  step: Int;
  from_boot_ns: Int;
  to_boot_ns: Int;
  device: Maybe<number>;
  min_allocated_bytes: Int;
  max_allocated_bytes: Int;
  end_allocated_bytes: Int;
  max_reserved_bytes: Int;
  allocs: Int;
  frees: Int;
  steps: Int;
}
export interface Quantiles {
  p5: Int;
  p50: Int;
  p95: Int;
}
export interface StepsAnswer extends Answered {
  summary: StepSummary;
  lines: { name: string; count: Int; line: Maybe<CodeLine> }[];
  rows: StepRow[];
  survivor_count: Int;
  survivor_bytes: Int;
  unchecked_blocks?: Int;
  devices: {
    device: Maybe<number>;
    steps: Int;
    min_bytes: Maybe<Quantiles>;
    max_bytes: Maybe<Quantiles>;
    floor_bytes_per_step: number;
    smallest_gap: Maybe<{ step: Int; ratio: number }>;
    largest_gap: Maybe<{ step: Int; ratio: number }>;
  }[];
}
export interface NamedMoment {
  time_boot_ns: Int;
  time_unix_ns: Maybe<Int>;
  name: string;
  nth: Maybe<Int>;
  kind: string;
  source: string;
  origin: string;
  step: Maybe<Int>;
}
export interface MarksAnswer extends Answered {
  marks: NamedMoment[];
  counts: { origin: string; count: Int; kept: Int }[];
}

export interface StackAmounts {
  live: Amount;
  peak: Amount;
  allocated: Amount;
  before: Maybe<Amount>;
}
export interface StackFrame {
  kind: string;
  name: string;
  file: string;
  line: number;
}
export interface StackRow {
  device: Maybe<number>;
  frames: StackFrame[];
  truncated: boolean;
  missing: Maybe<string>;
  amounts: StackAmounts;
}
export interface StackGroup {
  device: Maybe<number>;
  frame: Maybe<StackFrame>;
  missing: Maybe<string>;
  own: StackAmounts;
  total: StackAmounts;
  stacks: Int;
}
export interface StacksAnswer extends Answered {
  rows: StackRow[];
  groups: StackGroup[];
  omitted: Int;
  others: Maybe<StackAmounts>;
  /** What all stacks of a device have, also those that are not listed. */
  devices?: { device: Maybe<number>; amounts: StackAmounts; stacks: Int }[];
  from_unix_ns: Maybe<Int>;
}

export interface DevicePool {
  device: number;
  reserved_bytes: Int;
  allocated: Amount;
  pending: Amount;
  requested_bytes: Maybe<Int>;
  free: Amount;
  largest_free_bytes: Int;
  idle_segments: Amount;
  fragmentation_of_free: number;
  unused_share: number;
}
export interface FailedAllocation {
  device: number;
  size_bytes: Int;
  device_free_bytes: Maybe<Int>;
  time_boot_ns: Int;
  time_unix_ns: Int;
  line: Maybe<CodeLine>;
}
export interface PoolAnswer extends Answered {
  devices: DevicePool[];
  ages_ns: Int[];
  /** Not there from a daemon that is too old to tell. */
  failed_allocations?: FailedAllocation[];
}
export interface GroupDiff {
  device: number;
  stream: Int;
  size_bytes: Int;
  requested: boolean;
  came: Amount;
  went: Amount;
  stayed: Amount;
}
export interface DiffAnswer extends Answered {
  from_unix_ns: Int;
  to_unix_ns: Int;
  groups: GroupDiff[];
  omitted_groups: Int;
  devices: {
    device: number;
    allocated_before_bytes: Int;
    allocated_after_bytes: Int;
    reserved_before_bytes: Int;
    reserved_after_bytes: Int;
    came: Amount;
    went: Amount;
    stayed: Amount;
  }[];
}
/** What a node of a fleet said. */
export interface NodeReply {
  node: string;
  address?: string;
  error?: Maybe<{ code?: string; message?: string; hint?: Maybe<string> }>;
}

export interface RankRow {
  rank: number;
  node: string;
  pid: number;
  peak_allocated_bytes: Maybe<Int>;
  allocated_bytes: Maybe<Int>;
  peak_reserved_bytes: Maybe<Int>;
  floor_bytes: Maybe<Int>;
  grows: Maybe<boolean>;
  growth_bytes_per_step: Maybe<number>;
  step_median_ns: Maybe<Int>;
}
export interface RankFinding {
  rank: number;
  metric: string;
  value: number;
  peers_median: number;
  confidence: Maybe<number>;
}
export interface RankedJob {
  job: Maybe<string>;
  ranks: RankRow[];
  missing: { from: number; to: number }[];
  twice: number[];
  judgement: {
    odd: {
      rank: number;
      place: number;
      findings: RankFinding[];
      explained: Maybe<{ lines: { name: string; bytes: Int; peers_bytes: Int }[]; share: Maybe<number> }>;
    }[];
    comparisons: number;
    not_judged: { metric: string; why: "none_alike" | { too_few: { known: number; needed: number } } }[];
  };
}
export interface RanksAnswer extends Answered {
  jobs: RankedJob[];
  nodes: NodeReply[];
}
export interface About {
  version: string;
  source: { kind: string; name: string; live: boolean };
  pids: Maybe<number[]>;
  nodes: Maybe<string[]>;
  now_unix_ns?: Maybe<Int>;
}
