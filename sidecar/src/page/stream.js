// The connection to the sidecar: tells what comes, and when it breaks off; tries again until it is there.

/** Pause before another attempt. Short: a sidecar that restarts is back within a second. */
const AGAIN_MS = 1_000;
/** A snapshot comes every second. So long without one, and the connection is dead even if nobody has said so. */
const SILENCE_MS = 4_000;

/**
 * Listens until the function that it gives is called. `heard.past` and `heard.snapshot` get what is sent, `heard.away` is called when the
 * sidecar is not to be reached, again with each attempt that fails.
 */
export function listen(url, heard) {
  let source, watchdog, next;
  const again = () => {
    clearTimeout(watchdog);
    source.close();
    heard.away();
    next = setTimeout(open, AGAIN_MS);
  };
  const alive = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(again, SILENCE_MS);
  };
  const open = () => {
    // Its own attempts stop at an answer that is not a stream, and wait for longer: so they are made here.
    source = new EventSource(url);
    source.onerror = again;
    for (const kind of ["past", "snapshot"]) {
      source.addEventListener(kind, (event) => {
        alive();
        heard[kind](JSON.parse(event.data));
      });
    }
    alive();
  };
  open();
  return () => {
    clearTimeout(watchdog);
    clearTimeout(next);
    source.close();
  };
}
