// Ranks: the ranks of each job side by side, and which of them is unlike the others, in the sentences that `memscope-ctl ranks` uses.

import type { JSX } from "preact";
import { ask, useAnswer } from "../ask.ts";
import { Bytes, Section, Table } from "../parts.tsx";
import { aboutProcess, beat, hrefTo, selected } from "../state.ts";
import type { RankFinding, RankRow, RankedJob, RanksAnswer } from "../types.ts";
import { bytes, grouped, nanoseconds, signedBytes } from "../units.ts";
import { Silent, slow } from "./now.tsx";

/** Ranges of numbers, ranks that stand out, and lines of each that are listed; further ones are counted. */
const MOST_RANGES = 6;
const MOST_ODD = 8;
const MOST_LINES = 5;

const METRICS: Record<string, string> = {
  peak: "peak",
  reserved: "reserved",
  floor: "floor",
  growth: "growth",
  step_time: "step time",
};
const WHAT: Record<string, string> = {
  peak: "its peak",
  reserved: "what its pool reserves",
  floor: "its floor",
  step_time: "the time of its steps",
};

function listed(all: string[]): string {
  const more = all.length - MOST_RANGES;
  return `${all.slice(0, MOST_RANGES).join(", ")}${more > 0 ? ` and ${grouped(more)} more` : ""}`;
}

/** `its peak is 6.10 GiB above the others' 41.20 GiB, surely (0.999)`. */
function found(finding: RankFinding, perStep: boolean): string {
  const difference = finding.value - finding.peers_median;
  const text = (value: number) => (finding.metric === "step_time" ? nanoseconds(Math.round(value)) : bytes(value));
  const level = text(finding.peers_median);
  // It is cut and not rounded: nothing is wholly sure.
  const sure =
    finding.confidence == null ? "" : `, surely (${(Math.min(999, Math.floor(finding.confidence * 1000)) / 1000).toFixed(3)})`;
  if (finding.metric === "growth") {
    const pace = `it grows by ${signedBytes(Math.round(finding.value))} ${perStep ? "a step" : "a second"}`;
    return `${pace}, ${finding.peers_median > 0 ? `the others by ${level}` : "and the others do not"}${sure}`;
  }
  const beside = `${text(Math.abs(difference))} ${difference > 0 ? "above" : "below"} the others' ${level}`;
  return `${WHAT[finding.metric] ?? finding.metric} is ${beside}${sure}`;
}

/** Why numbers were not judged: a sentence for each reason, with all numbers that it is true of. */
function notJudged(job: RankedJob): string {
  const reasons = new Map<string, string[]>();
  for (const { metric, why } of job.judgement.not_judged) {
    const reason =
      typeof why === "object"
        ? `known of ${grouped(why.too_few.known)} ${why.too_few.known === 1 ? "rank" : "ranks"}, and ${grouped(why.too_few.needed)} are needed to judge`
        : "too many ranks have no other like them";
    reasons.set(reason, [...(reasons.get(reason) ?? []), METRICS[metric] ?? metric]);
  }
  return [...reasons].map(([reason, names]) => `${names.join(", ")}: ${reason}`).join("; ");
}

export function Ranks(): JSX.Element {
  const state = useAnswer<RanksAnswer>("ranks", slow(beat.value, 5), (signal) => ask("Ranks", {}, null, signal));
  const answer = state.value.answer;
  return (
    <Section title="Ranks" state={state.value} id="ranks">
      {answer && answer.jobs.length === 0 && (
        <p>
          No traced process is a rank of a job: none was started with <code>RANK</code>, <code>SLURM_PROCID</code> or
          their like.
        </p>
      )}
      {answer?.jobs.map((job) => (
        <Job key={job.job ?? ""} job={job} />
      ))}
      <Silent nodes={answer?.nodes ?? []} />
    </Section>
  );
}

function Job({ job }: { job: RankedJob }): JSX.Element {
  const { odd, comparisons } = job.judgement;
  const why = notJudged(job);
  const name = job.job ?? "a job without a name";
  return (
    <section class="card" aria-label={`Job ${name}`} data-id="job">
      <h3>
        {job.job ? `Job ${job.job}` : "A job without a name"}{" "}
        <span class="quiet">
          · <span data-fact="ranks">{grouped(job.ranks.length)}</span> {job.ranks.length === 1 ? "rank" : "ranks"}
        </span>
      </h3>
      {odd.length === 0 && (
        <p class="lead" data-fact="judged">
          {comparisons === 0
            ? `Whether a rank stands out cannot be told${why ? `: ${why}` : ""}.`
            : `No rank stands out.${why ? ` Not judged: ${why}.` : ""}`}
        </p>
      )}
      {odd.slice(0, MOST_ODD).map((one) => {
        // By its place: two jobs of which the name is not known have the same numbers.
        const row = job.ranks[one.place];
        const perStep = row?.growth_bytes_per_step != null;
        return (
          <div key={one.place} data-fact="odd">
            <p class="lead">
              <span class="alarm" aria-hidden="true">
                ▲
              </span>{" "}
              <b>Rank {one.rank}</b>
              {row ? ` (${row.node}, pid ${row.pid})` : ""} stands out:{" "}
              {one.findings.map((finding) => found(finding, perStep)).join("; also, ")}.
            </p>
            {one.explained && one.explained.lines.length > 0 && (
              <Table
                caption={`Lines that make rank ${one.rank} stand out`}
                rows={one.explained.lines.slice(0, MOST_LINES)}
                columns={[
                  { name: "Line", cell: (line) => <span class="place">{line.name}</span> },
                  { name: `Rank ${one.rank}`, number: true, cell: (line) => <Bytes of={line.bytes} /> },
                  { name: "The others", number: true, cell: (line) => <Bytes of={line.peers_bytes} /> },
                ]}
              />
            )}
            {one.explained?.share != null && (
              <p class="quiet">
                {one.explained.lines.length === 0
                  ? "No line of it has more than those of the others."
                  : `These lines make up ${Math.round(one.explained.share * 100)} % of the difference.`}
              </p>
            )}
          </div>
        );
      })}
      {odd.length > MOST_ODD && <p>{grouped(odd.length - MOST_ODD)} more stand out.</p>}
      {job.missing.length > 0 && (
        <p data-fact="missing">
          Missing: rank {listed(job.missing.map(({ from, to }) => (from === to ? `${from}` : `${from}–${to}`)))}.
        </p>
      )}
      {job.twice.length > 0 && (
        <p>Several processes have the same number, so these are several jobs: rank {listed(job.twice.map(String))}.</p>
      )}
      <Table
        caption={`Ranks of ${name}`}
        rows={job.ranks}
        keyOf={(row) => `${row.node} ${row.pid}`}
        mark={(row) =>
          row.pid === selected.value?.pid && (selected.value.node ?? row.node) === row.node
            ? "chosen"
            : odd.some((one) => one.rank === row.rank)
              ? "odd"
              : ""
        }
        columns={[
          {
            name: "Rank",
            number: true,
            by: (row) => row.rank,
            cell: (row) => (
              <>
                {odd.some((one) => one.rank === row.rank) && (
                  <span class="alarm" title="stands out">
                    ▲{" "}
                  </span>
                )}
                {row.rank}
              </>
            ),
          },
          { name: "Node", by: (row) => row.node, cell: (row) => row.node },
          {
            name: "Pid",
            number: true,
            by: (row) => row.pid,
            cell: (row) => <a href={hrefTo({ view: "now", ...aboutProcess(row) })}>{row.pid}</a>,
          },
          amount("Peak", "peak_allocated_bytes"),
          amount("Allocated", "allocated_bytes"),
          amount("Reserved, peak", "peak_reserved_bytes"),
          amount("Floor", "floor_bytes"),
          {
            name: "Grows",
            number: true,
            by: (row) => (row.grows == null ? null : (row.growth_bytes_per_step ?? (row.grows ? 1 : 0))),
            cell: (row) =>
              row.grows == null ? (
                <span class="unknown">unknown</span>
              ) : row.growth_bytes_per_step != null ? (
                `${signedBytes(Math.round(row.growth_bytes_per_step))} a step`
              ) : row.grows ? (
                "yes"
              ) : (
                "–"
              ),
          },
          {
            name: "A step takes",
            number: true,
            by: (row) => (row.step_median_ns == null ? null : Number(row.step_median_ns)),
            cell: (row) =>
              row.step_median_ns == null ? (
                <span class="unknown">unknown</span>
              ) : (
                <span class="number" title={`${grouped(row.step_median_ns)} ns`}>
                  {nanoseconds(row.step_median_ns)}
                </span>
              ),
          },
        ]}
      />
    </section>
  );
}

function amount(
  name: string,
  field: "peak_allocated_bytes" | "allocated_bytes" | "peak_reserved_bytes" | "floor_bytes",
) {
  return {
    name,
    number: true,
    by: (row: RankRow) => (row[field] == null ? null : Number(row[field])),
    cell: (row: RankRow) => <Bytes of={row[field]} />,
  };
}
