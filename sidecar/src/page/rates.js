// Turns counters into rates. The sidecar sends totals, so a message that is lost, sent twice or from before a restart
// does no harm: a rate is the difference between two samples of the same process.

/** How far back the chart goes: as far as there are samples, within these bounds. */
const [SHORTEST_MS, SPAN_MS] = [60_000, 300_000];
/**
 * The time over which a rate is taken, in sentences and in the chart. A filter reports its cached denials about once a
 * second, so a rate over a much shorter time would jump.
 */
const NOW_MS = 5_000;
const CHART_MS = 3_000;
/** Samples further apart than this have a gap between them. Without viewers the sidecar samples every five seconds. */
const HOLE_MS = 12_000;

/** The order of a sample's counts. */
const KINDS = ["admitted", "denied", "unavailable", "error", "shadow_denied"];

const ZERO = Object.freeze(KINDS.map(() => 0));
export const NOTHING = Object.freeze(Object.fromEntries(KINDS.map((kind) => [kind, 0])));

/** Stands for all limits. Not a string: a limit's name may be empty. */
export const ALL = null;

export class RateHistory {
  /**
   * Samples, the oldest first: `{ process, at, after_step, complete, failures, counts, points }`. `counts` is a Map of
   * limit to numbers by KINDS, in which a limit is missing if nothing was counted or, in samples that are not complete,
   * nothing was kept. `points` are the chart's rates up to this sample, computed once.
   */
  #samples = [];

  /** The samples that a sidecar kept before this page connected. They replace the known ones of the same process. */
  past(message) {
    const samples = message.samples.map((sample) => read(message, sample));
    const first = samples.length ? samples[0].at : Infinity;
    this.#samples = this.#samples.filter((s) => s.process !== message.started_ms && s.at < first).concat(samples);
    const names = message.series.map((series) => series.name);
    for (let index = this.#samples.length - samples.length; index < this.#samples.length; index++) this.#chart(index, names);
  }

  /** Adds the newest sample, unless it is known already. */
  add(snapshot) {
    const sample = read(snapshot, snapshot.sample);
    const last = this.#samples.at(-1);
    if (last?.process === sample.process && last.at === sample.at) return;
    if (last?.at > sample.at) {
      // The sidecar's clock was set back.
      sample.after_step = true;
      this.#samples = this.#samples.filter((s) => s.at < sample.at);
    }
    this.#samples.push(sample);
    const charted = snapshot.series.filter((series) => series.charted !== false).map((series) => series.name);
    this.#chart(this.#samples.length - 1, charted);
    if (charted.length < snapshot.series.length) this.#forget(sample.at - HOLE_MS, new Set(charted));
    const oldest = sample.at - SPAN_MS - HOLE_MS;
    while (this.#samples[0].at < oldest) this.#samples.shift();
  }

  /** How far back the chart should go. */
  span(now) {
    const first = this.#samples[0]?.at ?? now;
    return Math.min(SPAN_MS, Math.max(SHORTEST_MS, now - first));
  }

  /** Current rates per second of a limit, or of all limits with `ALL`. */
  now(limit = ALL) {
    return this.#rate(this.#samples.length - 1, limit, NOW_MS) ?? NOTHING;
  }

  /** The kinds of failed store calls that were counted just now, the most frequent first. */
  failing() {
    const newest = this.#samples.length - 1;
    const from = this.#from(newest, ALL, NOW_MS);
    if (!from) return [];
    const grown = Object.entries(this.#samples[newest].failures).map(([kind, count]) => [kind, count - (from.failures[kind] ?? 0)]);
    return grown.filter(([, more]) => more > 0).sort((a, b) => b[1] - a[1]).map(([kind]) => kind);
  }

  /** For the chart: lists of `{ at, admitted, denied, ... }`, each without gaps. Empty for limits that are not charted. */
  runs(limit = ALL) {
    const runs = [];
    if (!this.#samples.at(-1)?.points.has(limit)) return runs;
    for (let index = 1; index < this.#samples.length; index++) {
      const point = this.#samples[index].points.get(limit);
      if (!point) continue;
      const before = this.#samples[index - 1];
      const run = runs.at(-1);
      if (run && run.at(-1).at === before.at) run.push(point);
      else runs.push([{ ...point, at: before.at }, point]);
    }
    return runs;
  }

  /** Mean rates after one time and up to another, or undefined if there are no samples. */
  mean(limit, after, until) {
    const sum = KINDS.map(() => 0);
    let ms = 0;
    for (let index = 1; index < this.#samples.length; index++) {
      const { at } = this.#samples[index];
      const from = at > after && at <= until ? this.#from(index, limit, 0) : undefined;
      if (!from) continue;
      ms += at - from.at;
      differences(this.#samples[index], from, limit).forEach((more, kind) => { sum[kind] += more; });
    }
    return ms > 0 ? per_second(sum, ms) : undefined;
  }

  /** Computes the points of a sample. */
  #chart(index, names) {
    const sample = this.#samples[index];
    for (const name of [ALL, ...names]) {
      const rate = this.#rate(index, name, CHART_MS);
      sample.points.set(name, rate && { at: sample.at, ...rate });
    }
  }

  /** Drops the counts and points of other limits in older samples: there may be thousands. */
  #forget(before, charted) {
    for (const sample of this.#samples) {
      if (sample.at >= before) break;
      for (const kept of [sample.counts, sample.points]) {
        if (kept.size > charted.size + 1) for (const name of kept.keys()) if (name !== ALL && !charted.has(name)) kept.delete(name);
      }
      sample.complete = false;
    }
  }

  /** Rates between the sample at `index` and the one that is `over` milliseconds older, or undefined without one. */
  #rate(index, limit, over) {
    const from = this.#from(index, limit, over);
    return from && per_second(differences(this.#samples[index], from, limit), this.#samples[index].at - from.at);
  }

  /** The sample that is `over` milliseconds older than the one at `index`, or the oldest that can be compared with it. */
  #from(index, limit, over) {
    const to = this.#samples[index];
    let from;
    if (!to || !row(to, limit)) return from;
    for (let older = index - 1; older >= 0; older--) {
      const sample = this.#samples[older];
      const next = this.#samples[older + 1];
      if (sample.process !== to.process || next.after_step || next.at <= sample.at || next.at - sample.at > HOLE_MS) break;
      if (!row(sample, limit)) break;
      from = sample;
      // A little less than `over`: samples are not exact to the millisecond.
      if (to.at - sample.at >= over - 100) break;
    }
    return from;
  }
}

function read({ started_ms, series, left_out }, { at_ms, after_step, total, failures = {}, counts }) {
  const known = counts.flatMap((row, index) => (row ? [[series[index].name, row]] : []));
  const unknown = known.length < counts.length;
  return {
    process: started_ms, at: at_ms, after_step, complete: !left_out && !unknown, failures, points: new Map(),
    counts: new Map([[ALL, total], ...known]),
  };
}

function row(sample, limit) {
  return sample.counts.get(limit) ?? (sample.complete ? ZERO : undefined);
}

function differences(to, from, limit) {
  const [more, less] = [row(to, limit), row(from, limit)];
  return KINDS.map((_, kind) => Math.max(0, more[kind] - less[kind]));
}

function per_second(numbers, ms) {
  return Object.fromEntries(KINDS.map((name, kind) => [name, (1_000 * numbers[kind]) / ms]));
}
