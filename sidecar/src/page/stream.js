// The connection to the sidecar: passes messages on, reports when it breaks, and reconnects.

/** Pause before a retry. Short: a sidecar that restarts is back within a second. */
const RETRY_MS = 1_000;
/** Snapshots come every second. After this long without one, the connection counts as dead even without an error. */
const SILENCE_MS = 4_000;

/** Whether the sidecar answers at all. Its probes need no token. */
async function sidecar_answers() {
  try {
    return (await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(RETRY_MS) })).ok;
  } catch {
    return false;
  }
}

/**
 * Listens until the returned function is called. `handlers.past` and `handlers.snapshot` get the messages;
 * `handlers.disconnected` is called when the connection breaks and after each failed retry, with whether the sidecar answers
 * otherwise. If it does, the first retry is awaited: a proxy may end a stream, and a sidecar may restart within a second.
 */
export function listen(url, handlers) {
  let source, watchdog, next, failures = 0, stopped = false;
  const reconnect = async () => {
    clearTimeout(watchdog);
    source.close();
    failures += 1;
    const answers = await sidecar_answers();
    if (stopped) return;
    if (!answers || failures > 1) handlers.disconnected(answers);
    next = setTimeout(open, RETRY_MS);
  };
  const restart_watchdog = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(reconnect, SILENCE_MS);
  };
  const open = () => {
    // EventSource's own retries stop at an answer that is not a stream, and wait longer.
    source = new EventSource(url);
    source.onerror = reconnect;
    for (const kind of ["past", "snapshot"]) {
      source.addEventListener(kind, (event) => {
        failures = 0;
        restart_watchdog();
        handlers[kind](JSON.parse(event.data));
      });
    }
    restart_watchdog();
  };
  open();
  return () => {
    stopped = true;
    clearTimeout(watchdog);
    clearTimeout(next);
    source.close();
  };
}
