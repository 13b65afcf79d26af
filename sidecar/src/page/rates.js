// Rates of the last minutes, from the sidecar's samples: each has what was counted from one reading of its counters to the next.

/** How far back the chart goes: as far as there are samples, within these bounds. */
const [SHORTEST_MS, SPAN_MS] = [60_000, 300_000];
/**
 * The time over which a rate is taken, in sentences and in the chart. A filter reports its cached denials about once a
 * second, so a rate over a much shorter time would jump.
 */
const NOW_MS = 5_000;
const CHART_MS = 3_000;
/** Counts that are kept in all samples together, as in the sidecar: with more than 128 busy limits the chart is shorter. */
const MAX_COUNTS = 38_400;

/** The order of a sample's counts; `leased` are among the admitted. */
const KINDS = ["admitted", "denied", "unavailable", "error", "shadow_denied", "leased"];

/** Stands for all limits. Not a string: a limit's name may be empty. */
export const ALL = null;

export class RateHistory {
  /** Samples, the oldest first: `{ from, at, failures, counts }`. `counts` is a Map of limit to numbers by KINDS, and of ALL to their sums. */
  #samples = [];

  /** The time of the newest sample, after which the sidecar has others. */
  latest() {
    return this.#samples.at(-1)?.at ?? 0;
  }

  /** Adds samples. They replace known ones of the same time, and later ones: the sidecar's clock was set back. */
  add(samples) {
    if (samples.length === 0) return;
    this.#samples = this.#samples.filter((sample) => sample.at <= samples[0].from_ms).concat(samples.map(read));
    const oldest = this.latest() - SPAN_MS - CHART_MS;
    let counts = 0;
    const dropped = this.#samples.findLastIndex((sample) => {
      counts += sample.counts.size;
      return counts > MAX_COUNTS || sample.at < oldest;
    });
    this.#samples.splice(0, dropped + 1);
  }

  /** How far back the chart should go. */
  span(now) {
    return Math.min(SPAN_MS, Math.max(SHORTEST_MS, now - (this.#samples[0]?.from ?? now)));
  }

  /** The limits that had decisions after a time, by name. */
  limits(after) {
    const names = this.#samples.filter((sample) => sample.at > after).flatMap((sample) => [...sample.counts.keys()]);
    return [...new Set(names)].filter((name) => name !== ALL).sort();
  }

  /** Current rates per second of a limit, or of all limits with `ALL`. */
  now(limit = ALL) {
    return rates(this.#until(this.#samples.length - 1, NOW_MS), limit);
  }

  /** The kinds of store calls that failed just now, the most frequent first. */
  failing() {
    const failed = {};
    for (const { failures } of this.#until(this.#samples.length - 1, NOW_MS)) {
      for (const [kind, count] of Object.entries(failures)) failed[kind] = (failed[kind] ?? 0) + count;
    }
    return Object.keys(failed).sort((a, b) => failed[b] - failed[a]);
  }

  /** For the chart: lists of `{ at, admitted, denied, ... }`, each without gaps. */
  runs(limit = ALL) {
    const runs = [];
    this.#samples.forEach(({ from, at }, index) => {
      const point = rates(this.#until(index, CHART_MS), limit);
      if (this.#samples[index - 1]?.at !== from) runs.push([{ ...point, at: from }]);
      runs.at(-1).push({ ...point, at });
    });
    return runs;
  }

  /** Mean rates after one time and up to another, or undefined if there are no samples. */
  mean(limit, after, until) {
    const within = this.#samples.filter(({ at }) => at > after && at <= until);
    return within.length ? rates(within, limit) : undefined;
  }

  /** The samples up to the one at `index` that cover a time together, or less if there is a gap before. */
  #until(index, ms) {
    let first = index;
    // A little less: samples are not exact to the millisecond.
    const covers = () => this.#samples[index].at - this.#samples[first].from >= ms - 100;
    while (first > 0 && !covers() && this.#samples[first - 1].at === this.#samples[first].from) first -= 1;
    return this.#samples.slice(Math.max(0, first), index + 1);
  }
}

function read({ from_ms, at_ms, failures, counts }) {
  const by_limit = new Map(Object.entries(counts));
  return { from: from_ms, at: at_ms, failures, counts: by_limit.set(ALL, sum([...by_limit.values()])) };
}

function sum(rows) {
  return KINDS.map((_, kind) => rows.reduce((all, row) => all + row[kind], 0));
}

/** Rates per second during these samples. */
function rates(samples, limit) {
  const counts = sum(samples.flatMap(({ counts }) => (counts.has(limit) ? [counts.get(limit)] : [])));
  const seconds = samples.reduce((all, { from, at }) => all + (at - from) / 1_000, 0);
  return Object.fromEntries(KINDS.map((name, kind) => [name, seconds && counts[kind] / seconds]));
}
