// The rows of the tables of limits and of slots, and the command for a subject. Pure.

/** The limits of the policy, and others that had decisions in the last minutes. Denying limits come first; otherwise rows keep their order. */
export function limits({ policy, denying, top, reserved = {}, now_ms, up_ms }, history) {
  const windows = new Map(policy.limits.map((limit) => [limit.name, limit.windows]));
  const denials = new Map(Object.entries(denying));
  const in_flight = new Map(Object.entries(reserved));
  const reserves = new Map(top.limits.map((limit) => [limit.limit, limit.reserves]));
  // Decisions of an earlier process are in the chart only.
  const counted = new Set(history.limits(now_ms - up_ms));
  const rows = [...new Set([...windows.keys(), ...counted])].map((name) => {
    const run = denials.get(name);
    return {
      name,
      windows: windows.get(name),
      reserves: reserves.get(name),
      reserved: in_flight.get(name),
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

/** Limits that are shown with their slots. */
const SHOWN = 8;

/** The limits with the most slots in use, and whose the oldest is: its Envoy's node id, its filter, or the sidecar that granted it. */
export function slots(all) {
  const rows = all.map(({ in_use, oldest }) => {
    const { limit: name, subject, consumer, since_seconds, node, vm, granted_by, outlived = false } = oldest;
    const who = node || (vm ? `filter ${vm.slice(0, 8)}` : `sidecar ${granted_by}`);
    return { name, in_use, subject: consumer ?? subject, for_ms: since_seconds * 1_000, outlived, who };
  });
  return rows.sort((a, b) => b.in_use - a.in_use).slice(0, SHOWN);
}

/** The command that lifts a limit for a subject or a consumer for an hour. It is pasted into a shell, so names are quoted. */
export function overrideCommand({ limit, subject, consumer }, origin) {
  const word = (text) => (/^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const whom = consumer === undefined ? `--subject ${subject}` : `--consumer ${word(consumer)}`;
  const admin = origin === "http://127.0.0.1:9181" ? "" : ` --admin ${word(origin)}`;
  return `sluicegate override set --limit ${word(limit)} ${whom} --unlimited --for 1h${admin}`;
}
