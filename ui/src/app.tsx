// The shell: heading, navigation, the selected process and moment, and the view that the link says.

import { render } from "preact";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { VIEWS, type ViewName } from "./hash.ts";
import { Failed } from "./parts.tsx";
import { about, aboutError, aboutProcess, begin, go, hrefTo, link, list, pid, said, selected, view } from "./state.ts";
import { clock } from "./units.ts";
import { Leaks } from "./views/leaks.tsx";
import { Memory } from "./views/memory.tsx";
import { Now } from "./views/now.tsx";
import { Oom } from "./views/oom.tsx";
import { Ranks } from "./views/ranks.tsx";
import { Steps } from "./views/steps.tsx";
import { Time } from "./views/time.tsx";
import { Whose } from "./views/whose.tsx";

const TITLES: Record<ViewName, string> = {
  now: "Now",
  time: "Time",
  memory: "Memory",
  whose: "Whose",
  leaks: "Leaks",
  steps: "Steps",
  oom: "Out of memory",
  ranks: "Ranks",
};
const SHOWN: Record<ViewName, () => JSX.Element> = {
  now: Now,
  time: Time,
  memory: Memory,
  whose: Whose,
  leaks: Leaks,
  steps: Steps,
  oom: Oom,
  ranks: Ranks,
};
const LINKS = {
  waiting: ["", "connecting"],
  live: ["●", "live"],
  lost: ["○", "connection lost"],
  still: ["■", "recording"],
} as const;
const THEMES = [
  ["auto", "As the system"],
  ["light", "Light"],
  ["dark", "Dark"],
] as const;

function hasRanks(): boolean {
  const ranks = list.value?.processes.filter((process) => process.workload?.rank != null).length ?? 0;
  return ranks > 1 || about.value?.source.kind === "fleet" || view.value.view === "ranks";
}

function App(): JSX.Element {
  const current = view.value;
  const Shown = SHOWN[current.view];
  const growing = selected.value ? Number(selected.value.growing_lines) : 0;
  // On a phone not all views have room beside one another.
  useEffect(
    () => document.querySelector("nav a[aria-current]")?.scrollIntoView({ inline: "nearest", block: "nearest" }),
    [current.view],
  );
  useEffect(() => {
    document.title = `${TITLES[current.view]}${selected.value ? ` · ${selected.value.comm} ${selected.value.pid}` : ""} · memscope`;
  });
  return (
    <>
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("content")?.focus();
        }}
      >
        To the content
      </a>
      <header class="top">
        <a class="brand" href={hrefTo({ view: "now" })}>
          memscope
        </a>
        <Source />
        <Chosen />
        <Moment />
        <label class="theme">
          <span class="hidden">Theme</span>
          <select
            value={current.theme}
            onChange={(event) => go({ theme: event.currentTarget.value as typeof current.theme }, true)}
          >
            {THEMES.map(([word, text]) => (
              <option key={word} value={word}>
                {text}
              </option>
            ))}
          </select>
        </label>
      </header>
      <nav class="views" aria-label="Views">
        <ul>
          {VIEWS.filter((name) => name !== "ranks" || hasRanks()).map((name) => (
            <li key={name}>
              <a href={hrefTo({ view: name })} aria-current={name === current.view ? "page" : undefined}>
                {TITLES[name]}
                {name === "leaks" && growing > 0 && <span class="badge">▲ {growing}</span>}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <main class="page" id="content" tabIndex={-1} data-view={current.view}>
        <h1 class="hidden">{TITLES[current.view]}</h1>
        {current.view !== "now" && <Failed error={aboutError.value} />}
        {about.value ? <Shown key={current.view} /> : <p class="quiet">Asking what there is …</p>}
      </main>
      <p class="hidden" role="status" aria-live="polite">
        {said.value}
      </p>
    </>
  );
}

function Source(): JSX.Element {
  const [sign, text] = LINKS[link.value];
  const name = about.value?.source.name ?? "";
  return (
    <p class={`source l-${link.value}`}>
      <span aria-hidden="true">{sign} </span>
      {text}
      {name && (
        <span class="name" title={name}>
          {" "}
          · {name}
        </span>
      )}
    </p>
  );
}

function Chosen(): JSX.Element {
  const all = list.value?.processes ?? [];
  const chosen = selected.value;
  const known = chosen ? all.indexOf(chosen) : -1;
  const choose = (index: number) => {
    const process = all[index];
    if (process) go(aboutProcess(process));
  };
  return (
    <label class="pick">
      <span>Process</span>
      <select value={String(known)} onChange={(event) => choose(Number(event.currentTarget.value))}>
        {known < 0 && <option value="-1">{pid.value ?? "none"}</option>}
        {all.map((process, index) => (
          <option key={`${process.node} ${process.pid} ${process.attached_boot_ns}`} value={String(index)}>
            {process.node ? `${process.node} · ` : ""}
            {process.comm} {process.pid}
            {process.workload?.rank != null ? ` · rank ${process.workload.rank}` : ""}
            {process.state === "attached" ? "" : ` · ${process.state.replaceAll("_", " ")}`}
          </option>
        ))}
      </select>
    </label>
  );
}

function Moment(): JSX.Element | null {
  const { at } = view.value;
  if (at === null) return null;
  return (
    <p class="moment">
      At <b class="number">{/^\d+$/.test(at) ? `${clock(at)} UTC` : at}</b>{" "}
      <button type="button" onClick={() => go({ at: null })} aria-label="Back to now">
        Now
      </button>
    </p>
  );
}

begin();
render(<App />, document.getElementById("app")!);
