"""Calls an API behind Envoy and obeys its 429s. Standard library only.

    python3 client.py --calls 5 --key my-api-key http://127.0.0.1:10000/

With `--sidecar`, it asks the sidecar before each call, as a job does whose calls do not pass through Envoy:

    python3 client.py --sidecar http://127.0.0.1:9180 --limit per-key --key nightly http://api.example.com/
"""

import argparse
import email.utils
import itertools
import json
import random
import sys
import time
import urllib.error
import urllib.request

FIRST_WAIT = 1.0  # seconds, where a 429 does not say how long; doubles each time
LONGEST_WAIT = 60.0  # seconds; whoever is told to wait longer has something better to do
JITTER = 0.1  # of the wait, on top of it: clients that were denied together must not return together


class GaveUp(Exception):
    """The call would have to wait longer than it may."""


def seconds_to_wait(headers, attempt):
    """What Retry-After says, in seconds or as a date; without one, more with each attempt."""
    value = headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    date = email.utils.parsedate_tz(value)
    if date:
        return max(FIRST_WAIT, email.utils.mktime_tz(date) - time.time())  # the two clocks may differ
    return FIRST_WAIT * 2**attempt


def wait(seconds, deadline):
    """Sleeps at least so long, or gives up at once if that is too long."""
    seconds *= 1 + random.uniform(0, JITTER)
    if seconds > LONGEST_WAIT or time.monotonic() + seconds > deadline:
        raise GaveUp(f"denied: try again in {seconds:.1f} s")
    print(f"denied: waiting {seconds:.1f} s", file=sys.stderr)
    time.sleep(seconds)


def get(url, headers, deadline):
    """A GET that waits as long as 429s say; the body of the answer."""
    for attempt in itertools.count():
        timeout = max(0.1, deadline - time.monotonic())
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 429:
                    raise
                wait(seconds_to_wait(error.headers, attempt), deadline)


def ask(sidecar, limit, key, cost, deadline):
    """Waits until the sidecar admits: the units are taken then."""
    question = json.dumps({"decisions": [{"checks": [{"limit": limit, "key": key, "cost": cost}]}]})
    while True:
        request = urllib.request.Request(f"{sidecar}/v1/decide", question.encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            verdict = json.load(answer)["verdicts"][0]
        if verdict["outcome"] == "admitted":
            return
        if verdict["outcome"] != "denied":
            raise GaveUp(verdict.get("message", "the limiter's store is unavailable"))
        wait(verdict["retry_after_ms"] / 1000, deadline)


def main():
    parser = argparse.ArgumentParser(description="Calls an API and obeys its rate limit.")
    parser.add_argument("url")
    parser.add_argument("-key", "--key", default="anonymous")
    parser.add_argument("-calls", "--calls", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds for all calls")
    parser.add_argument("--sidecar", help="ask this sidecar before each call")
    parser.add_argument("--limit", default="per-key", help="the limit to ask for")
    options = parser.parse_args()
    deadline = time.monotonic() + options.deadline
    for number in range(options.calls):
        if options.sidecar:
            ask(options.sidecar, options.limit, options.key, 1, deadline)
        get(options.url, {"x-api-key": options.key}, deadline)
        print(f"call {number + 1}: done")


if __name__ == "__main__":
    try:
        main()
    except (GaveUp, urllib.error.URLError) as error:
        sys.exit(f"client: {error}")
