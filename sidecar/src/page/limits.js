// The rows of the table of limits. Pure.

/** The limits of the policy, and others that had decisions in the last minutes. Denying limits come first; otherwise rows keep their order. */
export function limits({ policy, denying, top, now_ms, up_ms }, history) {
  const windows = new Map(policy.limits.map((limit) => [limit.name, limit.windows]));
  const denials = new Map(Object.entries(denying));
  const reserves = new Map(top.limits.map((limit) => [limit.limit, limit.reserves]));
  // Decisions of an earlier process are in the chart only.
  const counted = new Set(history.limits(now_ms - up_ms));
  const rows = [...new Set([...windows.keys(), ...counted])].map((name) => {
    const run = denials.get(name);
    return {
      name,
      windows: windows.get(name),
      reserves: reserves.get(name),
      denies: run?.goes_on ?? false,
      since: run?.since_ms,
      last: run?.last_ms,
      now: history.now(name),
      // Most of thousands of limits have no chart.
      runs: counted.has(name) ? history.runs(name) : [],
    };
  });
  return rows.sort((a, b) => b.denies - a.denies);
}
