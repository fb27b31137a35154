// Whose: the stacks as an icicle and as a table, now or at a moment, at the peak, since the attach, or as the change between two moments.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { ask, useAnswer } from "../ask.ts";
import { asMoment } from "../hash.ts";
import { MISSING, type Node, ROOT, type Rect, along, at as rectAt, beside, layout, tree, way } from "../icicle.ts";
import { Bytes, Choice, Count, Filter, Nobody, Notes, Place, Section, Table, short } from "../parts.tsx";
import { knownOf } from "../known.ts";
import { isOwn } from "../frames.ts";
import { fresh, go, pid, present, said, systemIsDark, view, node as nodeOf } from "../state.ts";
import type { DiffAnswer, Maybe, StackAmounts, StackFrame, StackGroup, StackRow, StacksAnswer } from "../types.ts";
import { bytes, clock, fixed, grouped, signedBytes } from "../units.ts";
import { slow } from "./now.tsx";

const METRICS = [
  ["live", "Live"],
  ["peak", "At the peak"],
  ["allocated", "All that came"],
  ["growth", "Growth"],
] as const;
type Metric = (typeof METRICS)[number][0];
const GROUPS = [
  ["own_line", "Own line"],
  ["line", "Line"],
  ["function", "Function"],
  ["file", "File"],
  ["stack", "Stack"],
] as const;
type Group = (typeof GROUPS)[number][0];

function amount(amounts: StackAmounts, metric: Metric): number {
  if (metric === "growth") return Number(amounts.live.bytes) - Number(amounts.before?.bytes ?? 0);
  return Number(amounts[metric].bytes);
}

export function Whose(): JSX.Element {
  const id = pid.value;
  return id === null ? <Nobody /> : <Stacks key={`${id} ${nodeOf.value}`} id={id} />;
}

function Stacks({ id }: { id: number }): JSX.Element {
  const node = nodeOf.value;
  const { at, base, filter } = view.value;
  const metric = (METRICS.some(([word]) => word === view.value.metric) ? view.value.metric : "live") as Metric;
  const by = (GROUPS.some(([word]) => word === view.value.by) ? view.value.by : "own_line") as Group;
  const canAsk = metric !== "growth" || base !== null;
  const request = (grouping: Group, limit: number) => ({
    pid: id,
    at: asMoment(at),
    from: metric === "growth" ? asMoment(base) : undefined,
    view: { metric: `STACK_METRIC_${metric.toUpperCase()}` },
    by: `STACK_GROUPING_${grouping.toUpperCase()}`,
    limit,
  });
  const subject = `${id} ${node} ${at} ${base} ${metric}`;
  const stacks = useAnswer<StacksAnswer>(
    subject,
    slow(fresh.value, 5),
    canAsk ? (signal) => ask("Stacks", request("stack", 3000), node, signal) : null,
  );
  const groups = useAnswer<StacksAnswer>(
    `${subject} ${by}`,
    slow(fresh.value, 5),
    canAsk && by !== "stack" ? (signal) => ask("Stacks", request(by, 2000), node, signal) : null,
  );
  const diff = useAnswer<DiffAnswer>(
    subject,
    slow(fresh.value, 5),
    metric === "growth" && base !== null
      ? (signal) => ask("Diff", { pid: id, from: asMoment(base), to: asMoment(at) }, node, signal)
      : null,
  );
  const tabled = by === "stack" ? stacks.value.answer : groups.value.answer;
  return (
    <>
      <Section title="Whose memory it is" state={stacks.value} id="whose" earlier>
        <div class="tools">
          <Choice label="What is counted" of={METRICS} value={metric} set={(word) => go({ metric: word })} />
          {metric === "growth" && <Base />}
        </div>
        {!canAsk && <p>Growth needs an earlier moment to compare with: choose one above, or mark a window in Time.</p>}
        {stacks.value.answer && <Icicle answer={stacks.value.answer} metric={metric} filter={filter} />}
        {stacks.value.answer && <More of={stacks.value.answer} metric={metric} what="smaller stacks" done="drawn" />}
      </Section>
      <Section title="As a table" state={by === "stack" ? stacks.value : groups.value} id="stacks-table" earlier>
        <div class="tools">
          <Choice label="Summed up by" of={GROUPS} value={by} set={(word) => go({ by: word }, true)} />
          <Filter label="Filter" />
        </div>
        {tabled && <Sums answer={tabled} />}
        {by === "stack"
          ? stacks.value.answer && <StackTable answer={stacks.value.answer} filter={filter} />
          : groups.value.answer && <GroupTable answer={groups.value.answer} filter={filter} />}
        {tabled && (
          <More of={tabled} metric={metric} what={by === "stack" ? "smaller stacks" : "smaller places"} done="listed" />
        )}
        <Notes of={[stacks.value.answer, groups.value.answer]} />
      </Section>
      {metric === "growth" && base !== null && (
        <Section title="What came and what went" state={diff.value} id="diff" earlier>
          {diff.value.answer && <Difference answer={diff.value.answer} />}
          <Notes of={[diff.value.answer]} about="the difference" />
        </Section>
      )}
    </>
  );
}

/** The earlier moment of a comparison. */
function Base(): JSX.Element {
  const { base } = view.value;
  const text = useSignal("");
  const isKnown = present() !== null;
  const ago = (seconds: number) => go({ base: String(present()! - BigInt(seconds) * 1_000_000_000n) });
  return (
    <>
      <span class="quiet">since {base === null ? "?" : /^\d+$/.test(base) ? `${clock(base)} UTC` : base}</span>
      <button type="button" disabled={!isKnown} onClick={() => ago(10)}>
        10 s ago
      </button>
      <button type="button" disabled={!isKnown} onClick={() => ago(60)}>
        1 m ago
      </button>
      <button type="button" disabled={!isKnown} onClick={() => ago(600)}>
        10 m ago
      </button>
      <form
        class="inline"
        onSubmit={(event) => {
          event.preventDefault();
          if (/^(step:\d+|mark:.+|event:\d+|peak)$/.test(text.value)) go({ base: text.value });
        }}
      >
        <label>
          or{" "}
          <input
            size={12}
            value={text.value}
            placeholder="step:100"
            onInput={(event) => (text.value = event.currentTarget.value)}
          />
        </label>
        <button type="submit">Compare</button>
      </form>
    </>
  );
}

function names(frame: StackFrame): string {
  return `${frame.name || "?"} ${frame.file}:${frame.line}`;
}

function matches(text: string, filter: string): boolean {
  return filter === "" || text.toLowerCase().includes(filter.toLowerCase());
}

const ROW = 20;
const DEEPEST = 60;

/** What a frame is known by in any answer. */
function keyOf(frame: StackFrame | undefined): string {
  return frame ? `${frame.kind}\0${frame.name}\0${frame.file}\0${frame.line}` : "";
}

/**
 * What all stacks have of a metric, also those that are not in the answer. Of growth it is not known: what shrank is in the sum, and is not
 * drawn.
 */
export function whole(answer: StacksAnswer, metric: Metric): number | null {
  if (metric === "growth" || !answer.devices?.length) return null;
  return answer.devices.reduce((sum, { amounts }) => sum + amount(amounts, metric), 0);
}

/** How many more there are than an answer has, and what they hold. */
function More({
  of,
  metric,
  what,
  done,
}: {
  of: StacksAnswer;
  metric: Metric;
  what: string;
  done: string;
}): JSX.Element | null {
  if (Number(of.omitted) === 0) return null;
  const rest = of.others ? amount(of.others, metric) : null;
  return (
    <p class="quiet" data-fact={`not ${done}`}>
      {grouped(of.omitted)} {what}
      {rest !== null && ` with ${metric === "growth" ? signedBytes(rest) : bytes(rest)}`} are not {done}.
    </p>
  );
}

/** The drawing is mounted only while there is something to draw: what it does with its canvas needs one. */
function Icicle({ answer, metric, filter }: { answer: StacksAnswer; metric: Metric; filter: string }): JSX.Element {
  const { rows } = answer;
  const { root, frames } = useMemo(() => {
    const frames: StackFrame[] = [];
    const known = new Map<string, number>();
    const number = (frame: StackFrame) => {
      const name = keyOf(frame);
      let found = known.get(name);
      if (found === undefined) known.set(name, (found = frames.push(frame) - 1));
      return found;
    };
    return {
      root: tree(rows.map((row) => ({ frames: row.frames.map(number), value: amount(row.amounts, metric) }))),
      frames,
    };
  }, [rows, metric]);
  if (root.total === 0)
    return <p>{metric === "growth" ? "Nothing grew between the two moments." : "Nothing is handed out."}</p>;
  return <Drawing root={root} frames={frames} filter={filter} whole={whole(answer, metric) ?? root.total} />;
}

function Drawing({
  root,
  frames,
  filter,
  whole,
}: {
  root: Node;
  frames: StackFrame[];
  filter: string;
  /** What all stacks have together, also those that are not drawn. */
  whole: number;
}): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);
  // Where one looks and what is chosen are kept by name: another answer has its frames under other numbers.
  const path = useSignal<string[]>([]);
  const chosen = useSignal<string[] | null>(null);
  const named = (frame: number) => keyOf(frames[frame]);
  const top: Node = along(root, path.value, named).at(-1) ?? root;
  const rects = useMemo(
    () => (width.value ? layout(top, width.value).filter((rect) => rect.depth < DEEPEST) : []),
    [top, width.value],
  );
  const nodes = chosen.value && [top, ...along(top, chosen.value, named)];
  // What is too narrow to be drawn, or gone, is chosen by what is around it.
  const under = (nodes && rects.findLast((rect) => nodes.includes(rect.node))) ?? null;
  const choose = (rect: Rect | null) => (chosen.value = rect && way(rect, named));
  const deepest = rects.reduce((most, rect) => Math.max(most, rect.depth), 0);
  const label = (node: Node) =>
    node.frame === ROOT
      ? "all"
      : node.frame === MISSING
        ? "no stack known"
        : `${frames[node.frame]!.name || "?"} · ${short(frames[node.frame]!.file)}:${frames[node.frame]!.line}`;
  const full = (rect: Rect) =>
    `${label(rect.node)}: ${bytes(rect.node.total)}${rect.node.own > 0 ? `, ${bytes(rect.node.own)} of it here` : ""} (${fixed((100 * rect.node.total) / Math.max(1, whole), 1)} %)`;
  useEffect(() => {
    const host = canvas.current!.parentElement!;
    const sized = new ResizeObserver(() => (width.value = host.clientWidth));
    sized.observe(host);
    return () => sized.disconnect();
  }, []);
  void systemIsDark.value;
  useEffect(() => {
    const it = canvas.current!;
    const ratio = Math.min(2, devicePixelRatio || 1);
    it.width = Math.round(width.value * ratio);
    it.height = Math.round((deepest + 1) * ROW * ratio);
    const context = it.getContext("2d")!;
    context.scale(ratio, ratio);
    const css = getComputedStyle(document.documentElement);
    const ink = (name: string) => css.getPropertyValue(name).trim();
    context.font = "12px system-ui";
    context.textBaseline = "middle";
    for (const rect of rects) {
      const frame = frames[rect.node.frame];
      const found = filter !== "" && frame !== undefined && matches(names(frame), filter);
      const library = frame !== undefined && !isOwn(frame);
      context.fillStyle = ink(found ? "--found" : rect.node.frame < 0 ? "--free" : library ? "--library" : "--own");
      const x = rect.left + 0.5;
      const w = Math.max(0.5, rect.width - 1);
      context.fillRect(x, rect.depth * ROW + 0.5, w, ROW - 1);
      if (rect === under) {
        context.strokeStyle = ink("--ink");
        context.lineWidth = 2;
        context.strokeRect(x + 1, rect.depth * ROW + 1.5, Math.max(1, w - 2), ROW - 3);
      }
      if (w > 28) {
        context.save();
        context.beginPath();
        context.rect(x, rect.depth * ROW, w - 4, ROW);
        context.clip();
        context.fillStyle = ink(library || rect.node.frame < 0 ? "--ink" : "--on-own");
        if (found) context.fillStyle = "#000";
        context.fillText(label(rect.node), x + 4, rect.depth * ROW + ROW / 2 + 1);
        context.restore();
      }
    }
  });
  const place = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    return rectAt(rects, event.clientX - box.left, Math.floor((event.clientY - box.top) / ROW));
  };
  const into = (rect: Rect | null) => {
    if (!rect) return;
    const below = way(rect, named);
    const here = path.value.slice(0, along(root, path.value, named).length);
    path.value = below.length === 0 ? here.slice(0, -1) : [...here, ...below];
    chosen.value = null;
  };
  const key = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) {
      const next = beside(rects, under, event.key);
      choose(next);
      if (next) said.value = full(next);
    } else if (event.key === "Enter") into(under);
    else if (event.key === "Escape" || event.key === "0") {
      path.value = [];
      chosen.value = null;
    } else return;
    event.preventDefault();
  };
  return (
    <>
      <div
        class="icicle"
        tabIndex={0}
        role="application"
        aria-label="Stacks as an icicle, outermost function above. Arrow keys go from frame to frame, Enter looks closer, Escape shows all. The table below says the same."
        onKeyDown={key}
      >
        <canvas
          ref={canvas}
          aria-hidden="true"
          onClick={(event) => into(place(event))}
          onPointerMove={(event) => choose(place(event))}
          onPointerLeave={() => choose(null)}
        />
      </div>
      <p class="hover">
        {under
          ? full(under)
          : `${bytes(top.total)} ${top !== root ? `below ${label(top)}` : whole > root.total ? `of ${bytes(whole)} are drawn` : "in all"}. A click looks closer, a click on the top row goes back.`}{" "}
        {top !== root && (
          <button type="button" class="small" onClick={() => (path.value = [])}>
            All
          </button>
        )}
      </p>
      <ul class="legend">
        <li>
          <span class="swatch own" aria-hidden="true" />
          the program's own code
        </li>
        <li>
          <span class="swatch library" aria-hidden="true" />
          libraries
        </li>
      </ul>
    </>
  );
}

const AMOUNTS: { name: string; of: (amounts: StackAmounts) => Maybe<number | string> }[] = [
  { name: "Live", of: (amounts) => amounts.live.bytes },
  { name: "At the peak", of: (amounts) => amounts.peak.bytes },
  { name: "All that came", of: (amounts) => amounts.allocated.bytes },
];

function growth(amounts: StackAmounts): number | null {
  return amounts.before ? Number(amounts.live.bytes) - Number(amounts.before.bytes) : null;
}

/** The column of the change since an earlier moment, if the answer has one. */
function grown<R>(answer: StacksAnswer, of: (row: R) => StackAmounts) {
  if (answer.from_unix_ns == null) return [];
  const cell = (row: R) => {
    const change = growth(of(row));
    return change === null ? (
      <span class="unknown">unknown</span>
    ) : (
      <span class="number">{signedBytes(change)}</span>
    );
  };
  return [{ name: "Growth", number: true, by: (row: R) => growth(of(row)), cell }];
}

/** What all stacks have together, as exactly as it is known: a table has only those that are listed. */
function Sums({ answer }: { answer: StacksAnswer }): JSX.Element {
  const blocks = knownOf(answer.coverage, "blocks");
  const history = knownOf(answer.coverage, "blocks", "history");
  return (
    <>
      {answer.devices?.map(({ device, amounts, stacks }) => (
        <p key={device} class="quiet" data-fact="all stacks">
          Device {device ?? "unknown"}: live <Bytes of={amounts.live.bytes} known={blocks} />, at the peak{" "}
          <Bytes of={amounts.peak.bytes} known={history} />, allocated since the attach{" "}
          <Bytes of={amounts.allocated.bytes} known={history} />; <Count of={stacks} />{" "}
          {Number(stacks) === 1 ? "stack" : "stacks"}
        </p>
      ))}
      {history !== "exactly" && <p>Of the blocks that are known:</p>}
    </>
  );
}

function GroupTable({ answer, filter }: { answer: StacksAnswer; filter: string }): JSX.Element {
  const rows = answer.groups.filter((group) =>
    matches(group.frame ? names(group.frame) : (group.missing ?? ""), filter),
  );
  const devices = new Set(answer.groups.map((group) => group.device)).size > 1;
  return (
    <Table
      caption="Memory by place"
      rows={rows}
      empty={filter ? "Nothing has this in its name." : "Nothing."}
      keyOf={(group, i) => `${group.frame ? names(group.frame) : group.missing} ${group.device} ${i}`}
      columns={[
        {
          name: "Place",
          by: (group: StackGroup) => (group.frame ? names(group.frame) : ""),
          cell: (group) =>
            group.frame ? (
              group.frame.line ? (
                <Place line={group.frame} />
              ) : (
                <span class="place" title={group.frame.file}>
                  <b>{group.frame.name || short(group.frame.file)}</b>
                  {group.frame.name ? ` ${short(group.frame.file)}` : ""}
                </span>
              )
            ) : (
              <i>{(group.missing ?? "no frames").replaceAll("_", " ")}</i>
            ),
        },
        ...(devices
          ? [
              {
                name: "Device",
                number: true,
                by: (group: StackGroup) => group.device ?? null,
                cell: (group: StackGroup) => group.device ?? "unknown",
              },
            ]
          : []),
        ...AMOUNTS.map(({ name, of }) => ({
          name,
          number: true,
          by: (group: StackGroup) => Number(of(group.own)),
          cell: (group: StackGroup) => <Bytes of={of(group.own)} />,
        })),
        ...grown(answer, (group: StackGroup) => group.own),
        {
          name: "Blocks",
          number: true,
          by: (group) => Number(group.own.live.count),
          cell: (group) => <Count of={group.own.live.count} />,
        },
        {
          name: "Stacks",
          number: true,
          by: (group) => Number(group.stacks),
          cell: (group) => <Count of={group.stacks} />,
        },
      ]}
    />
  );
}

function StackTable({ answer, filter }: { answer: StacksAnswer; filter: string }): JSX.Element {
  const rows = answer.rows.filter((row) => matches(row.frames.map(names).join(" ") + (row.missing ?? ""), filter));
  return (
    <Table
      caption="Memory by stack"
      rows={rows}
      empty={filter ? "Nothing has this in its name." : "Nothing."}
      // What is unfolded stays unfolded where the next answer has the stack in another row.
      keyOf={(row) => `${row.device} ${row.missing} ${row.truncated} ${row.frames.map(keyOf).join()}`}
      columns={[
        {
          name: "Stack",
          cell: (row: StackRow) =>
            row.frames.length === 0 ? (
              <i>{(row.missing ?? "no frames").replaceAll("_", " ")}</i>
            ) : (
              <details>
                <summary>
                  <Place line={row.frames[0]!} />
                </summary>
                <ol class="frames">
                  {row.frames.map((frame, i) => (
                    <li key={i}>
                      <Place line={frame} />
                    </li>
                  ))}
                  {row.truncated && <li class="quiet">outer frames are cut off</li>}
                </ol>
              </details>
            ),
        },
        ...AMOUNTS.map(({ name, of }) => ({
          name,
          number: true,
          by: (row: StackRow) => Number(of(row.amounts)),
          cell: (row: StackRow) => <Bytes of={of(row.amounts)} />,
        })),
        ...grown(answer, (row: StackRow) => row.amounts),
        {
          name: "Blocks",
          number: true,
          by: (row) => Number(row.amounts.live.count),
          cell: (row) => <Count of={row.amounts.live.count} />,
        },
      ]}
    />
  );
}

function Difference({ answer }: { answer: DiffAnswer }): JSX.Element {
  const known = knownOf(answer.coverage, "totals", "blocks");
  const totals = knownOf(answer.coverage, "totals");
  return (
    <>
      <p>
        From {clock(answer.from_unix_ns)} to {clock(answer.to_unix_ns)} UTC.
      </p>
      {answer.devices.length === 0 && (
        <p>
          {known === "exactly"
            ? "Nothing was held on any device at either moment."
            : "What was held at either moment is not known: the notes below say why."}
        </p>
      )}
      <div class="cards">
        {answer.devices.map((device) => (
          <article class="card" key={device.device}>
            <h3>Device {device.device}</h3>
            <dl class="facts">
              <div class="fact">
                <dt>allocated</dt>
                <dd>
                  <Bytes of={device.allocated_before_bytes} known={known} /> →{" "}
                  <Bytes of={device.allocated_after_bytes} known={known} />
                </dd>
              </div>
              <div class="fact">
                <dt>reserved</dt>
                <dd>
                  <Bytes of={device.reserved_before_bytes} known={totals} /> →{" "}
                  <Bytes of={device.reserved_after_bytes} known={totals} />
                </dd>
              </div>
              <div class="fact">
                <dt>came</dt>
                <dd>
                  <Bytes of={device.came.bytes} known={known} /> in <Count of={device.came.count} known={known} />
                </dd>
              </div>
              <div class="fact">
                <dt>went</dt>
                <dd>
                  <Bytes of={device.went.bytes} known={known} /> in <Count of={device.went.count} known={known} />
                </dd>
              </div>
              <div class="fact">
                <dt>stayed</dt>
                <dd>
                  <Bytes of={device.stayed.bytes} known={known} /> in <Count of={device.stayed.count} known={known} />
                </dd>
              </div>
            </dl>
          </article>
        ))}
      </div>
      {known !== "exactly" && answer.groups.length > 0 && <p>Of the blocks that are known:</p>}
      <Table
        caption="Changes by size"
        rows={answer.groups}
        empty="Nothing changed."
        columns={[
          {
            name: "Size",
            number: true,
            by: (group) => Number(group.size_bytes),
            cell: (group) => <Bytes of={group.size_bytes} />,
          },
          { name: "Device", number: true, by: (group) => group.device, cell: (group) => group.device },
          { name: "Stream", number: true, by: (group) => Number(group.stream), cell: (group) => String(group.stream) },
          {
            name: "Change",
            number: true,
            by: (group) => Number(group.came.bytes) - Number(group.went.bytes),
            cell: (group) => (
              <span class="number">{signedBytes(Number(group.came.bytes) - Number(group.went.bytes))}</span>
            ),
          },
          {
            name: "Came",
            number: true,
            by: (group) => Number(group.came.count),
            cell: (group) => <Count of={group.came.count} />,
          },
          {
            name: "Went",
            number: true,
            by: (group) => Number(group.went.count),
            cell: (group) => <Count of={group.went.count} />,
          },
          {
            name: "Stayed",
            number: true,
            by: (group) => Number(group.stayed.count),
            cell: (group) => <Count of={group.stayed.count} />,
          },
        ]}
      />
      {Number(answer.omitted_groups) > 0 && (
        <p class="quiet">{grouped(answer.omitted_groups)} smaller changes are not shown.</p>
      )}
    </>
  );
}
