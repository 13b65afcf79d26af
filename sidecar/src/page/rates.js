// Turns counters into rates. The sidecar sends totals, so a message that is lost, sent twice or from before a restart
// does no harm: a rate is the difference between two samples of the same process.

/** How far back the chart goes: as far as there are samples, within these bounds. */
const [SHORTEST_MS, SPAN_MS] = [60_000, 300_000];
/**
 * The time over which a rate is taken, in sentences and in the chart. A filter reports its cached denials about once a
 * second, so a rate over a much shorter time would jump.
 */
export const NOW_MS = 5_000;
const CHART_MS = 3_000;
/** Samples further apart than this have a gap between them. Without viewers the sidecar samples every five seconds. */
const HOLE_MS = 12_000;

/** The order of a sample's counts. */
const KINDS = ["admitted", "denied", "unavailable", "error", "shadow_denied"];

const NOTHING = Object.freeze(Object.fromEntries(KINDS.map((kind) => [kind, 0])));

/** Stands for all limits. Not a string: a limit's name may be empty. */
export const ALL = null;

export class RateHistory {
  /** Samples, the oldest first: `{ process, at, counts: Map of limit to numbers by KINDS }`. */
  #samples = [];

  /** The samples that a sidecar kept before this page connected. They replace the known ones of the same process. */
  past(message) {
    const process = message.started_ms;
    const names = message.series.map((series) => series.name);
    const samples = message.samples.map((sample) => read(process, names, sample));
    const first = samples.length ? samples[0].at : Infinity;
    this.#samples = this.#samples.filter((s) => s.process !== process && s.at < first).concat(samples);
  }

  /** Adds the newest sample, unless it is known already. */
  add(snapshot) {
    const last = this.#samples.at(-1);
    const names = snapshot.series.map((series) => series.name);
    const sample = read(snapshot.started_ms, names, snapshot.sample);
    if (last && last.process === sample.process && sample.at <= last.at) return;
    this.#samples.push(sample);
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

  /** For the chart: lists of `{ at, admitted, denied, ... }`, each without gaps. */
  runs(limit = ALL) {
    const runs = [];
    for (let index = 1; index < this.#samples.length; index++) {
      const rate = this.#rate(index, limit, CHART_MS);
      if (!rate) continue;
      const before = this.#samples[index - 1];
      const run = runs.at(-1);
      const point = { at: this.#samples[index].at, ...rate };
      if (run && run.at(-1).at === before.at) run.push(point);
      else runs.push([{ ...point, at: before.at }, point]);
    }
    return runs;
  }

  /** Rates between the sample at `index` and the one that is `over` milliseconds older, or undefined without one. */
  #rate(index, limit, over) {
    const to = this.#samples[index];
    let from;
    for (let older = index - 1; older >= 0; older--) {
      const sample = this.#samples[older];
      const next = this.#samples[older + 1];
      if (sample.process !== to.process || next.at - sample.at > HOLE_MS) break;
      from = sample;
      // A little less than `over`: samples are not exact to the millisecond.
      if (to.at - sample.at >= over - 100) break;
    }
    if (!from) return undefined;
    const [more, less] = [total(to, limit), total(from, limit)];
    const seconds = (to.at - from.at) / 1_000;
    return Object.fromEntries(KINDS.map((kind, index) => [kind, Math.max(0, more[index] - less[index]) / seconds]));
  }
}

function read(process, names, sample) {
  return { process, at: sample.at_ms, counts: new Map(sample.counts.map((counts, index) => [names[index], counts])) };
}

function total(sample, limit) {
  if (limit !== ALL) return sample.counts.get(limit) ?? KINDS.map(() => 0);
  const sum = KINDS.map(() => 0);
  for (const counts of sample.counts.values()) counts.forEach((count, index) => { sum[index] += count; });
  return sum;
}
