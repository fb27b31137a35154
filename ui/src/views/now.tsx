// Now: what is most alarming first, then devices and processes, and what the selected process's memory is for.

import type { JSX } from "preact";
import { ask, useAnswer } from "../ask.ts";
import { AsOf, Bar, Bytes, Count, Failed, Notes, type Piece, Place, Section, Table } from "../parts.tsx";
import {
  about,
  aboutError,
  aboutProcess,
  beat,
  devices,
  devicesError,
  fresh,
  go,
  hrefTo,
  list,
  pid,
  nodes,
  selected,
  unreadable,
  view,
  node as nodeOf,
} from "../state.ts";
import { asMoment } from "../hash.ts";
import { NEVER_READ, knownOf, neverRead, peaksOf, say, totalsOf } from "../known.ts";
import type { LeaksAnswer, MachineDevice, NodeReply, OwnersAnswer, Process, StatsAnswer } from "../types.ts";
import { bytes, grouped, nanoseconds, signedBytes, sure } from "../units.ts";

/** How a category of owners is coloured: each kind has its colour and, in the legend, its name. */
export const KINDS: Record<string, string> = {
  weights: "1",
  gradients: "2",
  optimizer_state: "3",
  activations: "4",
  buffers: "5",
  kv_cache: "6",
  program: "7",
  communication: "8",
};
/** Uses in the table of a device. */
const MOST_USES = 12;
/** Nodes without an answer that are named. */
const MOST_SILENT = 20;
export const NAMES: Record<string, string> = {
  optimizer_state: "optimizer state",
  kv_cache: "KV cache",
  came_meanwhile: "came meanwhile",
  freed_since: "freed since",
};

export function Now(): JSX.Element {
  const id = pid.value;
  const node = nodeOf.value;
  const { at } = view.value;
  const leaks = useAnswer<LeaksAnswer>(
    `${id} ${node}`,
    slow(beat.value, 3),
    id === null ? null : (signal) => ask("Leaks", { pid: id, limit: 20 }, node, signal),
  );
  const stats = useAnswer<StatsAnswer>(
    `${id} ${node}`,
    beat.value,
    id === null ? null : (signal) => ask("Stats", { pid: id }, node, signal),
  );
  const whyNot = unreadable.value;
  const owners = useAnswer<OwnersAnswer>(
    `${id} ${node} ${at}`,
    whyNot ?? slow(fresh.value, 10),
    id === null || whyNot ? null : (signal) => ask("Owners", { pid: id, limit: 40, at: asMoment(at) }, node, signal),
  );
  const all = list.value?.processes;
  return (
    <>
      <Headline leaks={leaks.value.answer} stats={stats.value.answer} />
      <Failed error={aboutError.value} />
      <section class="section" aria-labelledby="h-devices" data-id="devices">
        <div class="head">
          <h2 id="h-devices">Devices</h2>
          {!devicesError.value && <AsOf of={devices.value} />}
        </div>
        <Failed error={devicesError.value} />
        <div class="cards">
          {devices.value?.devices.map((device) => (
            <DeviceCard key={`${device.node} ${device.kind} ${device.name}`} device={device} />
          ))}
        </div>
        <Silent nodes={nodes.value} />
        {devices.value && devices.value.devices.length === 0 && (
          <p class="quiet">
            {about.value?.source.live
              ? "No process that is traced now holds memory of a device."
              : "At the end of this recording, no process was traced that held memory of a device."}
          </p>
        )}
        <Notes of={[devices.value]} about="devices" />
      </section>
      <section class="section" aria-labelledby="h-processes" data-id="processes">
        <div class="head">
          <h2 id="h-processes">Processes</h2>
        </div>
        {all === undefined ? <p class="quiet">Asking …</p> : <Processes all={all} />}
      </section>
      {id !== null && (
        <>
          <Found leaks={leaks.value.answer} state={leaks.value} />
          <Section title="What the memory is for" state={whyNot ? undefined : owners.value} id="owners" earlier>
            {whyNot && <p class="quiet">{whyNot}</p>}
            {owners.value.answer?.devices.map((device) => (
              <Owned key={device.device} answer={owners.value.answer!} device={device} />
            ))}
            <Notes of={[owners.value.answer, stats.value.answer]} />
          </Section>
          <Section title="In numbers" state={stats.value} id="stats">
            <Numbers stats={stats.value.answer} />
          </Section>
        </>
      )}
    </>
  );
}

/** The nodes of a fleet that did not answer, so that nobody takes the others for all. */
export function Silent({ nodes }: { nodes: NodeReply[] }): JSX.Element | null {
  const silent = nodes.filter((node) => node.error);
  if (silent.length === 0) return null;
  return (
    <aside class="notes" aria-label="Nodes that did not answer" data-fact="silent">
      <h3>
        {grouped(silent.length)} of {grouped(nodes.length)} nodes did not answer; nothing here is about{" "}
        {silent.length === 1 ? "it" : "them"}
      </h3>
      <ul>
        {silent.slice(0, MOST_SILENT).map((node) => (
          <li key={node.node} class="limits">
            <b>{node.node}</b> {node.error?.message}
          </li>
        ))}
      </ul>
      {silent.length > MOST_SILENT && <p>and {grouped(silent.length - MOST_SILENT)} more</p>}
    </aside>
  );
}

/** The same for several beats: for questions that cost more. */
export function slow(beats: number, every: number): number {
  return beats < 0 ? beats : Math.floor(beats / every);
}

function who(process: Process): string {
  return `${process.comm} (${process.pid})`;
}

function Headline({ leaks, stats }: { leaks: LeaksAnswer | null; stats: StatsAnswer | null }): JSX.Element {
  const all = list.value?.processes;
  const mine = selected.value;
  const { level, text, more } = alarm(all, mine, leaks, stats);
  return (
    <section class={`headline ${level}`} aria-label="The most important thing" data-id="headline">
      <p class="first">
        <span class="sign" aria-hidden="true" />
        {text}
      </p>
      {more && <p class="second">{more}</p>}
      <p class="links">
        {leaks && Number(leaks.growing_lines) > 0 && (
          <a href={hrefTo({ view: "leaks", pid: pid.value })}>The evidence</a>
        )}
        {stats && stats.devices.some((device) => Number(device.oom_count) > 0) && (
          <a href={hrefTo({ view: "oom", pid: pid.value })}>Out of memory</a>
        )}
        {pid.value !== null && <a href={hrefTo({ view: "time", pid: pid.value })}>Its course</a>}
      </p>
    </section>
  );
}

interface Alarm {
  level: "calm" | "warn" | "bad";
  text: JSX.Element | string;
  more?: JSX.Element | string;
}

/** How often it ran out of memory, as exactly as it is known. */
function times(count: number, stats: StatsAnswer | null): string | undefined {
  const known = knownOf(stats?.coverage, "history", "failures");
  if (count === 0) return undefined;
  if (known === "not") return "how often it ran out of memory is not known";
  return `it ran out of memory ${known === "exactly" && count === 1 ? "once" : `${say(known, grouped(count))} times`}`;
}

function alarm(
  all: Process[] | undefined,
  mine: Process | null,
  leaks: LeaksAnswer | null,
  stats: StatsAnswer | null,
): Alarm {
  if (!all) return { level: "calm", text: "Asking what there is …" };
  if (all.length === 0)
    return {
      level: "calm",
      text: "Nothing is traced.",
      more: (
        <>
          Begin with <code>memscope-ctl attach --pid PID</code>.
        </>
      ),
    };
  const ooms = stats?.devices.reduce((sum, device) => sum + Number(device.oom_count), 0) ?? 0;
  const worst = leaks?.lines.find((line) => line.verdict === "growing");
  const running = mine?.state === "attached";
  const often = times(ooms, stats);
  const oomsText = often && `${often[0]!.toUpperCase()}${often.slice(1)}${often.endsWith("known") ? "" : " while it was watched"}.`;
  if (mine && worst) {
    const per = worst.growth_bytes_per_step
      ? `${bytes(Math.round(worst.growth_bytes_per_step))} with each step`
      : `${bytes(Math.round(worst.growth_bytes_per_s))} each second`;
    const full = leaks!.seconds_to_full;
    return {
      level: full !== null && full !== undefined && full < 3600 && running ? "bad" : "warn",
      text: (
        <>
          <Place line={worst.line} /> keeps {per}
          {full !== null && full !== undefined && running ? (
            <>
              : the device is full in <b data-fact="full">{nanoseconds(full * 1e9)}</b>
            </>
          ) : (
            "."
          )}
        </>
      ),
      more: (
        <>
          {who(mine)} {worst.confidence ? ` · ${sure(worst.confidence)} sure` : ""} ·{" "}
          {grouped(leaks!.growing_lines)} growing {Number(leaks!.growing_lines) === 1 ? "line" : "lines"},{" "}
          {signedBytes(leaks!.growing_bytes)} since it is watched. {oomsText}
        </>
      ),
    };
  }
  const others = all.filter((process) => Number(process.growing_lines) > 0);
  const growing =
    others.length > 0
      ? `${who(others[0]!)} keeps more and more memory: ${grouped(others.length)} of ${grouped(all.length)} processes ${others.length === 1 ? "has" : "have"} a line that grows.`
      : neverRead(leaks)
        ? NEVER_READ
        : "Nothing is known to grow.";
  if (mine && often) return { level: "bad", text: `${who(mine)}: ${often}.`, more: growing };
  if (others.length > 0)
    return {
      level: "warn",
      text: `${who(others[0]!)} keeps more and more memory.`,
      more: `${grouped(others.length)} of ${grouped(all.length)} processes ${others.length === 1 ? "has" : "have"} a line that grows.`,
    };
  const traced = all.filter((process) => process.state === "attached");
  if (neverRead(leaks)) return { level: "calm", text: NEVER_READ };
  if (leaks?.young)
    return {
      level: "calm",
      text: "Too early to tell: something rises, and has not been watched for long enough.",
      more:
        leaks.young.steps != null
          ? `It has risen for ${grouped(leaks.young.steps)} steps; ${leaks.young.needed_steps ?? "some more"} are needed.`
          : undefined,
    };
  return {
    level: "calm",
    text: leaks ? "Nothing is known to grow." : "Looking …",
    more: `${grouped(traced.length)} traced ${traced.length === 1 ? "process" : "processes"}.`,
  };
}

function DeviceCard({ device }: { device: MachineDevice }): JSX.Element {
  const total = Number(device.total_bytes ?? 0);
  const pieces: Piece[] = device.holders.map((holder, index) => ({
    name: who(holder.process),
    bytes: holder.held_bytes == null ? null : Number(holder.held_bytes),
    kind: String((index % 8) + 1),
    known: holder.at_least ? "at_least" : "exactly",
  }));
  if (device.context_bytes != null)
    pieces.push({ name: "context of these", bytes: Number(device.context_bytes), kind: "context" });
  if (device.driver_reserved_bytes != null)
    pieces.push({ name: "kept by the driver", bytes: Number(device.driver_reserved_bytes), kind: "context" });
  if (device.unexplained_bytes != null)
    // Where what the processes hold is a lower bound, that is an upper bound.
    pieces.push({
      name: "unexplained",
      bytes: Number(device.unexplained_bytes),
      kind: "unknown",
      atMost: device.at_least,
    });
  return (
    <article class="card">
      <h3>
        {device.node ? `${device.node} · ` : ""}
        {device.kind ?? "device"} {device.name ?? ""}
      </h3>
      <p class="big">
        <Bytes of={device.held_bytes} known={device.at_least ? "at_least" : "exactly"} />{" "}
        <span class="quiet">
          held of <Bytes of={device.total_bytes} />
        </span>
      </p>
      <Bar
        label={`${device.kind ?? "device"} ${device.name ?? ""}`}
        pieces={pieces}
        total={total || pieces.reduce((sum, piece) => sum + (piece.bytes ?? 0), 0)}
      />
      <p class="quiet">
        Free: <Bytes of={device.free_bytes} />
        {device.unexplained_bytes == null && (
          <>
            {" "}
            · unexplained: <span class="unknown">unknown</span>
          </>
        )}
      </p>
    </article>
  );
}

function Processes({ all }: { all: Process[] }): JSX.Element {
  const ranks = all.some((process) => process.workload?.rank != null);
  return (
    <Table
      caption="Processes"
      rows={all}
      empty="Nothing is traced."
      keyOf={(process) => `${process.node} ${process.pid} ${process.attached_boot_ns}`}
      mark={(process) => (process === selected.value ? "chosen" : "")}
      columns={[
        {
          name: "Process",
          by: (process) => process.comm,
          cell: (process) => (
            <a
              href={hrefTo(aboutProcess(process))}
              aria-current={process === selected.value ? "true" : undefined}
              title={process.cmdline.join(" ")}
            >
              {process.comm} <span class="number">{process.pid}</span>
            </a>
          ),
        },
        ...(about.value?.nodes
          ? [
              {
                name: "Node",
                by: (process: Process) => process.node ?? null,
                cell: (process: Process) => process.node ?? "",
              },
            ]
          : []),
        ...(ranks
          ? [
              {
                name: "Rank",
                by: (process: Process) => process.workload?.rank ?? null,
                cell: (process: Process) => process.workload?.rank ?? "",
                number: true,
              },
            ]
          : []),
        {
          name: "State",
          by: (process) => process.state,
          cell: (process) => (process.waits_for_device ? "waits for a device" : process.state.replace("_", " ")),
        },
        {
          name: "Allocated",
          number: true,
          by: (process) => (process.allocated_bytes == null ? null : Number(process.allocated_bytes)),
          cell: (process) => <Bytes of={process.allocated_bytes} />,
        },
        {
          name: "Reserved",
          number: true,
          by: (process) => (process.reserved_bytes == null ? null : Number(process.reserved_bytes)),
          cell: (process) => <Bytes of={process.reserved_bytes} />,
        },
        {
          name: "Grows",
          number: true,
          by: (process) => process.growth_bytes_per_s ?? null,
          cell: (process) =>
            process.growth_bytes_per_step
              ? `${signedBytes(Math.round(process.growth_bytes_per_step))} a step`
              : process.growth_bytes_per_s
                ? `${signedBytes(Math.round(process.growth_bytes_per_s))}/s`
                : "–",
        },
        {
          name: "Lines",
          number: true,
          by: (process) => Number(process.growing_lines ?? 0),
          cell: (process) => (Number(process.growing_lines ?? 0) > 0 ? <b>▲ {grouped(process.growing_lines ?? 0)}</b> : "0"),
        },
        {
          name: "Lost",
          number: true,
          by: (process) => Number(process.lost_records),
          cell: (process) => <Count of={process.lost_records} />,
        },
      ]}
    />
  );
}

function Found({
  leaks,
  state,
}: {
  leaks: LeaksAnswer | null;
  state: { asking: boolean; answer: LeaksAnswer | null; error: Error | null };
}): JSX.Element {
  const growing = leaks?.lines.filter((line) => line.verdict === "growing") ?? [];
  return (
    <Section title="Lines that keep more and more" state={state} id="findings">
      {leaks && growing.length === 0 && (
        <p>
          {neverRead(leaks)
            ? NEVER_READ
            : `None is known${leaks.young ? ", and it is too early to say that there is none" : ""}.`}
        </p>
      )}
      {growing.length > 0 && (
        <ul class="findings">
          {growing.map((line) => (
            <li key={`${line.line?.file}:${line.line?.line}:${line.smallest_bytes}`}>
              <span class="sign" aria-hidden="true">
                ▲
              </span>{" "}
              <Place line={line.line} />
              <span class="number">
                {" "}
                {line.growth_bytes_per_step
                  ? `${signedBytes(Math.round(line.growth_bytes_per_step))} a step`
                  : `${signedBytes(Math.round(line.growth_bytes_per_s))}/s`}
              </span>
              <span class="quiet">
                {" "}
                · live <Bytes of={line.live_bytes} />
                {line.confidence ? ` · ${sure(line.confidence)} sure` : ""}
              </span>
            </li>
          ))}
        </ul>
      )}
      <p>
        Time to full:{" "}
        {leaks?.seconds_to_full != null ? (
          <b class="number">{nanoseconds(leaks.seconds_to_full * 1e9)}</b>
        ) : (
          <span class="unknown">unknown</span>
        )}
      </p>
    </Section>
  );
}

function Owned({ answer, device }: { answer: OwnersAnswer; device: OwnersAnswer["devices"][number] }): JSX.Element {
  const pieces: Piece[] = device.categories.map(({ category, blocks }) => ({
    name: NAMES[category] ?? category,
    bytes: Number(blocks.bytes),
    kind: KINDS[category] ?? "other",
  }));
  if (Number(device.pending_free_bytes) > 0)
    pieces.push({ name: "waits for a stream", bytes: Number(device.pending_free_bytes), kind: "context" });
  if (device.cached_bytes != null)
    pieces.push({ name: "free in the pool", bytes: Number(device.cached_bytes), kind: "free" });
  if (device.context_bytes != null)
    pieces.push({ name: "context", bytes: Number(device.context_bytes), kind: "context" });
  if (device.driver_reserved_bytes != null)
    pieces.push({ name: "kept by the driver", bytes: Number(device.driver_reserved_bytes), kind: "context" });
  if (device.unexplained_bytes != null)
    pieces.push({ name: "unexplained", bytes: Number(device.unexplained_bytes), kind: "unknown" });
  const total = pieces.reduce((sum, piece) => sum + (piece.bytes ?? 0), 0);
  const uses = answer.owners.filter((owner) => owner.device === device.device);
  // What is in the answer and not in the table; what the answer has left out is of all devices together.
  const rest = uses.slice(MOST_USES);
  return (
    <div class="owned">
      <h3>
        Device {device.device ?? "unknown"}{" "}
        <span class="quiet">
          · <Bytes of={device.blocks.bytes} /> handed out{device.unexplained_bytes == null && " · unexplained: unknown"}
        </span>
      </h3>
      <Bar label={`Device ${device.device ?? "unknown"}`} pieces={pieces} total={total} />
      <Table
        caption={`Uses of device ${device.device ?? "unknown"}`}
        rows={uses.slice(0, MOST_USES)}
        empty="Nothing is known."
        columns={[
          { name: "Use", by: (owner) => owner.category, cell: (owner) => NAMES[owner.category] ?? owner.category },
          {
            name: "Whose",
            by: (owner) => owner.owner,
            cell: (owner) => (
              <span class="place" title={owner.place}>
                {[owner.owner, owner.name, owner.key].filter(Boolean).join(" · ") || "unknown"}
              </span>
            ),
          },
          {
            name: "Bytes",
            number: true,
            by: (owner) => Number(owner.blocks.bytes),
            cell: (owner) => <Bytes of={owner.blocks.bytes} />,
          },
          {
            name: "Blocks",
            number: true,
            by: (owner) => Number(owner.blocks.count),
            cell: (owner) => <Count of={owner.blocks.count} />,
          },
        ]}
      />
      {rest.length + Number(answer.more) > 0 && (
        <p class="quiet">
          {grouped(rest.length + Number(answer.more))} more uses with{" "}
          {bytes(rest.reduce((sum, owner) => sum + Number(owner.blocks.bytes), Number(answer.more_bytes)))} are not shown
          {Number(answer.more) > 0 && answer.devices.length > 1 ? ", of all devices" : ""}.
        </p>
      )}
    </div>
  );
}

function Numbers({ stats }: { stats: StatsAnswer | null }): JSX.Element | null {
  if (!stats) return null;
  const blocks = knownOf(stats.coverage, "blocks");
  const failures = knownOf(stats.coverage, "history", "failures");
  if (stats.devices.length === 0)
    return (
      <p>
        {knownOf(stats.coverage, "totals", "blocks") === "exactly"
          ? "Nothing was seen on any device yet."
          : "What it holds is not known: the notes above say why."}
      </p>
    );
  return (
    <div class="cards">
      {stats.devices.map((device) => (
        <article class="card" key={device.device}>
          <h3>Device {device.device ?? "unknown"}</h3>
          <dl class="facts">
            <Fact
              name="allocated"
              value={<Bytes of={device.allocated_bytes} known={totalsOf(device, stats.coverage)} />}
            />
            <Fact
              name="reserved"
              value={<Bytes of={device.reserved_bytes} known={totalsOf(device, stats.coverage)} />}
            />
            <Fact
              name="peak allocated"
              value={
                <>
                  {<Bytes of={device.peak_allocated_bytes} known={peaksOf(device, stats.coverage)} />}{" "}
                  {device.peak_unix_ns != null && (
                    <button
                      type="button"
                      class="small"
                      onClick={() => go({ at: device.device == null ? "peak" : `peak:${device.device}`, view: "memory" })}
                    >
                      Look at it
                    </button>
                  )}
                </>
              }
            />
            <Fact name="peak reserved" value={<Bytes of={device.peak_reserved_bytes} known={peaksOf(device, stats.coverage)} />} />
            <Fact name="asked for" value={<Bytes of={device.requested_bytes} known={blocks} />} />
            <Fact name="live blocks" value={<Count of={device.live_blocks} known={blocks} />} />
            <Fact
              name="ran out of memory"
              value={
                failures === "exactly" && Number(device.oom_count) === 1 ? (
                  "once"
                ) : (
                  <>
                    <Count of={device.oom_count} known={failures} />
                    {failures === "not" ? "" : " times"}
                  </>
                )
              }
            />
          </dl>
        </article>
      ))}
    </div>
  );
}

export function Fact({ name, value }: { name: string; value: JSX.Element | string }): JSX.Element {
  return (
    <div class="fact">
      <dt>{name}</dt>
      <dd data-fact={name}>{value}</dd>
    </div>
  );
}
