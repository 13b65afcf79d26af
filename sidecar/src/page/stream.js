// The connection to the sidecar: passes messages on, reports when it breaks, and reconnects.

/** Pause before a retry. Short: a sidecar that restarts is back within a second. */
const RETRY_MS = 1_000;
/** Snapshots come every second. After this long without one, the connection counts as dead even without an error. */
const SILENCE_MS = 4_000;

/**
 * Listens until the returned function is called. `handlers.past` and `handlers.snapshot` get the messages;
 * `handlers.unreachable` is called when the connection breaks and after each failed retry.
 */
export function listen(url, handlers) {
  let source, watchdog, next;
  const reconnect = () => {
    clearTimeout(watchdog);
    source.close();
    handlers.unreachable();
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
        restart_watchdog();
        handlers[kind](JSON.parse(event.data));
      });
    }
    restart_watchdog();
  };
  open();
  return () => {
    clearTimeout(watchdog);
    clearTimeout(next);
    source.close();
  };
}
