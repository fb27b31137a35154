// Leaks: what grows, how sure that is, and what holds it.

import type { JSX } from "preact";
import { ask, useAnswer } from "../ask.ts";
import { Bytes, Failed, Nobody, Notes, Place, Section } from "../parts.tsx";
import { NEVER_READ, neverRead } from "../known.ts";
import { beat, pid, unreadable, node as nodeOf } from "../state.ts";
import type { CodeLine, LeakGroup, LeakLine, LeaksAnswer, StepsAnswer } from "../types.ts";
import { type Int, bytes, grouped, nanoseconds, signedBytes, sure } from "../units.ts";
import { slow } from "./now.tsx";

/** Lines that are asked for; how many more there are stands beneath. */
const LINES = 50;

export function Leaks(): JSX.Element {
  const id = pid.value;
  return id === null ? <Nobody /> : <Evidence key={`${id} ${nodeOf.value}`} id={id} />;
}

/** `20 groups rose in every step, 89 of 100 steps seen`. */
function rising(young: NonNullable<LeaksAnswer["young"]>, watched: Int): string {
  const groups = Number(young.groups) === 1 ? "1 group" : `${grouped(young.groups)} groups`;
  if (young.steps == null || young.needed_steps == null) return `${groups} rose, watched for ${nanoseconds(watched)}`;
  const rose = young.in_every_step ? "rose in every step" : "rose";
  return `${groups} ${rose}, ${grouped(young.steps)} of ${grouped(young.needed_steps)} steps seen`;
}

/** How a holder keeps blocks, and what it is itself, where that is not the ordinary: the words of memscope-ctl. */
const VIA: Record<string, string> = {
  graph: ", by autograd graphs that it leads to",
  gradient: ", as gradients",
};
const ORIGIN: Record<string, string> = {
  garbage: ", which waits for the garbage collector: gc.collect() frees it",
  outside: ", which no name of the program leads to",
};

/** Whether both are the same line of a file. One line may be told under the names of several functions, as with a lambda in it. */
function same(a: CodeLine | null | undefined, b: CodeLine | null | undefined): boolean {
  return a != null && b != null && a.file === b.file && a.line === b.line;
}

/**
 * Whether a group is of a line: of its device and of its kind of memory, and of its place. Where that is not known, both have the same stack
 * or, without stacks, the same size.
 */
function isOf(group: LeakGroup, line: LeakLine): boolean {
  if ((group.device ?? null) !== (line.device ?? null) || group.source !== line.source) return false;
  if (line.line || group.line) return same(group.line, line.line);
  if (line.stack != null || group.stack != null) return line.stack === group.stack;
  return group.size_bytes === line.largest_bytes;
}

/** What a line is known by in the next answer, which may have it at another place: what is unfolded stays unfolded. */
function keyOf({ device, source, line, stack, largest_bytes }: LeakLine): string {
  const where = line ? `${line.file}:${line.line}` : `${stack} ${largest_bytes}`;
  return `${device} ${source} ${where}`;
}

function Evidence({ id }: { id: number }): JSX.Element {
  const node = nodeOf.value;
  const subject = `${id} ${node}`;
  const leaks = useAnswer<LeaksAnswer>(subject, slow(beat.value, 5), (signal) =>
    ask("Leaks", { pid: id, limit: LINES }, node, signal),
  );
  const whyNot = unreadable.value;
  const held = useAnswer<LeaksAnswer>(
    subject,
    whyNot ?? slow(beat.value, 30),
    whyNot ? null : (signal) => ask("Leaks", { pid: id, limit: LINES, holders: true }, node, signal),
  );
  const steps = useAnswer<StepsAnswer>(subject, slow(beat.value, 5), (signal) =>
    ask("Steps", { pid: id, limit: 4096 }, node, signal),
  );
  const answer = leaks.value.answer;
  const growing = answer?.lines.filter((line) => line.verdict === "growing") ?? [];
  const hasEnded = answer?.process?.ended_boot_ns != null;
  const undecided = answer?.lines.filter((line) => line.verdict === "undecided") ?? [];
  return (
    <Section title="Leaks" state={leaks.value} id="leaks">
      {answer && (
        <p class="lead">
          {Number(answer.growing_lines) > 0 ? (
            <>
              <b>
                {grouped(answer.growing_lines)} {Number(answer.growing_lines) === 1 ? "line" : "lines"}{" "}
                {hasEnded ? "grew" : Number(answer.growing_lines) === 1 ? "grows" : "grow"}
              </b>
              : {signedBytes(answer.growing_bytes)} in the {nanoseconds(answer.watched_ns)} that were watched
              {answer.seconds_to_full != null ? (
                <>
                  , full in <b>{nanoseconds(answer.seconds_to_full * 1e9)}</b>
                </>
              ) : (
                ""
              )}
              .{answer.young && ` Too early to tell of others: ${rising(answer.young, answer.watched_ns)}.`}
            </>
          ) : neverRead(answer) ? (
            NEVER_READ
          ) : answer.young ? (
            <>Too early to tell: {rising(answer.young, answer.watched_ns)}.</>
          ) : (
            <>
              Nothing is known to {hasEnded ? "have grown" : "grow"}, after {nanoseconds(answer.watched_ns)}.
            </>
          )}
          {answer.until_boot_ns != null && answer.process?.ended_boot_ns != null && (
            <>
              {" "}
              As it was {nanoseconds(Number(answer.process.ended_boot_ns) - Number(answer.until_boot_ns))} before the end: what a
              program frees as it ends does not count as given back.
            </>
          )}
          {answer.steps && (
            <span class="quiet">
              {" "}
              Steps: {answer.steps.evidence}.
              {answer.steps.quiet_ns != null && ` The last one ended ${nanoseconds(answer.steps.quiet_ns)} ago.`}
            </span>
          )}
        </p>
      )}
      {answer?.together && (
        <p>
          {grouped(answer.together.lines)} lines keep blocks in the same steps, all called by{" "}
          <Place line={answer.together.line} />: {signedBytes(answer.together.growth_bytes)}.
        </p>
      )}
      {growing.map((line) => (
        <OneLine
          key={keyOf(line)}
          line={line}
          groups={answer!.groups.filter((group) => group.verdict === "growing" && isOf(group, line))}
        />
      ))}
      {growing.length > 0 && <Floors steps={steps.value.answer} />}
      {whyNot && growing.length > 0 && <p class="quiet">What holds it is not known. {whyNot}</p>}
      {held.value.error && !leaks.value.error && (
        <>
          <p class="quiet">What holds it could not be read:</p>
          <Failed error={held.value.error} />
        </>
      )}
      {held.value.answer && (Number(held.value.answer.looked_at?.count ?? 0) > 0 || held.value.answer.holders.length > 0) && (
        <section class="card" aria-labelledby="h-held">
          <h3 id="h-held">What holds it</h3>
          {held.value.answer.looked_at && (
            <p class="quiet">
              {grouped(held.value.answer.looked_at.count)} blocks that grow were looked at, with{" "}
              {bytes(held.value.answer.looked_at.bytes)}.
            </p>
          )}
          {held.value.answer.holders.map((holder) => (
            <div key={holder.path} class="holder">
              <p>
                <code>{holder.path}</code>{" "}
                <span class="quiet">
                  {holder.kind
                    ? `${holder.kind}${holder.length != null ? ` of ${grouped(holder.length)}` : ""} · `
                    : ""}
                </span>
                <Bytes of={holder.blocks.bytes} /> in {grouped(holder.blocks.count)} blocks
                {VIA[holder.via] ?? ""}
                {ORIGIN[holder.origin] ?? ""}
              </p>
              <ol class="chain">
                {holder.way.map((step, i) => (
                  <li key={i} title={step.file ? `${step.file}${step.line ? `:${step.line}` : ""}` : undefined}>
                    <code>{step.part || "·"}</code>{" "}
                    <span class="quiet">
                      {step.kind}
                      {step.length != null ? ` (${grouped(step.length)})` : ""}
                    </span>
                  </li>
                ))}
              </ol>
            </div>
          ))}
          {Number(held.value.answer.unheld?.count ?? 0) > 0 && (
            <p>
              Nothing that was found (C++ code, or they were in use): <Bytes of={held.value.answer.unheld!.bytes} /> in{" "}
              {grouped(held.value.answer.unheld!.count)} blocks
            </p>
          )}
        </section>
      )}
      {answer && answer.given_back.length > 0 && (
        <section class="card">
          <h3>Grew, and was given back</h3>
          <ul>
            {answer.given_back.map((one, i) => (
              <li key={i}>
                <Place line={one.line} />: <Bytes of={one.bytes} />
                {one.step != null ? ` in step ${grouped(one.step)}` : ""}
              </li>
            ))}
          </ul>
        </section>
      )}
      {undecided.length > 0 && (
        <details class="alternative">
          <summary>{grouped(undecided.length)} undecided</summary>
          {undecided.map((line) => (
            <OneLine key={keyOf(line)} line={line} groups={[]} />
          ))}
        </details>
      )}
      {answer && Number(answer.omitted_lines) > 0 && (
        <p class="quiet">{grouped(answer.omitted_lines)} more lines are not shown.</p>
      )}
      <Notes of={[answer, held.value.answer]} />
    </Section>
  );
}

function OneLine({ line, groups }: { line: LeakLine; groups: LeakGroup[] }): JSX.Element {
  const low = line.growth_bytes_per_step_low;
  const high = line.growth_bytes_per_step_high;
  const rate = line.growth_bytes_per_step;
  return (
    <article class={`card leak v-${line.verdict}`}>
      <h3>
        <span class="sign" aria-hidden="true">
          {line.verdict === "growing" ? "▲" : "◇"}
        </span>{" "}
        <Place line={line.line} />{" "}
        <span class="quiet">
          · {line.source === "host" ? "page-locked host memory" : `device ${line.device ?? "unknown"}`} · {line.verdict}
        </span>
      </h3>
      <div class="measures">
        <Measure
          name="a step"
          value={rate != null ? signedBytes(Math.round(rate)) : "unknown"}
          more={
            low != null && high != null
              ? `${bytes(Math.max(0, Math.round(low)))} to ${bytes(Math.max(0, Math.round(high)))} (95 %)`
              : undefined
          }
        />
        <Measure name="a second" value={signedBytes(Math.round(line.growth_bytes_per_s))} />
        <Measure
          name="live"
          value={bytes(line.live_bytes)}
          title={`${grouped(line.live_bytes)} bytes`}
          more={`${grouped(line.live_count)} blocks${
            Number(line.oldest_age_ns) > 0 ? `, the oldest ${nanoseconds(line.oldest_age_ns)} old` : ""
          }`}
        />
        <Measure
          name="confidence"
          value={line.confidence != null ? sure(line.confidence) : "unknown"}
          more={line.first_step != null ? `since step ${grouped(line.first_step)}` : undefined}
          meter={line.confidence ?? undefined}
        />
      </div>
      {rate != null && low != null && high != null && <Range low={low} middle={rate} high={high} />}
      {line.reason && <p class="reason">{line.reason}</p>}
      {line.looks_like_kept_graph && (
        <p>Several functions of libraries keep blocks here, as a kept autograd graph does.</p>
      )}
      {line.callers.length > 0 && (
        <p class="quiet">
          called by{" "}
          {line.callers.map((caller, i) => (
            <span key={i}>
              {i > 0 ? ", " : ""}
              <Place line={caller} />
            </span>
          ))}
        </p>
      )}
      {groups.map(
        (group, i) =>
          group.frames.length > 0 && (
            <details key={i}>
              <summary>
                {grouped(group.live_count)} blocks of {bytes(group.size_bytes)}: the stack
              </summary>
              <ol class="frames">
                {group.frames.map((frame, j) => (
                  <li key={j} class={same(frame, line.line) ? "own" : ""}>
                    <Place line={frame} />
                  </li>
                ))}
              </ol>
            </details>
          ),
      )}
    </article>
  );
}

function Measure({
  name,
  value,
  title,
  more,
  meter,
}: {
  name: string;
  value: string;
  title?: string;
  more?: string;
  meter?: number;
}): JSX.Element {
  return (
    <div class="measure">
      <span class="quiet">{name}</span>
      <b class={value === "unknown" ? "unknown" : "number"} data-fact={`leak: ${name}`} title={title}>
        {value}
      </b>
      {meter !== undefined && (
        <span class="meter" aria-hidden="true">
          <span style={{ width: `${meter * 100}%` }} />
        </span>
      )}
      {more && <small>{more}</small>}
    </div>
  );
}

/** The interval of a rate as a drawing: nothing, the interval, and the rate in it. */
function Range({ low, middle, high }: { low: number; middle: number; high: number }): JSX.Element {
  const most = Math.max(high, middle, 1) * 1.1;
  const least = Math.min(0, low);
  const x = (value: number) => (100 * (value - least)) / (most - least);
  return (
    <svg
      class="range"
      viewBox="0 0 100 8"
      preserveAspectRatio="none"
      role="img"
      aria-label={`Growth per step: ${bytes(Math.max(0, Math.round(middle)))}, between ${bytes(Math.max(0, Math.round(low)))} and ${bytes(Math.max(0, Math.round(high)))}`}
    >
      <line x1={0} x2={100} y1={4} y2={4} class="axis" />
      <line x1={x(0)} x2={x(0)} y1={0} y2={8} class="zero" />
      <rect x={x(low)} width={Math.max(0.5, x(high) - x(low))} y={2} height={4} class="interval" />
      <rect x={x(middle) - 0.3} width={0.6} y={0} height={8} class="value" />
    </svg>
  );
}

/** The lowest level of each step, of all that is handed out: what leaks lifts it. */
function Floors({ steps }: { steps: StepsAnswer | null }): JSX.Element | null {
  const rows = steps?.rows ?? [];
  const device = rows[0]?.device;
  const floors = rows.filter((row) => row.device === device);
  if (floors.length < 3) return null;
  const values = floors.map((row) => Number(row.min_allocated_bytes));
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const points = values
    .map(
      (value, i) =>
        `${((100 * i) / (values.length - 1)).toFixed(2)},${(28 - (26 * (value - low)) / Math.max(1, high - low)).toFixed(2)}`,
    )
    .join(" ");
  return (
    <figure class="floors">
      <figcaption>
        The floor of each step, device {device ?? "unknown"}: the lowest allocated level from step{" "}
        {grouped(floors[0]!.step)} ({bytes(values[0]!)}) to step {grouped(floors.at(-1)!.step)} ({bytes(values.at(-1)!)}
        )
      </figcaption>
      <svg
        viewBox="0 0 100 30"
        preserveAspectRatio="none"
        role="img"
        aria-label={`Floors of ${grouped(floors.length)} steps, from ${bytes(values[0]!)} to ${bytes(values.at(-1)!)}`}
      >
        <polyline points={points} />
      </svg>
    </figure>
  );
}
