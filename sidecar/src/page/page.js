// The live page: hears the sidecar, keeps what it heard, and shows it. All text goes in as text, never as markup.

import { Chart, Spark } from "./chart.js";
import { ALL, NOW_MS, Track } from "./rates.js";
import { clock, event as described, limitName, percent, rate, requests, say, span, windowText } from "./say.js";
import { listen } from "./stream.js";

const the = (id) => document.getElementById(id);
const track = new Track();
const chart = new Chart(the("chart"), the("readout"));
/** What came last, when by the browser's clock, since when nothing comes any more, and when the viewer paused. */
let snapshot, heard_at, away, paused_at;
/** The limit whose chart is shown. */
let picked = ALL;

/** Puts a text where it is not already: what does not change is not drawn, selected text stays selected. */
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A new element with a text and classes. */
function piece(name, text = "", classes = "") {
  const element = document.createElement(name);
  element.textContent = text;
  if (classes) element.className = classes;
  return element;
}

/** Makes the children of a list or a table be as many as there are items: each shows its own, none is made anew. */
function rows(parent, items, make, show) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, at) => {
    if (!parent.children[at]) parent.append(make());
    show(parent.children[at], item);
  });
}

/** The limits of the policy, and others that were asked for in the last minutes. */
function limits(now) {
  const windows = new Map(snapshot.policy.limits.map((limit) => [limit.name, limit.windows]));
  const series = new Map(snapshot.series.map((told) => [told.name, told]));
  const names = [...windows.keys(), ...[...series.keys()].filter((name) => !windows.has(name))];
  return names
    .map((name) => ({
      name,
      windows: windows.get(name),
      since: series.get(name)?.denying_since_ms ?? undefined,
      last: series.get(name)?.denying_last_ms ?? undefined,
      now: track.now(name),
      runs: track.runs(name),
    }))
    .filter((limit) => limit.windows || limit.runs.some((run) => run.some((point) => requests(point) > 0)))
    .map((limit) => ({ ...limit, denies: limit.last !== undefined && now - limit.last < 2 * NOW_MS }))
    // Those that deny come first; otherwise rows keep their places.
    .sort((a, b) => b.denies - a.denies);
}

function show_status(said) {
  the("status").dataset.tone = said.tone;
  put(the("chip"), said.chip);
  put(the("headline"), said.headline);
  rows(the("notes"), said.notes, () => piece("li"), (row, note) => put(row, note));
  // Only the kind of thing is spoken: the numbers change each second.
  put(the("spoken"), said.chip);
  document.title = said.tone === "them" ? `${rate(track.now().denied)}/s 429 · Sluicegate` : `${said.chip} · Sluicegate`;
}

function show_chart(now) {
  const rates = track.now(picked);
  put(the("now-admitted"), `${rate(rates.admitted)}/s`);
  put(the("now-denied"), `${rate(rates.denied)}/s`);
  put(the("now-unavailable"), `${rate(rates.unavailable)}/s`);
  const runs = track.runs(picked);
  const marks = snapshot.events.map((event) => {
    const { tone, label } = described(event, snapshot.store.name);
    return { at: event.at_ms, tone, label: `${clock(event.at_ms, now)} ${label}` };
  });
  chart.draw({ runs, now, span: track.span(now), marks });
  if (the("numbers").open) show_numbers(runs, now);
}

/** The chart for those who do not see it: means of quarters of a minute. */
function show_numbers(runs, now) {
  const QUARTER_MS = 15_000;
  const points = runs.flat();
  const quarters = [];
  for (let end = now; end > now - track.span(now); end -= QUARTER_MS) {
    const within = points.filter((point) => point.at > end - QUARTER_MS && point.at <= end);
    const mean = (kind) => within.reduce((sum, point) => sum + point[kind], 0) / within.length;
    if (within.length) quarters.push([clock(end - QUARTER_MS, now), ...["admitted", "denied", "unavailable"].map((kind) => rate(mean(kind)))]);
  }
  const make = () => {
    const row = document.createElement("tr");
    const head = piece("th");
    head.scope = "row";
    row.append(head, piece("td", "", "number"), piece("td", "", "number"), piece("td", "", "number"));
    return row;
  };
  rows(the("numbers-rows"), quarters, make, (row, cells) => cells.forEach((cell, at) => put(row.children[at], cell)));
}

function cell(role, name, classes = "") {
  const made = piece(name, "", classes);
  made.setAttribute("role", role);
  return made;
}

function limit_row() {
  const row = cell("row", "tr");
  const head = cell("rowheader", "th");
  head.scope = "row";
  const button = piece("button", "", "name");
  button.type = "button";
  button.addEventListener("click", () => pick(row.dataset.limit === picked ? ALL : row.dataset.limit));
  head.append(button, piece("span", "", "quiet windows"));
  const trend = cell("cell", "td", "spark-column");
  row.spark = new Spark(trend);
  row.append(head, trend, ...["number", "number", "number share-column", "since"].map((classes) => cell("cell", "td", classes)));
  return row;
}

function show_limits(all, now) {
  rows(the("limits-rows"), all, limit_row, (row, limit) => {
    row.dataset.limit = limit.name;
    row.dataset.denies = limit.denies;
    const [head, , asked, denied, share, since] = row.children;
    put(head.firstChild, limitName(limit.name));
    head.firstChild.setAttribute("aria-pressed", limit.name === picked);
    const windows = limit.windows?.map(windowText).join(", ");
    put(head.lastChild, windows ? `${windows} · ${limit.windows[0].algorithm}` : "not in the policy");
    row.spark.draw(limit.runs, now, track.span(now));
    put(asked, rate(requests(limit.now)));
    put(denied, rate(limit.now.denied));
    put(share, limit.now.denied > 0 ? percent(limit.now.denied / requests(limit.now)) : "–");
    put(since, limit.denies ? clock(limit.since, now) : limit.last ? `ended ${clock(limit.last, now)}` : "–");
  });
  const options = [["", "all limits"], ...all.filter((limit) => limit.name !== "").map((limit) => [limit.name, limit.name])];
  rows(the("pick"), options, () => document.createElement("option"), (option, [value, text]) => {
    option.value = value;
    put(option, text);
  });
  the("pick").value = picked ?? "";
}

/** The most denied and the nearest of all limits together. */
const SHOWN = 8;

function subject_row(columns) {
  const row = document.createElement("tr");
  const head = piece("th");
  head.scope = "row";
  head.append(piece("code"), " ", piece("span", "", "quiet"));
  const share = piece("div", "", "share");
  const gauge = piece("span", "", "gauge");
  gauge.append(piece("span"));
  share.append(gauge, piece("span"));
  const last = piece("td");
  last.append(share);
  row.append(head, ...(columns === 3 ? [piece("td", "", "number")] : []), last);
  return row;
}

function show_subject(row, { subject, limit, count, share }) {
  const head = row.firstChild, last = row.lastChild.firstChild;
  put(head.firstChild, subject);
  put(head.lastChild, limit);
  if (count !== undefined) put(row.children[1], count);
  last.firstChild.firstChild.style.width = `${100 * share}%`;
  put(last.lastChild, percent(share));
}

function show_top() {
  const { limits } = snapshot.top;
  const denied = limits.flatMap(({ limit, denied_total, most_denied }) => most_denied.map(({ subject, count, error }) => ({
    subject, limit, order: count,
    // A count that may be too high says so.
    count: `${error ? "≤ " : ""}${count.toLocaleString("en")}`,
    share: denied_total ? Math.min(1, count / denied_total) : 0,
  })));
  const near = limits.flatMap(({ limit, nearest }) => nearest.map(({ subject, used_ratio }) => ({
    subject, limit, order: used_ratio, share: Math.min(1, used_ratio),
  })));
  for (const [name, subjects, columns] of [["denied", denied, 3], ["near", near, 2]]) {
    const first = subjects.sort((a, b) => b.order - a.order).slice(0, SHOWN);
    rows(the(`${name}-rows`), first, () => subject_row(columns), show_subject);
    the(`${name}-table`).hidden = first.length === 0;
    the(`${name}-none`).hidden = first.length > 0;
  }
  const since = Math.max(0, ...limits.map((limit) => limit.since_seconds)) * 1_000;
  put(the("denied-span"), denied.length ? `in the last ${span(since)}` : "");
}

function show_store(now) {
  const { store, policy } = snapshot;
  const name = store.name.charAt(0).toUpperCase() + store.name.slice(1);
  const [tone, state, detail] = {
    answers: ["calm", `${name} answers`, `Every call has ${policy.store_timeout_ms} ms to do so.`],
    unasked: ["wait", `${name} was not asked yet`, ""],
    lost: ["us", `${name} does not answer`, `Since ${clock(store.since_ms, now)}, ${span(now - store.since_ms)}: ${store.why}`],
  }[store.state];
  the("store-state").dataset.tone = tone;
  put(the("store-state"), state);
  put(the("store-detail"), detail);
}

function show_policy(now) {
  const { policy } = snapshot;
  the("policy-state").dataset.tone = policy.refused ? "us" : "calm";
  put(the("policy-state"), policy.refused ? `Epoch ${policy.epoch} in force; the file is refused` : `Epoch ${policy.epoch} in force`);
  const count = policy.limits.length;
  put(the("policy-detail"), [
    `Loaded ${clock(policy.since_ms, now)}.`,
    `${count} limit${count === 1 ? "" : "s"}. Denials are held for at most ${policy.denial_ttl_ms} ms.`,
    policy.refused ?? "",
  ].filter(Boolean).join(" "));
}

function show_events(now) {
  const make = () => {
    const row = document.createElement("li");
    const time = document.createElement("time");
    row.append(time, piece("strong"), piece("span", "", "quiet"));
    return row;
  };
  rows(the("events"), snapshot.events, make, (row, event) => {
    const { tone, label, detail } = described(event, snapshot.store.name);
    const [time, name, more] = row.children;
    row.dataset.tone = tone;
    time.dateTime = new Date(event.at_ms).toISOString();
    put(time, clock(event.at_ms, now));
    put(name, label);
    put(more, detail);
  });
}

function show_live() {
  const state = paused_at !== undefined ? "paused" : away !== undefined ? "no" : "yes";
  the("live").dataset.live = state;
  put(the("live-text"), { no: "away", paused: "paused", yes: "live" }[state]);
}

function show() {
  show_live();
  // The sidecar's time, since all that it tells is in it; it goes on while the sidecar is away.
  const now = snapshot ? snapshot.now_ms + ((paused_at ?? performance.now()) - heard_at) : Date.now();
  if (!snapshot) {
    if (away !== undefined) show_status(say({ now, away }));
    return;
  }
  const all = limits(now);
  const { store, policy, events, started_ms: started } = snapshot;
  show_status(say({ now, away, store, policy, limits: all, total: track.now(), top: snapshot.top.limits, events, started }));
  show_chart(now);
  show_limits(all, now);
  show_top();
  show_store(now);
  show_policy(now);
  show_events(now);
  put(the("instance"), `${location.host} · ${snapshot.version}`);
}

function pick(limit) {
  picked = limit;
  show();
}

the("pick").addEventListener("change", (event) => pick(event.target.value === "" ? ALL : event.target.value));
the("numbers").addEventListener("toggle", show);

const heard = {
  past: (message) => track.past(message),
  snapshot: (message) => {
    snapshot = message;
    heard_at = performance.now();
    away = undefined;
    track.add(message);
    show();
  },
  away: () => {
    away ??= Date.now();
    show();
  },
};
let stop = listen("/page/stream", heard);

// Who pauses does not listen either: what was missed comes with the past afterwards.
the("pause").addEventListener("click", () => {
  paused_at = paused_at === undefined ? performance.now() : undefined;
  the("pause").setAttribute("aria-pressed", paused_at !== undefined);
  if (paused_at === undefined) stop = listen("/page/stream", heard);
  else stop();
  show();
});
