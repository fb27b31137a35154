// Ranks: the ranks of a job side by side, as the question `Ranks` answers; whatever columns it has.

import type { JSX } from "preact";
import { ask, useAnswer } from "../ask.ts";
import { Notes, Section, Table } from "../parts.tsx";
import { beat } from "../state.ts";
import type { Answered } from "../types.ts";
import { bytes, grouped, nanoseconds } from "../units.ts";
import { slow } from "./now.tsx";

type Values = Record<string, unknown>;
interface RanksAnswer extends Answered {
  jobs?: (Values & { ranks?: Values[] })[];
  ranks?: Values[];
}

function text(name: string, value: unknown): string {
  if (value === null || value === undefined) return "unknown";
  if (typeof value === "number" || (typeof value === "string" && /^\d+$/.test(value))) {
    if (name.endsWith("_bytes") || name.includes("bytes_per")) return bytes(Math.abs(Math.round(Number(value))));
    if (name.endsWith("_ns")) return nanoseconds(value);
    return Number.isInteger(Number(value)) ? grouped(value) : Number(value).toPrecision(4);
  }
  if (Array.isArray(value)) return value.map((one) => text(name, one)).join(", ");
  if (typeof value === "object")
    return Object.entries(value as Values)
      .map(([key, one]) => `${key.replaceAll("_", " ")}: ${text(key, one)}`)
      .join(", ");
  return String(value);
}

export function Ranks(): JSX.Element {
  const state = useAnswer<RanksAnswer>("ranks", slow(beat.value, 5), (signal) => ask("Ranks", {}, null, signal));
  const answer = state.value.answer;
  const jobs = answer?.jobs ?? (answer?.ranks ? [answer as Values & { ranks: Values[] }] : []);
  return (
    <Section title="Ranks" state={state.value} id="ranks">
      {answer && jobs.length === 0 && <p>No job with several ranks is traced.</p>}
      {jobs.map((job, i) => {
        const rows = job.ranks ?? [];
        const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) =>
          rows.some((row) => typeof row[name] !== "object" || row[name] === null),
        );
        return (
          <section key={i} aria-label={`Job ${i + 1}`}>
            <h3>{text("job", job.job ?? job.name ?? "job")}</h3>
            <ul>
              {Object.entries(job)
                .filter(
                  ([name, value]) =>
                    !["ranks", "coverage", "job"].includes(name) &&
                    value !== null &&
                    !(Array.isArray(value) && value.length === 0),
                )
                .map(([name, value]) => (
                  <li key={name}>
                    {name.replaceAll("_", " ")}: {text(name, value)}
                  </li>
                ))}
            </ul>
            <Table
              caption="Ranks"
              rows={rows}
              columns={names.map((name) => ({
                name: name.replaceAll("_", " "),
                number: true,
                by: (row: Values) => (row[name] == null ? null : (row[name] as number)),
                cell: (row: Values) => (
                  <span class={row[name] == null ? "unknown" : "number"}>{text(name, row[name])}</span>
                ),
              }))}
            />
          </section>
        );
      })}
      <Notes of={[answer]} />
    </Section>
  );
}
