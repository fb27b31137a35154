// Steps: the lowest and the highest level of each, the quantiles, and which of them are unlike the others.

import type { JSX } from "preact";
import { ask, useAnswer } from "../ask.ts";
import { Bytes, Count, Nobody, Notes, Section, Table } from "../parts.tsx";
import { beat, go, hrefTo, pid, view, node as nodeOf } from "../state.ts";
import type { StepRow, StepsAnswer } from "../types.ts";
import { bytes, grouped, nanoseconds, signedBytes } from "../units.ts";
import { slow } from "./now.tsx";

/** So many times the distance between the median and the 95 % quantile makes a step odd. */
const ODD = 3;
/** Rows of all devices that are asked for. For a window that may be older all are, of which the daemon sends 10,000. */
const ROWS = 4096;
const MOST_DRAWN = 600;

export function Steps(): JSX.Element {
  const id = pid.value;
  return id === null ? <Nobody /> : <Rows key={`${id} ${nodeOf.value}`} id={id} />;
}

type Device = StepsAnswer["devices"][number];

function odd(row: StepRow, device: Device | undefined): boolean {
  const max = device?.max_bytes;
  if (!max) return false;
  const spread = Math.max(Number(max.p95) - Number(max.p50), Number(max.p50) * 0.01);
  return Number(row.max_allocated_bytes) > Number(max.p50) + ODD * spread;
}

function Rows({ id }: { id: number }): JSX.Element {
  const node = nodeOf.value;
  const { from, to } = view.value;
  const state = useAnswer<StepsAnswer>(`${id} ${node} ${from === null}`, slow(beat.value, 3), (signal) =>
    ask("Steps", { pid: id, limit: from === null ? ROWS : 0 }, node, signal),
  );
  const answer = state.value.answer;
  const inWindow = (row: StepRow) =>
    from === null || to === null || (Number(row.to_boot_ns) > from && Number(row.from_boot_ns) < to);
  const rows = answer?.rows.filter(inWindow) ?? [];
  const deviceOf = (row: StepRow) =>
    answer?.devices.find((device) => device.device === row.device && device !== undefined);
  return (
    <Section title="Steps" state={state.value} id="steps">
      {answer && (
        <p class="lead">
          {answer.summary.count != null ? (
            <>
              <b data-fact="steps">{grouped(answer.summary.count)}</b> steps
            </>
          ) : (
            <span class="unknown">Steps are unknown</span>
          )}
          {answer.summary.median_ns != null && <>, {nanoseconds(answer.summary.median_ns)} each in the median</>}.{" "}
          <span class="quiet">{answer.summary.evidence}</span>
        </p>
      )}
      {from !== null && (
        <p>
          Only those in the window that Time shows.{" "}
          <button type="button" onClick={() => go({ from: null, to: null })}>
            All
          </button>
        </p>
      )}
      <div class="cards">
        {answer?.devices.map((device) => (
          <article class="card" key={`${device.device}`}>
            <h3>Device {device.device ?? "unknown"}</h3>
            <dl class="facts">
              <div class="fact">
                <dt>highest level</dt>
                <dd>
                  {device.max_bytes ? (
                    <>
                      <Bytes of={device.max_bytes.p5} /> ·{" "}
                      <b>
                        <Bytes of={device.max_bytes.p50} />
                      </b>{" "}
                      · <Bytes of={device.max_bytes.p95} />
                    </>
                  ) : (
                    <span class="unknown">unknown</span>
                  )}
                </dd>
              </div>
              <div class="fact">
                <dt>lowest level</dt>
                <dd>
                  {device.min_bytes ? (
                    <>
                      <Bytes of={device.min_bytes.p5} /> ·{" "}
                      <b>
                        <Bytes of={device.min_bytes.p50} />
                      </b>{" "}
                      · <Bytes of={device.min_bytes.p95} />
                    </>
                  ) : (
                    <span class="unknown">unknown</span>
                  )}
                </dd>
              </div>
              <div class="fact">
                <dt>floor a step</dt>
                <dd>{signedBytes(Math.round(device.floor_bytes_per_step))}</dd>
              </div>
            </dl>
            <p class="quiet">5 %, median, 95 % of {grouped(device.steps)} steps</p>
          </article>
        ))}
      </div>
      {answer && (
        <p class="quiet">
          {grouped(answer.survivor_count)} blocks with {bytes(answer.survivor_bytes)} outlived their step.
          {Number(answer.unchecked_blocks ?? 0) > 0 &&
            ` Of ${grouped(answer.unchecked_blocks!)} more blocks that is not known: too many came in one step.`}
        </p>
      )}
      {answer?.devices.map((device) => (
        <Levels key={`${device.device}`} device={device} rows={rows.filter((row) => row.device === device.device)} />
      ))}
      {answer?.devices.map((device) => {
        const listed = answer.rows.filter((row) => row.device === device.device).length;
        return (
          listed < Number(device.steps) && (
            <p key={`${device.device}`} class="quiet" data-fact="listed">
              Of device {device.device ?? "unknown"}, the last {grouped(listed)} of {grouped(device.steps)} steps are
              listed and drawn.
            </p>
          )
        );
      })}
      {answer && (
        <Table
          caption="Steps"
          rows={[...rows].reverse()}
          empty={nothing(answer.rows, to)}
          mark={(row) => (odd(row, deviceOf(row)) ? "odd" : "")}
          columns={[
            {
              name: "Step",
              number: true,
              by: (row) => Number(row.step),
              cell: (row) => (
                <>
                  <a
                    class="number"
                    href={hrefTo({ view: "memory", at: `step:${row.step}` })}
                    title="Memory at the end of this step"
                  >
                    {grouped(row.step)}
                  </a>
                  {odd(row, deviceOf(row)) ? <b> odd</b> : ""}
                </>
              ),
            },
            ...(answer.devices.length > 1
              ? [
                  {
                    name: "Device",
                    number: true,
                    by: (row: StepRow) => row.device ?? null,
                    cell: (row: StepRow) => row.device ?? "unknown",
                  },
                ]
              : []),
            {
              name: "Took",
              number: true,
              by: (row) => Number(row.to_boot_ns) - Number(row.from_boot_ns),
              cell: (row) => nanoseconds(Number(row.to_boot_ns) - Number(row.from_boot_ns)),
            },
            {
              name: "Lowest",
              number: true,
              by: (row) => Number(row.min_allocated_bytes),
              cell: (row) => <Bytes of={row.min_allocated_bytes} />,
            },
            {
              name: "Highest",
              number: true,
              by: (row) => Number(row.max_allocated_bytes),
              cell: (row) => <Bytes of={row.max_allocated_bytes} />,
            },
            {
              name: "At its end",
              number: true,
              by: (row) => Number(row.end_allocated_bytes),
              cell: (row) => <Bytes of={row.end_allocated_bytes} />,
            },
            {
              name: "Reserved",
              number: true,
              by: (row) => Number(row.max_reserved_bytes),
              cell: (row) => <Bytes of={row.max_reserved_bytes} />,
            },
            { name: "Came", number: true, by: (row) => Number(row.allocs), cell: (row) => <Count of={row.allocs} /> },
            { name: "Went", number: true, by: (row) => Number(row.frees), cell: (row) => <Count of={row.frees} /> },
          ]}
        />
      )}
      <Notes of={[answer]} />
    </Section>
  );
}

/** Why no row is there. */
function nothing(rows: StepRow[], to: number | null): string {
  const first = rows.length && Math.min(...rows.map((row) => Number(row.from_boot_ns)));
  if (rows.length === 0) return "No step is kept.";
  return to !== null && to <= first ? "The steps of this window are older than those that are listed." : "No step lies in this window.";
}

/** A bar for each step, from its lowest to its highest level; odd ones have another shape. */
function Levels({ device, rows }: { device: Device; rows: StepRow[] }): JSX.Element | null {
  if (rows.length < 2) return null;
  const each = Math.ceil(rows.length / MOST_DRAWN);
  const bars: { low: number; high: number; odd: boolean; step: number | string }[] = [];
  for (let i = 0; i < rows.length; i += each) {
    const some = rows.slice(i, i + each);
    bars.push({
      low: Math.min(...some.map((row) => Number(row.min_allocated_bytes))),
      high: Math.max(...some.map((row) => Number(row.max_allocated_bytes))),
      odd: some.some((row) => odd(row, device)),
      step: some[0]!.step,
    });
  }
  const most = Math.max(1, ...bars.map((bar) => bar.high));
  const width = 600 / bars.length;
  const y = (value: number) => 100 - (92 * value) / most;
  return (
    <figure class="levels">
      <figcaption>
        Device {device.device ?? "unknown"}: lowest to highest level of steps {grouped(rows[0]!.step)} to{" "}
        {grouped(rows.at(-1)!.step)}
        {each > 1 ? `, ${each} to a bar` : ""}; up to {bytes(most)}. Odd ones carry a ▼.
      </figcaption>
      <svg
        viewBox="0 0 600 100"
        preserveAspectRatio="none"
        role="img"
        aria-label={`Levels of ${grouped(rows.length)} steps; ${bars.filter((bar) => bar.odd).length} are odd. The table below says the same.`}
      >
        {bars.map((bar, i) => (
          <g key={i} class={bar.odd ? "odd" : ""}>
            <rect
              x={i * width}
              width={Math.max(0.6, width * 0.75)}
              y={y(bar.high)}
              height={Math.max(1, y(bar.low) - y(bar.high))}
            />
            {bar.odd && <path d={`M${i * width - 3} ${Math.max(0, y(bar.high) - 8)}h6l-3 6z`} />}
          </g>
        ))}
      </svg>
    </figure>
  );
}
