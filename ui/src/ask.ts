// Questions to the server: one way to ask, one form of failure, and a hook that keeps an answer on the screen until the next one is there.

import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

/** Why there is no answer, in the words of the server. */
export class Refused extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly hint: string,
  ) {
    super(message);
  }
}

/** With this the server sends integers that JavaScript would round as text. */
const EXACT = "application/json;numbers=exact";

async function request<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const headers = { accept: EXACT };
  const how =
    body === undefined
      ? { headers }
      : { method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body) };
  let response: Response;
  try {
    response = await fetch(path, { ...how, signal, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(
      "unreachable",
      "the program that serves this page does not answer",
      "start memscope-ctl ui again, and open the link that it prints",
    );
  }
  const text = await response.text();
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    // The server refuses in plain text whoever has no cookie of it; the daemon refuses in JSON.
    if (response.status === 403)
      throw new Refused(
        "stranger",
        "the program that serves this page was started anew, and does not know this page any more",
        "open the link that memscope-ctl ui printed when it was started last",
      );
    throw new Refused(
      "unreadable",
      `the answer is no JSON (status ${response.status})`,
      "look at what memscope-ctl ui printed",
    );
  }
  if (!response.ok) {
    const { error } = value as { error?: { code?: string; message?: string; hint?: string } };
    throw new Refused(
      error?.code ?? String(response.status),
      error?.message ?? `status ${response.status}`,
      error?.hint ?? "",
    );
  }
  return value as T;
}

/** What the page is about. */
export function about<T>(): Promise<T> {
  return request<T>("api/about", undefined);
}

/** Asks one question; the answer is what `memscope-ctl --json` prints for it. */
export function ask<T>(method: string, body: unknown, node: string | null, signal?: AbortSignal): Promise<T> {
  return request<T>(`api/ask/${method}${node ? `?node=${encodeURIComponent(node)}` : ""}`, body, signal);
}

/** All segments and blocks of a moment, in columns. */
export function memory<T>(body: unknown, node: string | null, signal?: AbortSignal): Promise<T> {
  return request<T>(`api/memory${node ? `?node=${encodeURIComponent(node)}` : ""}`, body, signal);
}

/** An answer as it is on the screen. `answer` stays while the next one is on its way, unless another subject is asked about. */
export interface State<T> {
  answer: T | null;
  error: Error | null;
  asking: boolean;
}

/**
 * Asks when what it depends on changes. `subject` says what the answer is about: with another one the old answer goes at once.
 * `fresh` changes when the same question should be asked again; what changes while an answer is on its way is asked once more behind it.
 * `how` is `null` while there is nothing to ask: the old answer goes then, too. A question that nobody waits for any more is given up.
 */
export function useAnswer<T>(
  subject: string,
  fresh: unknown,
  how: ((signal: AbortSignal) => Promise<T>) | null,
): Signal<State<T>> {
  const state = useSignal<State<T>>({ answer: null, error: null, asking: how !== null });
  const before = useRef<string | null>(null);
  const flight = useRef<AbortController | null>(null);
  const again = useRef(false);
  const latest = useRef(how);
  latest.current = how;
  useEffect(() => {
    const same = before.current === subject;
    before.current = subject;
    // What is asked again because time has passed waits for the answer that is on its way.
    if (same && flight.current && how) {
      again.current = true;
      return;
    }
    flight.current?.abort();
    flight.current = null;
    again.current = false;
    if (!how) {
      state.value = { answer: null, error: null, asking: false };
      return;
    }
    state.value = { answer: same ? state.peek().answer : null, error: same ? state.peek().error : null, asking: true };
    const start = (question: (signal: AbortSignal) => Promise<T>) => {
      const controller = new AbortController();
      flight.current = controller;
      const done = (next: State<T>) => {
        if (flight.current !== controller) return;
        flight.current = null;
        // What happened after the question was put may be missing in this answer.
        const once = again.current ? latest.current : null;
        again.current = false;
        state.value = { ...next, asking: once !== null };
        if (once) start(once);
      };
      question(controller.signal).then(
        (answer) => done({ answer, error: null, asking: false }),
        (error: Error) => done({ answer: state.peek().answer, error, asking: false }),
      );
    };
    start(how);
  }, [subject, fresh]);
  useEffect(
    () => () => {
      flight.current?.abort();
      flight.current = null;
    },
    [],
  );
  return state;
}
