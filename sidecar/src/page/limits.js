// The rows of the table of limits. Pure.

import { NOTHING } from "./rates.js";

/** The limits of the policy, and others that had decisions in the last minutes. Denying limits come first; otherwise rows keep their order. */
export function limits({ policy, series }, history) {
  const windows = new Map(policy.limits.map((limit) => [limit.name, limit.windows]));
  const known = new Map(series.filter((one) => !one.unlisted).map((one) => [one.name, one]));
  const rows = [...new Set([...windows.keys(), ...known.keys()])].map((name) => {
    const one = known.get(name);
    return {
      name,
      windows: windows.get(name),
      denies: one?.denies ?? false,
      since: one?.denying_since_ms ?? undefined,
      last: one?.denying_last_ms ?? undefined,
      now: one ? history.now(name) : NOTHING,
      runs: one ? history.runs(name) : [],
    };
  });
  return rows.sort((a, b) => b.denies - a.denies);
}
