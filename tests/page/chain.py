"""The other end of main.rs: asks it to do things to the chain, over standard output and input."""

import json
import sys
import time


def ask(what):
    """Has it done, and gives what it says of it."""
    print(what, flush=True)
    answer = sys.stdin.readline()
    assert answer, f"the test has gone away at {what!r}"
    return json.loads(answer)


def say(text):
    """For whoever runs the test."""
    print(text, flush=True)


def within(seconds, what, holds, pause=0.05):
    """Waits until a condition gives something, and gives that and how long it took."""
    started = time.monotonic()
    while True:
        value = holds()
        took = time.monotonic() - started
        if value:
            return value, took
        assert took < seconds, f"not within {seconds} s: {what}"
        time.sleep(pause)
