"""Talks to main.rs over standard output and input: asks it to change the chain."""

import json
import sys
import time


def ask(what):
    """Sends a command to main.rs and returns its answer."""
    print(what, flush=True)
    answer = sys.stdin.readline()
    assert answer, f"main.rs ended during {what!r}"
    return json.loads(answer)


def report(text):
    """Prints a line for whoever runs the test."""
    print(text, flush=True)


def within(seconds, what, holds, pause=0.05):
    """Polls until `holds` returns a true value; returns the value and how long it took."""
    started = time.monotonic()
    while True:
        value = holds()
        took = time.monotonic() - started
        if value:
            return value, took
        assert took < seconds, f"not within {seconds} s: {what}"
        time.sleep(pause)
