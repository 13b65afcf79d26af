// The live page: asks the sidecar for a snapshot every second, keeps its samples and shows it. Text is set as text, never as markup.

import { Chart, Spark } from "./chart.js";
import { limits, overrideCommand, slots } from "./limits.js";
import { ALL, RateHistory } from "./rates.js";
import { capital, clock, event as described, leasedText, leasesText, limitName, percent, rate, requests, reservedText, reservesText, rulesText, summarize, span } from "./summary.js";

/** Pause from an answer to the next question. */
const EVERY_MS = 1_000;
/** A sidecar that takes longer does not answer. */
const PATIENCE_MS = 4_000;

const byId = (id) => document.getElementById(id);
const history = new RateHistory();
const chart = new Chart(byId("chart"), byId("readout"));
/** The last snapshot, when it came by the browser's clock, and when the viewer paused. */
let snapshot, received_at, paused_at;
/** Since when there is no data by the sidecar's clock, and whether the sidecar refuses it; empty while there is data. */
let disconnected = {};
/** A snapshot has come since the page was opened, or since a pause. */
let connected = false;
/** The limit whose chart is shown, and the choices: all limits or one. */
let selected = ALL, picks = [ALL];

/** Sets a text only if it changes: nothing is redrawn without need, and selected text stays selected. */
function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * Gives a list or table a row for each item, made of the template with its id and `-template`. Reuses the existing rows: of
 * the same name, if items have one.
 */
function rows(parent, items, show) {
  const focused = document.activeElement;
  const template = byId(`${parent.id}-template`).content;
  const named = new Map([...parent.children].map((row) => [row.dataset.name, row]));
  items.forEach((item, index) => {
    const name = item?.name, present = parent.children[index];
    const row = (name === undefined ? present : named.get(name)) ?? template.firstElementChild.cloneNode(true);
    if (name !== undefined) row.dataset.name = name;
    if (present !== row) parent.insertBefore(row, present ?? null);
    show(row, item);
  });
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  // An element that moves loses the focus.
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

function show_status(summary) {
  byId("status").dataset.tone = summary.tone;
  setText(byId("chip"), summary.chip);
  setText(byId("headline"), summary.headline);
  rows(byId("notes"), summary.notes, (row, note) => setText(row, note));
  // Screen readers announce only the kind of state: the numbers change each second.
  setText(byId("spoken"), summary.spoken ?? summary.chip);
  document.title = summary.tone === "them" ? `${rate(history.now().denied)}/s 429 · Sluicegate` : `${summary.chip} · Sluicegate`;
}

function show_chart(now) {
  const rates = history.now(selected);
  setText(byId("now-admitted"), `${rate(rates.admitted)}/s`);
  setText(byId("now-denied"), `${rate(rates.denied)}/s`);
  setText(byId("now-unavailable"), `${rate(rates.unavailable)}/s`);
  const runs = history.runs(selected);
  const marks = snapshot.events.map((event) => {
    const { tone, label } = described(event, snapshot.store.name);
    return { at: event.at_ms, tone, label: `${clock(event.at_ms, now)} ${label}` };
  });
  chart.draw({ runs, now, span: history.span(now), marks });
  if (byId("numbers").open) show_numbers(now);
}

/** The chart as a table, for those who cannot see it: means over 15 seconds. */
function show_numbers(now) {
  const QUARTER_MS = 15_000;
  const quarters = [];
  for (let end = now; end > now - history.span(now); end -= QUARTER_MS) {
    const mean = history.mean(selected, end - QUARTER_MS, end);
    if (mean) quarters.push([clock(end - QUARTER_MS, now), rate(mean.admitted), rate(mean.denied), rate(mean.unavailable)]);
  }
  rows(byId("numbers-rows"), quarters, (row, cells) => cells.forEach((cell, at) => setText(row.children[at], cell)));
}

function show_limits(all, now) {
  rows(byId("limits-rows"), all, (row, limit) => {
    row.dataset.denies = limit.denies && limit.now.denied > 0;
    const [head, trend, asked, denied, share, since] = row.children;
    const [button, windows] = head.children;
    button.onclick ??= () => select(row.dataset.name === selected ? ALL : row.dataset.name);
    setText(button, limitName(limit.name));
    button.setAttribute("aria-pressed", limit.name === selected);
    setText(windows, [limit.windows ?? "not in the policy", leasedText(limit.now), reservesText(limit.reserves), reservedText(limit.reserved)].filter(Boolean).join("; "));
    row.spark ??= new Spark(trend);
    row.spark.draw(limit.runs, now, history.span(now));
    setText(asked, rate(requests(limit.now)));
    setText(denied, rate(limit.now.denied));
    setText(share, limit.now.denied > 0 ? percent(limit.now.denied / requests(limit.now)) : "–");
    setText(since, limit.denies ? clock(limit.since, now) : limit.last ? `ended ${clock(limit.last, now)}` : "–");
  });
  rows(byId("pick"), picks, (option, limit) => setText(option, limit === ALL ? "all limits" : limitName(limit)));
  byId("pick").selectedIndex = picks.indexOf(selected);
}

function show_slots() {
  const all = slots(snapshot.slots);
  byId("slots").hidden = all.length === 0;
  rows(byId("slots-rows"), all, (row, { name, in_use, subject, for_ms, outlived, who }) => {
    [name, in_use, subject, `${span(for_ms)}${outlived ? ", outlived" : ""}`, who].forEach((text, at) => {
      const cell = row.children[at];
      setText(cell.querySelector("code") ?? cell, String(text));
    });
  });
}

/** Events that are shown without a click. */
const NEWEST = 6;
/** The most denied and the nearest of all limits together. */
const SHOWN = 8;

/** Copies a text, also on a page without TLS, where `navigator.clipboard` is missing. */
function copy(text) {
  const focused = document.activeElement;
  const area = document.body.appendChild(document.createElement("textarea"));
  area.className = "spoken";
  area.value = text;
  area.select();
  setText(byId("copied"), `${document.execCommand("copy") ? "Copied" : "Run"}: ${text}`);
  area.remove();
  focused.focus({ preventScroll: true });
}

function show_subject(row, { who, count, share }) {
  const name = who.consumer ?? who.subject;
  setText(row.querySelector("code"), name);
  setText(row.querySelector("th span"), who.limit);
  if (count !== undefined) {
    setText(row.querySelector(".number"), count);
    const button = row.querySelector("button");
    button.setAttribute("aria-label", `Copy override for ${name}, ${who.limit}`);
    button.onclick = () => copy(overrideCommand(who, location.origin));
  }
  row.querySelector(".gauge span").style.width = `${100 * Math.min(1, share)}%`;
  setText(row.querySelector(".gauge + span"), percent(share));
}

function show_top() {
  const { limits } = snapshot.top;
  const denied = limits.flatMap(({ limit, denied_total, most_denied }) => most_denied.map(({ subject, consumer, count, error }) => ({
    who: { limit, subject, consumer }, order: count,
    // A count that may be too high is shown as an upper bound.
    count: `${error ? "≤ " : ""}${count.toLocaleString("en")}`,
    share: denied_total ? Math.min(1, count / denied_total) : 0,
  })));
  const near = limits.flatMap(({ limit, nearest }) => nearest.map(({ subject, consumer, used_ratio }) => ({
    who: { limit, subject, consumer }, order: used_ratio, share: used_ratio,
  })));
  for (const [name, subjects] of [["denied", denied], ["near", near]]) {
    const first = subjects.sort((a, b) => b.order - a.order).slice(0, SHOWN);
    rows(byId(`${name}-rows`), first, show_subject);
    byId(`${name}-table`).hidden = first.length === 0;
    byId(`${name}-none`).hidden = first.length > 0;
  }
  const since = Math.max(0, ...limits.map((limit) => limit.since_seconds)) * 1_000;
  setText(byId("denied-span"), denied.length ? `in the last ${span(since)}` : "");
}

function show_store(now) {
  const { store: { name: kind, health }, policy, leases } = snapshot;
  const name = capital(kind);
  const [tone, state, detail] = {
    answers: ["calm", `${name} answers`, `Each call may take up to ${policy.store_timeout_ms} ms.`],
    unasked: ["wait", `${name} has not been called yet`, ""],
    lost: ["us", `${name} does not answer`, `Since ${clock(health.since_ms, now)}, ${span(now - health.since_ms)}: ${health.why}`],
  }[health.state];
  byId("store-state").dataset.tone = tone;
  setText(byId("store-state"), state);
  setText(byId("store-detail"), [detail, leasesText(leases)].filter(Boolean).join(" "));
}

function show_policy() {
  const { policy } = snapshot;
  byId("policy-state").dataset.tone = policy.refused ? "us" : "calm";
  setText(byId("policy-state"), policy.refused ? "The file was refused; the one before is in force" : "In force");
  const count = policy.limits.length;
  setText(byId("policy-detail"), [
    `Version ${policy.epoch} since the sidecar started. ${count} limit${count === 1 ? "" : "s"}. Denials are cached for at most ${policy.denial_ttl_ms} ms.`,
    rulesText(policy),
    policy.refused ?? "",
  ].filter(Boolean).join(" "));
}

function show_events(now) {
  const show_event = (row, event) => {
    const { tone, label, detail } = described(event, snapshot.store.name);
    const [time, name, more] = row.children;
    row.dataset.tone = tone;
    time.dateTime = new Date(event.at_ms).toISOString();
    setText(time, clock(event.at_ms, now));
    setText(name, label);
    setText(more, detail);
  };
  rows(byId("events"), snapshot.events.slice(0, NEWEST), show_event);
  rows(byId("earlier"), snapshot.events.slice(NEWEST), show_event);
  byId("earlier-box").hidden = snapshot.events.length <= NEWEST;
}

function show_live() {
  const state = paused_at !== undefined ? "paused" : disconnected.unreachable_since !== undefined ? "no" : connected ? "yes" : "wait";
  byId("live").dataset.live = state;
  setText(byId("live-text"), { no: "disconnected", paused: "paused", wait: "connecting", yes: "live" }[state]);
}

/** The sidecar's clock, which all messages use; extrapolated from the last snapshot. */
function sidecar_now() {
  return snapshot ? snapshot.now_ms + ((paused_at ?? performance.now()) - received_at) : Date.now();
}

function show() {
  show_live();
  const now = sidecar_now();
  if (!snapshot) {
    if (disconnected.unreachable_since !== undefined) show_status(summarize({ now, ...disconnected }));
    return;
  }
  const all = limits(snapshot, history);
  picks = [ALL, ...all.map((limit) => limit.name)];
  // A reload may have removed the limit.
  if (!picks.includes(selected)) selected = ALL;
  const { store, policy, events, up_ms, now_ms } = snapshot;
  const [total, failing] = [history.now(), history.failing()];
  show_status(summarize({ now, ...disconnected, store, policy, limits: all, total, failing, top: snapshot.top.limits, events, up: up_ms + now - now_ms }));
  show_chart(now);
  show_limits(all, now);
  show_slots();
  show_top();
  show_store(now);
  show_policy();
  show_events(now);
  setText(byId("instance"), `${location.host} · ${snapshot.version}`);
}

function select(limit) {
  selected = limit;
  show();
}

byId("pick").addEventListener("change", (event) => select(picks[event.target.selectedIndex]));
byId("numbers").addEventListener("toggle", show);

/** What the sidecar answers: a snapshot, or that it refuses; nothing if it does not answer. */
async function ask() {
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const answer = await fetch(`/page/snapshot?after=${history.latest()}`, { cache: "no-store", signal });
    // A proxy answers for a sidecar that is away.
    return answer.ok ? { shown: await answer.json() } : { refused: answer.status < 500 };
  } catch {
    return {};
  }
}

async function poll() {
  const { shown, refused } = await ask();
  if (paused_at !== undefined) return;
  if (shown) {
    snapshot = shown;
    received_at = performance.now();
    disconnected = {};
    connected = true;
    history.add(shown.samples);
  } else {
    disconnected = { unreachable_since: disconnected.unreachable_since ?? sidecar_now(), refused };
  }
  show();
}

async function go_on() {
  try {
    if (paused_at === undefined) await poll();
  } finally {
    setTimeout(go_on, EVERY_MS);
  }
}
go_on();

// The first snapshot after a pause brings the missed samples.
byId("pause").addEventListener("click", () => {
  paused_at = paused_at === undefined ? performance.now() : undefined;
  byId("pause").setAttribute("aria-pressed", paused_at !== undefined);
  connected = false;
  show();
});
