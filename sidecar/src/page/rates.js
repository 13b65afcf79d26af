// From counters to rates. The sidecar sends totals, so a message that is lost, sent twice or from before a restart
// does no harm: a rate is what was counted between two samples of the same process.

/** How far back the chart goes: as far as there are samples, within these. */
const [SHORTEST_MS, SPAN_MS] = [60_000, 300_000];
/**
 * What a rate is taken over, in sentences and in the chart. A filter reports its own denials about once a second: over
 * much less, it would jump.
 */
export const NOW_MS = 5_000;
const CHART_MS = 3_000;
/** Samples further apart than this have a hole between them: it takes one in five seconds while nobody looks. */
const HOLE_MS = 12_000;

/** The places of a sample's counts. */
const KINDS = ["admitted", "denied", "unavailable", "error", "shadow_denied"];

const NOTHING = Object.freeze(Object.fromEntries(KINDS.map((kind) => [kind, 0])));

/** In place of a limit's name, which may be empty. */
export const ALL = null;

export class Track {
  /** Samples, the oldest first: `{ process, at, counts: Map of limit to numbers by KINDS }`. */
  #samples = [];

  /** What a sidecar knows of the time before we came: it replaces what we had of the same process. */
  past(message) {
    const process = message.started_ms;
    const names = message.series.map((series) => series.name);
    const samples = message.samples.map((sample) => read(process, names, sample));
    const first = samples.length ? samples[0].at : Infinity;
    this.#samples = this.#samples.filter((s) => s.process !== process && s.at < first).concat(samples);
  }

  /** The newest sample; one that is known already is passed over. */
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

  /** Rates per second of a limit, or of all with `ALL`, around now. */
  now(limit = ALL) {
    return this.#rate(this.#samples.length - 1, limit, NOW_MS) ?? NOTHING;
  }

  /** For the chart: lists of `{ at, admitted, denied, ... }` without a hole in any of them. */
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

  /** Per second between the sample at `index` and the one that is `NOW_MS` older, if there is any before. */
  #rate(index, limit, over) {
    const to = this.#samples[index];
    let from;
    for (let older = index - 1; older >= 0; older--) {
      const sample = this.#samples[older];
      const next = this.#samples[older + 1];
      if (sample.process !== to.process || next.at - sample.at > HOLE_MS) break;
      from = sample;
      // A little less than asked for: samples are not to the millisecond.
      if (to.at - sample.at >= over - 100) break;
    }
    if (!from) return undefined;
    const [more, less] = [total(to, limit), total(from, limit)];
    const seconds = (to.at - from.at) / 1_000;
    return Object.fromEntries(KINDS.map((kind, at) => [kind, Math.max(0, more[at] - less[at]) / seconds]));
  }
}

function read(process, names, sample) {
  return { process, at: sample.at_ms, counts: new Map(sample.counts.map((counts, place) => [names[place], counts])) };
}

function total(sample, limit) {
  if (limit !== ALL) return sample.counts.get(limit) ?? KINDS.map(() => 0);
  const sum = KINDS.map(() => 0);
  for (const counts of sample.counts.values()) counts.forEach((count, at) => { sum[at] += count; });
  return sum;
}
