// Out of memory: what failed, what room there is, and what follows from that, as far as the answers say.

import type { JSX } from "preact";
import { ask, useAnswer } from "../ask.ts";
import { asMoment } from "../hash.ts";
import { knownOf, onlyIf, say } from "../known.ts";
import { Bytes, Count, Nobody, Notes, Place, Section, Table } from "../parts.tsx";
import { beat, fresh, heardOf, hrefTo, pid, view, node as nodeOf } from "../state.ts";
import type { FailedAllocation, PoolAnswer, StatsAnswer } from "../types.ts";
import { type Int, bytes, clock, grouped, moment, percent } from "../units.ts";
import { slow } from "./now.tsx";

/** What a link from a failed allocation shows of the course before and after it, nanoseconds. */
const BEFORE_NS = 10e9;
const AFTER_NS = 1e9;

export function Oom(): JSX.Element {
  const id = pid.value;
  return id === null ? <Nobody /> : <Failures key={`${id} ${nodeOf.value}`} id={id} />;
}

function Failures({ id }: { id: number }): JSX.Element {
  const node = nodeOf.value;
  const { at } = view.value;
  const stats = useAnswer<StatsAnswer>(`${id} ${node}`, beat.value, (signal) =>
    ask("Stats", { pid: id }, node, signal),
  );
  const pool = useAnswer<PoolAnswer>(`${id} ${node} ${at}`, slow(fresh.value, 3), (signal) =>
    ask("Pool", { pid: id, at: asMoment(at) }, node, signal),
  );
  const answer = stats.value.answer;
  const failed = at === null ? failures(id, node, pool.value.answer) : (pool.value.answer?.failed_allocations ?? []);
  const count = answer?.devices.reduce((sum, device) => sum + Number(device.oom_count), 0) ?? 0;
  const history = knownOf(answer?.coverage, "history", "failures");
  // What is free is told by the blocks that are known: with some of them missing it is not known, and nothing follows from it.
  const room = onlyIf(knownOf(pool.value.answer?.coverage, "totals", "blocks"));
  return (
    <>
      <Section title="Out of memory" state={stats.value} id="oom">
        {answer && (
          <p class="lead">
            {history === "not" ? (
              "How many allocations failed is not known."
            ) : count === 0 ? (
              history === "exactly" ? (
                "The allocator has reported no failed allocation while it was watched."
              ) : (
                "No failed allocation is known, and not all that happened was seen."
              )
            ) : (
              <>
                The allocator reported <b data-fact="ooms">{say(history, grouped(count))}</b> failed{" "}
                {count === 1 ? "allocation" : "allocations"} while it was watched.
              </>
            )}
          </p>
        )}
        {answer && count > 0 && pool.value.answer && (
          <>
            <h3>Failed allocations, the newest first</h3>
            {failed.length > 0 && <FailedTable failed={failed} />}
            {at === null && failed.length < count && (
              <p class="quiet">
                {failed.length === 0
                  ? "None of them is"
                  : history === "not"
                    ? "Others may not be"
                    : `${say(history, grouped(count - failed.length))} earlier ones are not`}{" "}
                in what is kept of the trace.
              </p>
            )}
            {at !== null && <p class="quiet">Those that the trace had at that earlier moment.</p>}
          </>
        )}
        {answer && (count > 0 || answer.failures.length > 0) && (
          <>
            <h3>Failed calls of the driver</h3>
            <Table
              caption="Failed calls of the driver"
              rows={answer.failures}
              empty="No call of the driver failed."
              columns={[
                { name: "Function", by: (row) => row.function, cell: (row) => <code>{row.function}</code> },
                { name: "Status", number: true, by: (row) => row.status, cell: (row) => row.status },
                {
                  name: "Times",
                  number: true,
                  by: (row) => Number(row.count),
                  cell: (row) => <Count of={row.count} />,
                },
                {
                  name: "Asked for, together",
                  number: true,
                  by: (row) => Number(row.bytes),
                  cell: (row) => <Bytes of={row.bytes} />,
                },
              ]}
            />
          </>
        )}
      </Section>
      <Section title={at === null ? "What has room now" : "What had room then"} state={pool.value} id="pool" earlier>
        <div class="cards">
          {pool.value.answer?.devices.map((device) => {
            const stat = answer?.devices.find((one) => one.device === device.device);
            // What is free on the device is known of the present only.
            const free = at === null ? (stat?.free_bytes ?? null) : null;
            const asked = failed.filter((one) => one.device === device.device).map((one) => Number(one.size_bytes));
            return (
              <article class="card" key={device.device}>
                <h3>Device {device.device}</h3>
                <dl class="facts">
                  <div class="fact">
                    <dt>largest free piece of the pool</dt>
                    <dd data-fact="largest free">
                      <Bytes of={device.largest_free_bytes} known={room} />
                    </dd>
                  </div>
                  <div class="fact">
                    <dt>free in the pool</dt>
                    <dd data-fact="free in the pool">
                      <Bytes of={device.free.bytes} known={room} />
                      {room === "exactly" && (
                        <>
                          {" "}
                          in <Count of={device.free.count} /> {Number(device.free.count) === 1 ? "piece" : "pieces"}
                        </>
                      )}
                    </dd>
                  </div>
                  <div class="fact">
                    <dt>free on the device, as last seen</dt>
                    <dd data-fact="free on the device">
                      <Bytes of={free} />
                    </dd>
                  </div>
                  <div class="fact">
                    <dt>segments that nobody uses</dt>
                    <dd data-fact="idle segments">
                      <Bytes of={device.idle_segments.bytes} known={room} />
                    </dd>
                  </div>
                  <div class="fact">
                    <dt>free outside the largest piece</dt>
                    <dd data-fact="fragmentation">
                      {room === "exactly" ? (
                        percent(device.fragmentation_of_free)
                      ) : (
                        <span class="unknown">unknown</span>
                      )}
                    </dd>
                  </div>
                </dl>
                {room === "exactly" && (
                  <Advice device={device} free={free} most={asked.length ? Math.max(...asked) : null} />
                )}
              </article>
            );
          })}
        </div>
        {pool.value.answer?.devices.length === 0 && <p>No segment is known on any device.</p>}
        <Notes of={[answer, pool.value.answer]} />
      </Section>
    </>
  );
}

/** The failed allocations of the trace; of a process without a trace those that were pushed while the page was open. */
export function failures(id: number, node: string | null, pool: PoolAnswer | null): FailedAllocation[] {
  const told = pool?.failed_allocations ?? [];
  if (told.length > 0) return told;
  return heardOf(id, node, "oom").flatMap((event) =>
    event.time_boot_ns === null || event.time_unix_ns === null
      ? []
      : {
          device: Number(event.body.device),
          size_bytes: event.body.size_bytes as Int,
          device_free_bytes: null,
          time_boot_ns: event.time_boot_ns,
          time_unix_ns: event.time_unix_ns,
          line: null,
        },
  );
}

function FailedTable({ failed }: { failed: FailedAllocation[] }): JSX.Element {
  const several = new Set(failed.map((one) => one.device)).size > 1;
  return (
    <Table
      caption="Failed allocations"
      rows={failed}
      columns={[
        {
          name: "When",
          by: (one) => Number(one.time_boot_ns),
          cell: (one) => (
            <a
              class="number"
              title={moment(one.time_unix_ns)}
              href={hrefTo({
                view: "time",
                at: String(one.time_unix_ns),
                from: Math.max(0, Number(one.time_boot_ns) - BEFORE_NS),
                to: Number(one.time_boot_ns) + AFTER_NS,
              })}
            >
              {moment(one.time_unix_ns).slice(0, 10)} {clock(one.time_unix_ns)} UTC
            </a>
          ),
        },
        { name: "Where", by: (one) => one.line?.file ?? null, cell: (one) => <Place line={one.line} /> },
        ...(several
          ? [
              {
                name: "Device",
                number: true,
                by: (one: FailedAllocation) => one.device,
                cell: (one: FailedAllocation) => one.device,
              },
            ]
          : []),
        {
          name: "Asked for",
          number: true,
          by: (one) => Number(one.size_bytes),
          cell: (one) => <Bytes of={one.size_bytes} />,
        },
        {
          name: "Free on the device then",
          number: true,
          by: (one) => (one.device_free_bytes == null ? null : Number(one.device_free_bytes)),
          cell: (one) => <Bytes of={one.device_free_bytes} />,
        },
        {
          name: "Memory then",
          cell: (one) => <a href={hrefTo({ view: "memory", at: String(one.time_unix_ns) })}>its blocks</a>,
        },
      ]}
    />
  );
}

/** Only what follows from the numbers. */
function Advice({
  device,
  free,
  most,
}: {
  device: PoolAnswer["devices"][number];
  free: Int | null;
  most: number | null;
}): JSX.Element | null {
  const says: string[] = [];
  if (most !== null && free !== null) {
    const all = Number(device.free.bytes) + Number(free);
    if (all < most)
      says.push(
        `The largest request, ${bytes(most)}, is more than all that is free (${bytes(all)}, as last seen): only less memory in use, or a smaller request, helps.`,
      );
    else if (Number(device.largest_free_bytes) < most && Number(free) < most)
      says.push(
        `${bytes(most)} would fit into what is free together (${bytes(all)}, as last seen), but into no piece: expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), or torch.cuda.empty_cache() before, may make room.`,
      );
    else if (Number(free) >= most)
      says.push(`A request of ${bytes(most)} would fit into what was free on the device when that was last seen.`);
    // PyTorch gives a free piece to requests of the same stream and pool only, and this is the largest of all of them.
    else
      says.push(
        `A request of ${bytes(most)} would fit into the largest free piece, if that is of its stream and pool: PyTorch gives it to no other.`,
      );
  }
  if (Number(device.idle_segments.bytes) > 0)
    says.push(`torch.cuda.empty_cache() would give ${bytes(device.idle_segments.bytes)} back to the driver.`);
  return says.length ? (
    <ul class="advice">
      {says.map((text) => (
        <li key={text}>{text}</li>
      ))}
    </ul>
  ) : null;
}
