// The current state in one sentence: who is being limited, by what, since when, and whether clients or our side are the cause. Pure.

/** Made once: `toLocaleString` makes one for each number, which is slow with thousands of limits. */
const NUMBER = new Intl.NumberFormat("en");
/** From 10,000 on: three digits are enough, and fit on a phone. */
const LARGE = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** A rate for people: `0`, `0.4`, `12`, `1,234`, `12.3K`. */
export function rate(value) {
  if (value > 0 && value < 0.05) return "<0.1";
  if (value >= 9_999.5) return LARGE.format(value);
  const rounded = value < 9.95 ? Math.round(value * 10) / 10 : Math.round(value);
  return NUMBER.format(rounded);
}

/** A share of 1 as percent; 0 % and 100 % are shown only where they are exact. */
export function percent(share) {
  const rounded = Math.round(share * 100);
  if (rounded === 0 && share > 0) return "<1 %";
  if (rounded === 100 && share < 1) return ">99 %";
  return `${rounded} %`;
}

/** A duration: `40 s`, `3 min`, `2 h 5 min`, `3 d`. */
export function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1_000));
  if (seconds < 90) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.round(hours / 24)} d`;
}

/** A time of day in the viewer's time zone, with the date if it is not today. */
export function clock(ms, now = Date.now()) {
  const at = new Date(ms);
  const time = at.toLocaleTimeString("en-GB");
  if (at.toDateString() === new Date(now).toDateString()) return time;
  return `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

/** What leases hold and have spent: `Leases hold 20 units; 300 were spent without a call.` Empty without leases. */
export function leasesText(leases) {
  if (!leases) return "";
  const { held, spent } = leases;
  return `Leases hold ${NUMBER.format(held)} unit${held === 1 ? "" : "s"}; ${NUMBER.format(spent)} were spent without a call.`;
}

/** How many of the requests leases answer: `leases answer 61 % of the requests`. Empty if they answer none. */
export function leasedText(rates) {
  return rates.leased > 0 ? `leases answer ${percent(rates.leased / requests(rates))} of the requests` : "";
}

/** How much of what requests reserve is used: `12 % of what is reserved is used`. Empty if nothing has been settled. */
export function reservesText(reserves) {
  return reserves ? `${percent(reserves.used_ratio)} of what is reserved is used` : "";
}

/** What requests under way have reserved: `40,000 units of 12 requests are reserved`. Empty if there are none. */
export function reservedText(reserved) {
  if (!reserved) return "";
  const { units, requests, at_most } = reserved;
  const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
  return `${at_most ? "at most " : ""}${count(units, "unit")} of ${count(requests, "request")} ${units === 1 ? "is" : "are"} reserved`;
}

/** Which filters have the policy's rules: `Rules a41c09d2e7f3: 16 of 16 filters have them.` Empty without rules and such filters. */
export function rulesText({ rules, filters }) {
  const { in_force = 0, behind = 0, refused = 0, none = 0 } = filters;
  const all = in_force + behind + refused + none;
  if (!rules && !all) return "";
  const others = [[behind, "behind"], [none, "without rules"], [refused, "refused them"]].filter(([count]) => count > 0);
  const have = all ? `${in_force} of ${all} filters have them` : "no filter has asked for them";
  return `${rules ? `Rules ${rules}` : "No rules"}: ${[have, ...others.map(([count, what]) => `${count} ${what}`)].join(", ")}.`;
}

/** The name of a series for people. */
export function limitName(name) {
  return name === "" ? "(unknown limit)" : name;
}

/** Limits with a run of denials that goes on, the busiest first: `{ name, key, rate, since, last }`. */
function denying(view) {
  return view.limits
    .filter((limit) => limit.denies)
    .map(({ name, now, since, last, reserves }) => ({ name: limitName(name), key: name, rate: now.denied, since, last, reserves }))
    .sort((a, b) => b.rate - a.rate);
}

function limiting(view, all) {
  const [first, second] = all;
  const one = ({ name, rate: denied, since, last }) => (denied > 0
    ? `${rate(denied)}/s on ${name} for ${span(view.now - since)}`
    : `on ${name} for ${span(view.now - since)}, the last ${span(view.now - last)} ago`);
  const parts = [one(first)];
  if (second) parts.push(one(second));
  const more = all.length - 2;
  if (more > 0) parts.push(`${more} more limit${more > 1 ? "s" : ""}`);
  return `429s: ${parts.length > 2 ? `${parts[0]}, ${parts[1]} and ${parts[2]}` : parts.join(" and ")}`;
}

/** Which subjects are denied, as far as known. */
function whom(view, first) {
  const top = view.top?.find((limit) => limit.limit === first.key);
  const most = top?.most_denied[0];
  if (!most || !top.denied_total) return undefined;
  const share = Math.min(1, most.count / top.denied_total);
  const those = `${first.name}'s 429s`;
  const who = most.consumer ?? most.subject;
  if (share >= 0.5) return `One subject, ${who}, gets ${share === 1 ? "all" : percent(share)} of ${those}.`;
  return `Many subjects share ${those}: the most denied, ${who}, gets ${percent(share)}. The limit may be too low for the demand.`;
}

/** What a failed store call of each kind means, after the store's name. */
const FAILED = {
  timeout: "answers, but too slowly: not within store_timeout",
  connection: "breaks connections",
  auth: "refuses the user or the password",
  refused: "answers with an error, which the sidecar's log has",
  reply: "answers with something that the sidecar cannot read",
  state: "has a key with data that the sidecar did not write; the sidecar's log has the error",
  late: "is too slow: decisions waited too long for the previous call",
  overloaded: "is too slow: too many decisions wait for the previous call",
  full: "has reached the policy's memory_limit: requests with new keys are undecided until something expires",
};

/** How long an outage or a start is mentioned afterwards: it may explain the current state. */
const RECENT_MS = 300_000;
/** Requests without a verdict up to this long after an outage belong to it. */
const SETTLING_MS = 10_000;

const OURS = { tone: "us", chip: "Trouble on our side" };
const OVER = "Clients over a limit";

/** What the page says without the sidecar's data. */
function disconnected({ now, unreachable_since, refused, store }) {
  const known = store === undefined ? [] : ["Everything below is the last known state."];
  if (refused) {
    return {
      tone: "wait",
      chip: "No data",
      headline: "The sidecar refuses to give this page its data.",
      notes: ["It may have another token now: reload the page to enter it.", ...known],
    };
  }
  return {
    tone: "us",
    chip: "Sidecar unreachable",
    headline: store === undefined ? "The sidecar does not answer." : `The sidecar has not answered since ${clock(unreachable_since, now)}.`,
    notes: [
      "If the sidecar is away, Envoy applies each rule's when_unavailable: requests pass unmetered or get a 503. This page retries every second.",
      ...known,
    ],
  };
}

/** Trouble on our side as `{ headline, notes }`, the worst first, or undefined; `settling`: an outage has just ended. */
function trouble({ now, store, policy, total, failing }, settling) {
  const { name, sidecars, health } = store;
  if (health.state === "lost") {
    const notes = [`${capital(health.why)}. The sidecar keeps retrying.`];
    if (total.unavailable > 0) {
      notes.push(`${rate(total.unavailable)} requests/s are undecided: the limit's when_store_is_down or the rule's when_unavailable lets them pass unmetered or answers 503.`);
    }
    notes.push(sidecars === 0
      ? "How many sidecars there are is not known, so this sidecar has no share yet."
      : "This sidecar enforces its share of each limit, unless the limit's when_store_is_down says otherwise.");
    return { headline: `${capital(name)} has not answered since ${clock(health.since_ms, now)}.`, notes };
  }
  const [unknown, ...more] = policy.unknown_limits;
  if (unknown !== undefined) {
    return {
      headline: `Requests ask for limit ${unknown}${more.length ? ` and ${more.length} more` : ""}, which the policy does not have.`,
      notes: [`${rate(total.error)} requests/s are undecided: each rule's when_unavailable lets them pass unmetered or answers 503. Compare rules and policy with sluicegate check-config.`],
    };
  }
  if (total.unavailable > 0 && !settling) {
    const causes = failing.map((kind) => `${capital(name)} ${FAILED[kind] ?? `fails: ${kind}`}.`);
    return {
      headline: `${rate(total.unavailable)} requests/s are undecided.`,
      notes: [...causes, "Each rule's when_unavailable lets them pass unmetered or answers 503."],
    };
  }
  return undefined;
}

/** Clients over a limit, or a moment ago: then it is not red. A screen reader is told only when they are under it again. */
function over(view, all) {
  const { total } = view;
  const state = all[0].rate > 0 ? { tone: "them", chip: OVER } : { tone: "wait", chip: "No 429s just now", spoken: OVER };
  const starved = all.filter(({ reserves }) => reserves?.starve);
  const notes = [whom(view, all[0]), ...starved.map(({ name, reserves }) => `Reserves may starve ${name}: ${reservesText(reserves)}.`)];
  if (total.denied > 0) notes.push(`${percent(total.denied / requests(total))} of ${rate(requests(total))} requests/s are denied.`);
  return { ...state, headline: `${limiting(view, all)}.`, notes };
}

function quiet({ now, total, limits, policy }) {
  if (!Object.values(policy.filters).some((count) => count > 0) && !limits.some((limit) => limit.runs.length)) {
    const notes = ["Nor has any program asked in the last minutes, so nothing is limited here. sluicegate rollout lists the filters that ask."];
    return { tone: "wait", chip: "No requests", headline: "No Envoy asks this sidecar.", notes };
  }
  const admitted = total.admitted > 0 ? `${rate(total.admitted)} requests/s are admitted.` : "No requests right now.";
  const last = limits.reduce((newest, limit) => (limit.last > (newest?.last ?? 0) ? limit : newest), undefined);
  const note = last ? `${admitted} The last 429 was ${span(now - last.last)} ago, on ${limitName(last.name)}.` : admitted;
  return { tone: "calm", chip: "No denials", headline: "Nobody is being limited.", notes: [note] };
}

/**
 * `view`: `{ now, unreachable_since, refused, store, policy, limits: [{ name, now: rates, denies, since, last, runs }], total: rates,
 * failing, top, events, up }`, where `unreachable_since` is when the page stopped getting data, if it has, `refused` whether
 * the sidecar refuses it, `failing` the kinds of store failures just now, and `up` how long the sidecar has run. Returns `{ tone, chip, headline, notes }`,
 * and `spoken` if that is not the chip; the tone is `wait`, `calm`, `them` or `us`.
 */
export function summarize(view) {
  if (view.unreachable_since !== undefined) return disconnected(view);
  const { now, store, policy, total } = view;
  const all = denying(view);
  // An event may be a little later than `now`, which was read first.
  const within = (ms, event) => Math.abs(now - event.at_ms) < ms;
  const back = view.events.find((event) => event.kind === "store_back" && within(RECENT_MS, event));
  const ours = trouble(view, back && within(SETTLING_MS, back));
  const state = ours ? { ...OURS, headline: ours.headline, notes: [...ours.notes, all.length && `${limiting(view, all)}.`] }
    : all.length ? over(view, all) : quiet(view);
  const { notes } = state;
  const mild = !ours && !all.length;
  if (back && store.health.state !== "lost") {
    notes.push(`${capital(store.name)} was down until ${clock(back.at_ms, now)}; it came back ${back.detail}.`);
  }
  if (policy.refused) {
    if (mild) Object.assign(state, OURS);
    notes.push(`The policy file was refused; the one before stays in force: ${policy.refused}`);
  }
  if (policy.filters_apart.length) {
    if (mild) Object.assign(state, OURS);
    notes.push(...policy.filters_apart.map((told) => `${capital(told)}.`));
  }
  if (policy.filters_with_other_pepper) {
    if (mild) Object.assign(state, OURS);
    notes.push(`Filters with another pepper (${policy.filters_with_other_pepper}) recognize no consumer: every key counts as missing. sluicegate rollout names them.`);
  }
  if (total.error > 0 && !policy.unknown_limits.length) {
    notes.push(`${rate(total.error)} requests/s cannot be decided, for example because they cost more than their limit ever admits.`);
  }
  if (total.shadow_denied > 0) notes.push(`Shadow rules would have denied ${rate(total.shadow_denied)} requests/s.`);
  if (view.up < RECENT_MS) notes.push(`This sidecar started ${span(view.up)} ago.`);
  return { ...state, notes: notes.filter(Boolean) };
}

/** Requests per second whose verdicts are enforced: all but shadow decisions. */
export function requests(rates) {
  return rates.admitted + rates.denied + rates.unavailable + rates.error;
}

export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** An event of the sidecar as `{ tone, label, detail }`. */
export function event({ kind, detail, times }, store) {
  const often = times > 1 ? ` (${times} times)` : "";
  const [tone, label] = {
    started: ["wait", "Sidecar started"],
    policy_loaded: ["wait", "Policy loaded"],
    policy_refused: ["us", "Policy refused"],
    store_lost: ["us", `${capital(store)} down`],
    store_back: ["calm", `${capital(store)} back`],
    override_set: ["wait", "Override set"],
    override_removed: ["wait", "Override removed"],
    overrides_lost: ["us", "Overrides lost"],
  }[kind] ?? ["wait", kind];
  return { tone, label: label + often, detail: kind === "started" ? `version ${detail}` : detail.replace(/^epoch /, "version ") };
}
