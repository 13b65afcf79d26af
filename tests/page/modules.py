"""The page's pure scripts alone: the sentence for each state, and the rates from totals."""

NONE = {"admitted": 0, "denied": 0, "unavailable": 0, "error": 0, "shadow_denied": 0}
NOW = 1_700_000_000_000  # 22:13:20 UTC


def rates(**some):
    return {**NONE, **some}


def limit(name, denied=0, since=None, last=None):
    return {"name": name, "now": rates(denied=denied), "since": since and NOW - since, "last": last and NOW - last}


def view(**changed):
    quiet = {
        "now": NOW, "started": NOW - 3_600_000, "store": {"name": "Redis", "state": "answers"},
        "policy": {"epoch": 3, "refused": None}, "limits": [limit("a"), limit("b")], "total": NONE, "top": [], "events": [],
    }
    return {**quiet, **changed}


LOST = {"name": "Redis", "state": "lost", "since_ms": NOW - 60_000, "why": "no answer from the store within 20ms"}
BACK = [{"kind": "store_back", "at_ms": NOW - 5_000, "detail": "after 4.5 s", "times": 1}]
SHARES = {"limit": "a", "denied_total": 1000, "most_denied": [{"subject": "0123456789ab", "count": 970, "error": 3}]}
MANY = {**SHARES, "most_denied": [{"subject": "0123456789ab", "count": 40, "error": 3}]}
A = [limit("a", 120, since=180_000, last=500), limit("b")]
MORE = [limit("b", 12, 40_000, 500), limit("", 0.3, 1_000, 500), *A, limit("c", 1, 7_500_000, 500)]

# The state, and the tone, the headline and a note that it must give.
SENTENCES = [
    (view(), "calm", "Nobody is being limited.", "No requests right now."),
    (view(total=rates(admitted=1234.4)), "calm", "Nobody is being limited.", "1,234 requests/s are admitted."),
    (view(limits=[limit("a", 0, 90_000, 60_000)]), "calm", "Nobody is being limited.",
     "No requests right now. The last 429 was 60 s ago, on a."),
    (view(limits=A, total=rates(denied=120, admitted=30), top=[SHARES]), "them", "429s: 120/s on a for 3 min.",
     "One subject, 0123456789ab, gets 97 % of a's 429s."),
    (view(limits=A, total=rates(denied=120, admitted=30), top=[MANY]), "them", "429s: 120/s on a for 3 min.",
     "Many subjects share a's 429s: the most denied, 0123456789ab, gets 4 %. The limit may be too low for the demand."),
    (view(limits=A, total=rates(denied=120, admitted=30)), "them", "429s: 120/s on a for 3 min.", "80 % of 150 requests/s are denied."),
    (view(limits=MORE, total=rates(denied=133)), "them",
     "429s: 120/s on a for 3 min, 12/s on b for 40 s and 2 more limits.", "100 % of 133 requests/s are denied."),
    (view(store=LOST, total=rates(unavailable=35)), "us", "Redis has not answered since 22:12:20.",
     "35 requests/s get no verdict: the limit's when_store_is_down or the rule's when_unavailable lets them pass unmetered or answers 503."),
    (view(store=LOST), "us", "Redis has not answered since 22:12:20.", "No answer from the store within 20ms. The sidecar keeps retrying."),
    (view(store=LOST), "us", "Redis has not answered since 22:12:20.", "This sidecar enforces its share of each limit, unless the limit's when_store_is_down says otherwise."),
    # Both at once: the trouble on our side comes first.
    (view(store=LOST, limits=A, total=rates(denied=120)), "us", "Redis has not answered since 22:12:20.", "429s: 120/s on a for 3 min."),
    (view(total=rates(unavailable=2)), "us", "2 requests/s get no verdict in time.", None),
    # Requests without a verdict just after an outage belong to it.
    (view(total=rates(unavailable=2), events=BACK), "calm", "Nobody is being limited.",
     "Redis was down until 22:13:15; it came back after 4.5 s."),
    (view(policy={"epoch": 3, "refused": "line 4: no"}), "us", "Nobody is being limited.",
     "The policy file was refused; epoch 3 stays in force: line 4: no"),
    (view(policy={"epoch": 3, "refused": "line 4: no"}, limits=A, total=rates(denied=120)), "them", "429s: 120/s on a for 3 min.",
     "The policy file was refused; epoch 3 stays in force: line 4: no"),
    (view(total=rates(error=0.02)), "calm", "Nobody is being limited.",
     "<0.1 requests/s cannot be decided, for example because they name a limit that the policy does not have: "
     "compare rules and policy with sluicegate check-config."),
    (view(total=rates(shadow_denied=7)), "calm", "Nobody is being limited.", "Shadow rules would have denied 7 requests/s."),
    (view(started=NOW - 20_000), "calm", "Nobody is being limited.", "This sidecar started 20 s ago."),
    (view(unreachable_since=NOW - 9_000), "us", "The sidecar has not answered since 22:13:11.", "Everything below is the last known state."),
    ({"now": NOW, "unreachable_since": NOW - 9_000}, "us", "The sidecar does not answer.", None),
]


def sentences(page, folder, monitor):
    """the sentence for every state says who is limited, by what, since when, and whose fault it is"""
    for state, tone, headline, note in SENTENCES:
        summary = page.evaluate(
            # None stands for a missing field, as in the page.
            """async (state) => (await import("/page/summary.js")).summarize(
                JSON.parse(JSON.stringify(state), (key, value) => (value === null && key !== "refused" ? undefined : value)))""",
            state,
        )
        assert (summary["tone"], summary["headline"]) == (tone, headline), (state, summary)
        assert note is None or note in summary["notes"], (state, summary)


# What leases hold and have spent, and the line that it must give.
LEASES = [
    (None, ""),
    ({"held": 0, "spent": 0}, "Leases hold 0 units; 0 were spent without a call."),
    ({"held": 1, "spent": 12345}, "Leases hold 1 unit; 12,345 were spent without a call."),
]


def leases(page, folder, monitor):
    """the line about leases says what they hold and have spent"""
    for state, line in LEASES:
        found = page.evaluate("""async (state) => (await import("/page/summary.js")).leasesText(state ?? undefined)""", state)
        assert found == line, (state, found)


def totals(page, folder, monitor):
    """rates survive lost and repeated messages, restarts and gaps"""
    found = page.evaluate("""async () => {
        const { RateHistory, ALL } = await import("/page/rates.js");
        const series = (...names) => names.map((name) => ({ name }));
        const at = (second, ...counts) => ({ at_ms: 1000 * second, counts: counts.map((denied) => [10 * denied, denied, 0, 0, 0]) });
        const history = new RateHistory();
        const add = (started_ms, names, sample) => history.add({ started_ms, series: series(...names), sample });
        const ends = () => history.runs().map((run) => [run[0].at / 1000, run.at(-1).at / 1000]);
        const found = {};
        history.past({ started_ms: 1, series: series("a"), samples: [at(0, 0), at(5, 50), at(6, 60)] });
        found.past = [history.now("a").denied, history.now("a").admitted];
        // Seconds 7 and 8 are lost, 9 comes twice, and a second limit appears.
        add(1, ["a", "b"], at(9, 90, 3));
        add(1, ["a", "b"], at(9, 90, 3));
        add(1, ["a", "b"], at(10, 100, 8));
        found.lost = [history.now("a").denied, history.now("b").denied, history.now(ALL).denied, history.now("nobody").denied];
        found.one = ends();
        // The past is sent again: no sample is kept twice.
        const before = history.runs()[0].length;
        history.past({ started_ms: 1, series: series("a", "b"), samples: [at(0, 0), at(5, 50), at(6, 60), at(9, 90, 3), at(10, 100, 8)] });
        found.again = history.runs()[0].length === before;
        // A new process counts from 0; its limits are in another order.
        history.past({ started_ms: 2, series: series("b", "a"), samples: [at(13, 0, 0)] });
        add(2, ["b", "a"], at(14, 1, 20));
        found.restarted = [history.now("a").denied, history.now("b").denied];
        found.two = ends();
        // After a silence there is a gap, and no rate across it.
        add(2, ["b", "a"], at(40, 1, 1000));
        found.hole = [history.now("a").denied, history.runs().length];
        // Samples older than the chart are dropped.
        for (let second = 41; second < 1000; second++) add(2, ["b", "a"], at(second, 1, 1000));
        const all = history.runs().flat();
        found.bounded = all.length < 320 && 1000 * 999 - all[0].at < 320_000;
        return found;
    }""")
    assert found == {
        "past": [10, 100],
        "lost": [10, 8 / 5, 10 + 8 / 5, 0],
        "one": [[0, 10]],
        "again": True,
        "restarted": [20, 1],
        "two": [[0, 10], [13, 14]],
        "hole": [0, 2],
        "bounded": True,
    }, found
