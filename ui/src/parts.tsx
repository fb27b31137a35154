// What views are made of: amounts, notes, errors, tables that can be sorted, stacked bars, and where code stands.

import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { Refused, type State } from "./ask.ts";
import { type Exactness, say } from "./known.ts";
import { go, hrefTo, view } from "./state.ts";
import type { Answered, CodeLine, Maybe, Note } from "./types.ts";
import { type Int, bytes, clock, grouped, moment } from "./units.ts";

/** Bytes as exactly as they are known, or the word that they are not. */
export function Bytes({ of, known, title }: { of: Maybe<Int>; known?: Exactness; title?: string }): JSX.Element {
  if (of === null || of === undefined || known === "not") return <span class="unknown">unknown</span>;
  return (
    <span class="number" title={title ?? `${grouped(of)} bytes`}>
      {say(known ?? "exactly", bytes(of))}
    </span>
  );
}

export function Count({ of, known }: { of: Maybe<Int>; known?: Exactness }): JSX.Element {
  return of === null || of === undefined || known === "not" ? (
    <span class="unknown">unknown</span>
  ) : (
    <span class="number">{say(known ?? "exactly", grouped(of))}</span>
  );
}

/** The last part of a path, which is what people know a file by. */
export function short(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** A line of code: the file's name, with the whole path for who asks. */
export function Place({ line }: { line: Maybe<CodeLine> }): JSX.Element {
  if (!line) return <span class="unknown">line unknown</span>;
  return (
    <span class="place" title={`${line.file}:${line.line}`}>
      <b>
        {short(line.file)}:{line.line}
      </b>
      {line.name ? ` in ${line.name}` : ""}
    </span>
  );
}

/**
 * What limits the numbers, of one or several answers, each sentence once. `about`: of which numbers, where a view has several such lists,
 * which screen readers tell apart by their names.
 */
export function Notes({ of, about }: { of: (Answered | null | undefined)[]; about?: string }): JSX.Element | null {
  const notes = new Map<string, Note>();
  for (const answer of of) for (const note of answer?.coverage ?? []) notes.set(`${note.code} ${note.text}`, note);
  if (notes.size === 0) return null;
  const title = about ? `What limits the numbers of ${about}` : "What limits these numbers";
  return (
    <aside class="notes" aria-label={title}>
      <h3>{title}</h3>
      <ul>
        {[...notes.values()].map((note) => (
          <li key={note.code + note.text} class={note.affects.length ? "limits" : ""}>
            {note.text}
            {note.affects.length > 0 && (
              <span class="quiet">
                {" "}
                ({note.lower_bound ? "may be too small" : "not exact"}: {note.affects.join(", ")})
              </span>
            )}
          </li>
        ))}
      </ul>
    </aside>
  );
}

/** Of what moment the numbers are. `earlier`: they are of the moment that the link names; others are always of the present. */
export function AsOf({
  of,
  asking,
  earlier,
}: {
  of: Maybe<Answered>;
  asking?: boolean;
  earlier?: boolean;
}): JSX.Element {
  const { at } = view.value;
  return (
    <p class="asof">
      {!of ? (
        "not answered yet"
      ) : of.as_of == null ? (
        ""
      ) : (
        <time dateTime={`${moment(of.as_of).slice(0, 10)}T${clock(of.as_of)}Z`} title={`${of.as_of} ns since 1970`}>
          {moment(of.as_of).slice(0, 10)} {clock(of.as_of)} UTC
        </time>
      )}
      {at === null || !of ? "" : earlier ? " · an earlier moment" : " · not of the earlier moment"}
      <span class={asking ? "asking" : "asking off"} aria-hidden="true" />
    </p>
  );
}

/** What went wrong, and what to do. */
export function Failed({ error }: { error: Maybe<Error> }): JSX.Element | null {
  if (!error) return null;
  return (
    <div class="failed" role="alert">
      <b>{error.message}</b>
      {error instanceof Refused && error.hint && <p>{error.hint}</p>}
    </div>
  );
}

/** A section with its heading, the moment of its answer, and what happened to the question. */
export function Section<T extends Answered>({
  title,
  state,
  children,
  tools,
  id,
  earlier,
}: {
  title: string;
  state?: State<T>;
  children: ComponentChildren;
  tools?: ComponentChildren;
  id?: string;
  /** The answer is of the moment that the link names. */
  earlier?: boolean;
}): JSX.Element {
  const name = id ?? title.toLowerCase().replace(/[^a-z]+/g, "-");
  return (
    <section
      class="section"
      aria-labelledby={`h-${name}`}
      data-id={name}
      aria-busy={state?.asking && !state.answer ? "true" : "false"}
    >
      <div class="head">
        <h2 id={`h-${name}`}>{title}</h2>
        {tools}
        {state && (state.answer || !state.error) && (
          <AsOf of={state.answer} asking={state.asking} earlier={earlier} />
        )}
      </div>
      <Failed error={state?.error} />
      {state?.asking && !state.answer && !state.error && <p class="quiet">Asking …</p>}
      {children}
    </section>
  );
}

export interface Column<R> {
  name: string;
  cell: (row: R) => ComponentChildren;
  /** What the column is sorted by; without it it cannot be. */
  by?: (row: R) => number | string | null;
  number?: boolean;
}

const MOST_ROWS = 300;

/** A table whose columns sort. Rows can be chosen with a link or a button in a cell. */
export function Table<R>({
  caption,
  columns,
  rows,
  first,
  empty,
  mark,
  keyOf,
}: {
  caption: string;
  columns: Column<R>[];
  rows: R[];
  first?: number;
  empty?: string;
  mark?: (row: R) => string;
  keyOf?: (row: R, index: number) => string | number;
}): JSX.Element {
  const order = useSignal<{ column: number; down: boolean } | null>(
    first === undefined ? null : { column: first, down: true },
  );
  const shown = useSignal(MOST_ROWS);
  const sorted = [...rows];
  const by = order.value && columns[order.value.column]?.by;
  if (order.value && by) {
    const sign = order.value.down ? -1 : 1;
    sorted.sort((a, b) => {
      const [x, y] = [by(a), by(b)];
      // What is unknown stands at the end, in whichever order.
      if (x === null || y === null) return x === y ? 0 : x === null ? 1 : -1;
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
    });
  }
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`${caption}, a table`}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column, index) => {
              const mine = order.value?.column === index;
              return (
                <th
                  key={column.name}
                  scope="col"
                  class={column.number ? "right" : ""}
                  aria-sort={mine ? (order.value!.down ? "descending" : "ascending") : undefined}
                >
                  {column.by ? (
                    <button
                      type="button"
                      class="sort"
                      onClick={() =>
                        (order.value = { column: index, down: mine ? !order.value!.down : Boolean(column.number) })
                      }
                    >
                      {column.name}
                      <span aria-hidden="true">{mine ? (order.value!.down ? " ▾" : " ▴") : ""}</span>
                    </button>
                  ) : (
                    column.name
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {sorted.slice(0, shown.value).map((row, index) => (
            <tr key={keyOf?.(row, index) ?? index} class={mark?.(row) ?? ""}>
              {columns.map((column) => (
                <td key={column.name} class={column.number ? "right" : ""}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
          {rows.length === 0 && (
            <tr>
              <td colSpan={columns.length} class="quiet">
                {empty ?? "Nothing."}
              </td>
            </tr>
          )}
        </tbody>
      </table>
      {sorted.length > shown.value && (
        <button type="button" onClick={() => (shown.value += MOST_ROWS * 4)}>
          Show more of {grouped(sorted.length)} rows
        </button>
      )}
    </div>
  );
}

export interface Piece {
  name: string;
  /** `null` where it is not known: then it has a name in the legend and no place in the bar. */
  bytes: number | null;
  kind: string;
  known?: Exactness;
  /** It is an upper bound. */
  atMost?: boolean;
}

function amountOf(piece: Piece): string {
  if (piece.bytes === null || piece.known === "not") return "unknown";
  return piece.atMost ? `at most ${bytes(piece.bytes)}` : say(piece.known ?? "exactly", bytes(piece.bytes));
}

/** A bar of several pieces with its legend beneath: names and numbers, so that colour is never alone. */
export function Bar({ pieces, total, label }: { pieces: Piece[]; total: number; label: string }): JSX.Element {
  return (
    <div class="bar-with-legend">
      <div
        class="bar"
        role="img"
        aria-label={`${label}: ${pieces.map((piece) => `${piece.name} ${amountOf(piece)}`).join(", ")}`}
      >
        {pieces
          .filter((piece) => (piece.bytes ?? 0) > 0)
          .map((piece) => (
            <span
              key={piece.name}
              class={`piece k-${piece.kind}`}
              style={{ width: `${Math.min(100, (100 * (piece.bytes ?? 0)) / Math.max(1, total))}%` }}
              title={`${piece.name}: ${amountOf(piece)}`}
            />
          ))}
      </div>
      <ul class="legend">
        {pieces.map((piece) => (
          <li key={piece.name}>
            <span class={`swatch k-${piece.kind}`} aria-hidden="true" />
            {piece.name} <span class={piece.bytes === null ? "unknown" : "number"}>{amountOf(piece)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** A choice among a few words, as a row of buttons. */
export function Choice<T extends string>({
  label,
  of,
  value,
  set,
}: {
  label: string;
  of: readonly (readonly [T, string])[];
  value: T;
  set: (value: T) => void;
}): JSX.Element {
  return (
    <div class="choice" role="group" aria-label={label}>
      {of.map(([word, text]) => (
        <button key={word} type="button" aria-pressed={word === value} onClick={() => set(word)}>
          {text}
        </button>
      ))}
    </div>
  );
}

/** The box that filters a table; what is in it is part of the link. */
export function Filter({ label }: { label: string }): JSX.Element {
  return (
    <label class="filter">
      <span>{label}</span>
      <input
        type="search"
        value={view.value.filter}
        placeholder="part of a name"
        onInput={(event) => go({ filter: event.currentTarget.value }, true)}
      />
    </label>
  );
}

export function Nobody(): JSX.Element {
  return (
    <section class="section">
      <h2>No process is selected</h2>
      <p>
        Nothing is traced yet, or the process of this link is not known here. <code>memscope-ctl attach --pid PID</code>{" "}
        begins to trace one. <a href={hrefTo({ view: "now", pid: null })}>Show all processes</a>
      </p>
    </section>
  );
}
