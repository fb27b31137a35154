// Out of memory: what failed, what room there is, and what follows from that, as far as the answers say.

import type { JSX } from "preact";
import { ask, useAnswer } from "../ask.ts";
import { asMoment } from "../hash.ts";
import { Bytes, Count, Nobody, Notes, Section, Table } from "../parts.tsx";
import { beat, events, fresh, hrefTo, pid, view, node as nodeOf } from "../state.ts";
import type { PoolAnswer, StatsAnswer } from "../types.ts";
import { type Int, bytes, grouped, moment, percent } from "../units.ts";
import { slow } from "./now.tsx";

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
  const failed = events.value.filter(
    (event) => event.pid === id && (event.kind === "oom" || (event.kind === "trace" && event.body.action === "oom")),
  );
  const count = answer?.devices.reduce((sum, device) => sum + Number(device.oom_count), 0) ?? 0;
  const asked = failed.map((event) => Number(event.body.size_bytes ?? NaN)).filter((size) => size > 0);
  const most = asked.length ? Math.max(...asked) : null;
  return (
    <>
      <Section title="Out of memory" state={stats.value} id="oom">
        {answer && (
          <p class="lead">
            {count === 0 ? (
              "The allocator has reported no failed allocation since the attach."
            ) : (
              <>
                The allocator reported <b data-fact="ooms">{grouped(count)}</b> failed{" "}
                {count === 1 ? "allocation" : "allocations"} since the attach.
              </>
            )}
          </p>
        )}
        {answer && (
          <Table
            caption="Failed calls of the driver"
            rows={answer.failures}
            empty="No call of the driver failed."
            columns={[
              { name: "Function", by: (row) => row.function, cell: (row) => <code>{row.function}</code> },
              { name: "Status", number: true, by: (row) => row.status, cell: (row) => row.status },
              { name: "Times", number: true, by: (row) => Number(row.count), cell: (row) => <Count of={row.count} /> },
              {
                name: "Asked for, together",
                number: true,
                by: (row) => Number(row.bytes),
                cell: (row) => <Bytes of={row.bytes} />,
              },
            ]}
          />
        )}
        <h3>While this page was open</h3>
        <Table
          caption="Failed allocations while this page was open"
          rows={failed}
          empty="None."
          columns={[
            {
              name: "When",
              by: (event) => Number(event.time_boot_ns),
              cell: (event) =>
                event.time_unix_ns === null ? (
                  <span class="unknown">unknown</span>
                ) : (
                  <a
                    href={hrefTo({
                      view: "time",
                      at: String(event.time_unix_ns),
                      from: event.time_boot_ns === null ? null : Math.max(0, Number(event.time_boot_ns) - 10e9),
                      to: event.time_boot_ns === null ? null : Number(event.time_boot_ns) + 1e9,
                    })}
                  >
                    {moment(event.time_unix_ns)}
                  </a>
                ),
            },
            {
              name: "Asked for",
              number: true,
              by: (event) => Number(event.body.size_bytes ?? 0),
              cell: (event) => <Bytes of={event.body.size_bytes as Int | undefined} />,
            },
            {
              name: "Allocated then",
              number: true,
              cell: (event) => <Bytes of={event.body.total_allocated_bytes as Int | undefined} />,
            },
            {
              name: "Reserved then",
              number: true,
              cell: (event) => <Bytes of={event.body.total_reserved_bytes as Int | undefined} />,
            },
          ]}
        />
      </Section>
      <Section title="What would have had room" state={pool.value} id="pool">
        <div class="cards">
          {pool.value.answer?.devices.map((device) => {
            const stat = answer?.devices.find((one) => one.device === device.device);
            return (
              <article class="card" key={device.device}>
                <h3>Device {device.device}</h3>
                <dl class="facts">
                  <div class="fact">
                    <dt>largest free piece of the pool</dt>
                    <dd data-fact="largest free">
                      <Bytes of={device.largest_free_bytes} />
                    </dd>
                  </div>
                  <div class="fact">
                    <dt>free in the pool</dt>
                    <dd>
                      <Bytes of={device.free.bytes} /> in <Count of={device.free.count} /> pieces
                    </dd>
                  </div>
                  <div class="fact">
                    <dt>free on the device</dt>
                    <dd>
                      <Bytes of={stat?.free_bytes} />
                    </dd>
                  </div>
                  <div class="fact">
                    <dt>segments that nobody uses</dt>
                    <dd>
                      <Bytes of={device.idle_segments.bytes} />
                    </dd>
                  </div>
                  <div class="fact">
                    <dt>free outside the largest piece</dt>
                    <dd>{percent(device.fragmentation_of_free)}</dd>
                  </div>
                </dl>
                <Advice device={device} free={stat?.free_bytes ?? null} most={most} />
              </article>
            );
          })}
        </div>
        <Notes of={[answer, pool.value.answer]} />
      </Section>
    </>
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
        `The largest request, ${bytes(most)}, is more than all that is free now (${bytes(all)}): only less memory in use, or a smaller request, helps.`,
      );
    else if (Number(device.largest_free_bytes) < most && Number(free) < most)
      says.push(
        `${bytes(most)} would fit into what is free together (${bytes(all)}), but into no piece: expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), or torch.cuda.empty_cache() before, may make room.`,
      );
    else says.push(`A request of ${bytes(most)} would have room now.`);
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
