"""The page's pure scripts alone: the sentence for each state, and the rates from totals."""

NONE = {"admitted": 0, "denied": 0, "unavailable": 0, "error": 0, "shadow_denied": 0}
NOW = 1_700_000_000_000  # 22:13:20 UTC


def rates(**some):
    return {**NONE, **some}


def limit(name, denied=0, since=None, last=None):
    since, last = since and NOW - since, last and NOW - last
    return {"name": name, "now": rates(denied=denied), "denies": last is not None and NOW - last < 30_000, "since": since, "last": last}


def view(**changed):
    quiet = {
        "now": NOW, "up": 3_600_000, "store": {"name": "Redis", "state": "answers", "sidecars": 2},
        "policy": {"epoch": 3, "refused": None}, "limits": [limit("a"), limit("b")], "total": NONE, "top": [], "events": [], "failing": [],
    }
    return {**quiet, **changed}


LOST = {"name": "Redis", "state": "lost", "since_ms": NOW - 60_000, "why": "no answer from the store within 20ms", "sidecars": 2}
MEMORY = {"name": "the sidecar's memory", "state": "answers", "sidecars": 1}
BACK = [{"kind": "store_back", "at_ms": NOW - 5_000, "detail": "after 4.5 s", "times": 1}]
SHARES = {"limit": "a", "denied_total": 1000, "most_denied": [{"subject": "0123456789abcdef0123", "count": 970, "error": 3}]}
MANY = {**SHARES, "most_denied": [{"subject": "0123456789abcdef0123", "count": 40, "error": 3}]}
SPARSE = [limit("a", 0, since=180_000, last=12_000), limit("b")]
A = [limit("a", 120, since=180_000, last=500), limit("b")]
MORE = [limit("b", 12, 40_000, 500), limit("", 0.3, 1_000, 500), *A, limit("c", 1, 7_500_000, 500)]

# The state, and the tone, the headline and a note that it must give.
SENTENCES = [
    (view(), "calm", "Nobody is being limited.", "No requests right now."),
    (view(total=rates(admitted=1234.4)), "calm", "Nobody is being limited.", "1,234 requests/s are admitted."),
    (view(limits=[limit("a", 0, 90_000, 60_000)]), "calm", "Nobody is being limited.",
     "No requests right now. The last 429 was 60 s ago, on a."),
    (view(limits=A, total=rates(denied=120, admitted=30), top=[SHARES]), "them", "429s: 120/s on a for 3 min.",
     "One subject, 0123456789abcdef0123, gets 97 % of a's 429s."),
    (view(limits=A, total=rates(denied=120, admitted=30), top=[MANY]), "them", "429s: 120/s on a for 3 min.",
     "Many subjects share a's 429s: the most denied, 0123456789abcdef0123, gets 4 %. The limit may be too low for the demand."),
    (view(limits=A, total=rates(denied=120, admitted=30)), "them", "429s: 120/s on a for 3 min.", "80 % of 150 requests/s are denied."),
    (view(limits=MORE, total=rates(denied=133)), "them",
     "429s: 120/s on a for 3 min, 12/s on b for 40 s and 2 more limits.", "100 % of 133 requests/s are denied."),
    # A denial each 15 seconds.
    (view(limits=SPARSE, total=rates(admitted=3)), "them", "429s: on a for 3 min, the last 12 s ago.", None),
    (view(limits=SPARSE), "them", "429s: on a for 3 min, the last 12 s ago.", None),
    (view(store=LOST, total=rates(unavailable=35)), "us", "Redis has not answered since 22:12:20.",
     "35 requests/s get no verdict: the limit's when_store_is_down or the rule's when_unavailable lets them pass unmetered or answers 503."),
    (view(store=LOST), "us", "Redis has not answered since 22:12:20.", "No answer from the store within 20ms. The sidecar keeps retrying."),
    (view(store=LOST), "us", "Redis has not answered since 22:12:20.", "This sidecar enforces its share of each limit, unless the limit's when_store_is_down says otherwise."),
    (view(store={**LOST, "sidecars": 0}), "us", "Redis has not answered since 22:12:20.",
     "This sidecar has never reached the store, so it has no share."),
    # Both at once: the trouble on our side comes first.
    (view(store=LOST, limits=A, total=rates(denied=120)), "us", "Redis has not answered since 22:12:20.", "429s: 120/s on a for 3 min."),
    (view(total=rates(unavailable=2)), "us", "2 requests/s get no verdict.", "Each rule's when_unavailable lets them pass unmetered or answers 503."),
    (view(total=rates(unavailable=2), failing=["timeout", "connection"]), "us", "2 requests/s get no verdict.",
     "Redis answers, but too slowly: not within store_timeout."),
    (view(total=rates(unavailable=2), failing=["timeout", "connection"]), "us", "2 requests/s get no verdict.", "Redis breaks connections."),
    (view(total=rates(unavailable=2), failing=["state"]), "us", "2 requests/s get no verdict.",
     "Redis has a key with data that the sidecar did not write; the sidecar's log has the error."),
    (view(total=rates(unavailable=2), failing=["full"], store=MEMORY), "us", "2 requests/s get no verdict.",
     "The sidecar's memory has reached the policy's memory_limit: new keys get no verdict until something expires."),
    # Requests without a verdict just after an outage belong to it.
    (view(total=rates(unavailable=2), events=BACK), "calm", "Nobody is being limited.",
     "Redis was down until 22:13:15; it came back after 4.5 s."),
    # The clock was set back after that outage: it was hours ago.
    (view(total=rates(unavailable=50), events=[{**BACK[0], "before_step": True}], failing=["timeout"]), "us", "50 requests/s get no verdict.",
     "Redis answers, but too slowly: not within store_timeout."),
    (view(total=rates(unavailable=2), events=[{**BACK[0], "at_ms": NOW + 1_800_000}]), "us", "2 requests/s get no verdict.", None),
    (view(policy={"epoch": 3, "refused": "line 4: no"}), "us", "Nobody is being limited.",
     "The policy file was refused; epoch 3 stays in force: line 4: no"),
    (view(policy={"epoch": 3, "refused": "line 4: no"}, limits=A, total=rates(denied=120)), "them", "429s: 120/s on a for 3 min.",
     "The policy file was refused; epoch 3 stays in force: line 4: no"),
    (view(total=rates(error=0.02)), "calm", "Nobody is being limited.",
     "<0.1 requests/s cannot be decided, for example because they cost more than their limit ever admits."),
    (view(total=rates(error=50), policy={"epoch": 3, "refused": None, "unknown_limits": ["login"]}), "us",
     "Requests ask for limit login, which the policy does not have.",
     "50 requests/s get no verdict: each rule's when_unavailable lets them pass unmetered or answers 503. "
     "Compare rules and policy with sluicegate check-config."),
    (view(policy={"epoch": 3, "refused": None, "unknown_limits": ["login", "a", "b"]}), "us",
     "Requests ask for limit login and 2 more, which the policy does not have.", None),
    (view(total=rates(shadow_denied=7)), "calm", "Nobody is being limited.", "Shadow rules would have denied 7 requests/s."),
    (view(up=20_000), "calm", "Nobody is being limited.", "This sidecar started 20 s ago."),
    (view(unreachable_since=NOW - 9_000), "us", "The sidecar has not answered since 22:13:11.", "Everything below is the last known state."),
    (view(unreachable_since=NOW - 9_000), "us", "The sidecar has not answered since 22:13:11.",
     "If the sidecar is away, Envoy applies each rule's when_unavailable: requests pass unmetered or get a 503. This page retries every second."),
    ({"now": NOW, "unreachable_since": NOW - 9_000}, "us", "The sidecar does not answer.", None),
    # It answers others: requests are decided.
    ({"now": NOW, "unreachable_since": NOW - 9_000, "answers": True}, "wait",
     "This page cannot get its data (too many viewers, or another token).",
     "The sidecar itself answers. This page retries every second; reload it to enter another token."),
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
        assert any("was down until" in one for one in summary["notes"]) == (state.get("events") == BACK), (state, summary)
        slow = any("too slowly" in one for one in summary["notes"])
        assert slow == ("timeout" in state.get("failing", [])), (state, summary)
        assert "NaN" not in str(summary), summary


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
        const sum = (rows) => rows.reduce((all, row) => all.map((count, kind) => count + row[kind]), [0, 0, 0, 0, 0]);
        const at = (second, ...denied) => {
            const counts = denied.map((count) => [10 * count, count, 0, 0, 0]);
            return { at_ms: 1000 * second, counts, total: sum(counts) };
        };
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
        // The clock is set back by an hour, and then requests are denied.
        for (let second = 1; second <= 60; second++) add(3, ["a"], at(10000 + second, 0));
        for (let second = 1; second < 600; second++) add(3, ["a"], at(6460 + second, 100 * second));
        const after = history.runs("a").flat();
        found.step = [history.now("a").denied, after.every((point) => point.denied >= 0), after.length < 320];
        // One who comes now gets what the sidecar kept, in whatever order.
        const late = new RateHistory();
        late.past({ started_ms: 3, series: series("a"), samples: [at(10059, 59), at(10060, 60), at(6461, 61), at(6462, 62)] });
        late.add({ started_ms: 3, series: series("a"), sample: at(6463, 63) });
        found.late = [late.now("a").denied, Math.min(...late.runs("a").flat().map((point) => point.denied))];
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
        "step": [100, True, True],
        "late": [1, 1],
    }, found


def many(page, folder, monitor):
    """thousands of limits cost little: rates are computed once, and none for limits without decisions"""
    steps, rows = page.evaluate("""async () => {
        const { RateHistory } = await import("/page/rates.js");
        const { limits } = await import("/page/limits.js");
        const names = (count) => [...Array(count).keys()].map((number) => ({ name: `limit-${number}`, windows: [] }));
        const [policy, series, history] = [{ limits: names(2000) }, names(129), new RateHistory()];
        const snapshot = (second) => ({ started_ms: 1, policy, series, sample: {
            at_ms: 1000 * second, total: [1290 * second, 0, 0, 0, 0], counts: series.map(() => [10 * second, 0, 0, 0, 0]),
        } });
        for (let second = 0; second < 310; second++) history.add(snapshot(second));
        // Every count of a sample is looked up in a Map.
        const get = Map.prototype.get;
        let steps = 0;
        Map.prototype.get = function (key) { steps += 1; return get.call(this, key); };
        try {
            history.add(snapshot(310));
            const rows = limits(snapshot(310), history);
            return [steps, rows.map((row) => [row.now.admitted, row.runs.length])];
        } finally {
            Map.prototype.get = get;
        }
    }""")
    assert rows == 129 * [[10, 1]] + 1871 * [[0, 0]], rows
    # At most two for each sample and charted limit; it was more than a million with rates of all limits for all samples.
    assert steps < 2 * 310 * 129, steps


def left_out(page, folder, monitor):
    """a limit whose earlier counts were not kept has a rate as soon as two snapshots have it, and never one from 0"""
    found = page.evaluate("""async () => {
        const { RateHistory, ALL } = await import("/page/rates.js");
        const history = new RateHistory();
        const sample = (second, total, ...counts) => ({ at_ms: 1000 * second, total: [0, total, 0, 0, 0],
            counts: counts.map((denied) => denied === null ? null : [0, denied, 0, 0, 0]) });
        const found = [];
        history.past({ started_ms: 1, left_out: true, series: [{ name: "a" }, { name: "new" }], samples: [sample(1, 900, 1, null), sample(2, 1000, 2, 5)] });
        for (let second = 3; second < 40; second++) {
            history.add({ started_ms: 1, sample: sample(second, 800 + 100 * second, second, 1, 99 * second), series: [
                { name: "a", charted: true }, { name: "new", charted: true }, { name: "b", charted: false }] });
            found.push([history.now("b").denied, history.now("a").denied, history.now(ALL).denied]);
        }
        return [found[0], found[1], found.at(-1), history.runs("a").flat().length, history.runs("b").length, history.runs("new")[0][0].at];
    }""")
    assert found == [[0, 1, 100], [99, 1, 100], [99, 1, 100], 39, 0, 2000], found


def returned(page, folder, monitor):
    """a limit that comes back after minutes has no rate from 0, whether or not its count was sent meanwhile"""
    found = page.evaluate("""async () => {
        const { RateHistory } = await import("/page/rates.js");
        const { limits } = await import("/page/limits.js");
        const policy = { limits: [{ name: "a", windows: [] }] };
        const found = [];
        for (const sent of [true, false]) {
            const history = new RateHistory();
            const seen = [];
            for (let second = 0; second < 102; second++) {
                const back = Math.max(0, second - 99);
                const rows = [["a", [second, 0, 0, 0, 0]], ["", [0, 0, 0, 5000 + back, 0]]].slice(0, back || sent ? 2 : 1);
                const snapshot = {
                    started_ms: 1, policy, left_out: !sent && !back,
                    series: rows.map(([name]) => ({ name, charted: true, unlisted: name === "" && !back })),
                    sample: { at_ms: 1000 * second, total: [second, 0, 0, 5000 + back, 0], counts: rows.map(([, counts]) => counts) },
                };
                history.add(snapshot);
                seen.push([limits(snapshot, history).map((limit) => limit.name), history.now("").error, history.now().error]);
            }
            found.push([...seen.slice(-3), Math.max(...history.runs("").flat().map((point) => point.error))]);
        }
        return found;
    }""")
    quiet, both = [["a"], 0, 0], ["a", ""]
    # What was sent is exact; of what was not, the first difference is unknown.
    assert found == [[quiet, [both, 0.2, 0.2], [both, 0.4, 0.4], 2 / 3], [quiet, [both, 0, 0.2], [both, 1, 0.4], 1]], found


def means(page, folder, monitor):
    """the chart's table has the true means, however often samples were taken"""
    found = page.evaluate("""async () => {
        const { RateHistory } = await import("/page/rates.js");
        const history = new RateHistory();
        const samples = [[0, 0], [5, 500], [10, 1000], [11, 1000], [12, 1000], [13, 1000], [14, 1000], [15, 1000]];
        history.past({ started_ms: 1, series: [{ name: "a" }], samples: samples.map(([second, admitted]) => ({
            at_ms: 1000 * second, total: [admitted, 0, 0, 0, 0], counts: [[admitted, 0, 0, 0, 0]] })) });
        return [history.mean("a", 0, 15000).admitted, history.mean("a", 15000, 30000) ?? null];
    }""")
    assert found == [1000 / 15, None], found


def axes(page, folder, monitor):
    """large numbers are short, and no two labels of the chart overlap or are cut off, at any moment on a phone"""
    found = page.evaluate("""async () => {
        const { Chart } = await import("/page/chart.js");
        const { rate } = await import("/page/summary.js");
        const box = document.body.appendChild(document.createElement("div"));
        box.className = "chart";
        box.style.width = "309px";
        const chart = new Chart(box, document.createElement("p"));
        const problems = [];
        await new Promise((resolve) => { new ResizeObserver(() => requestAnimationFrame(resolve)).observe(box); });
        const room = box.getBoundingClientRect();
        for (const [span, top] of [[60_000, 50_000], [300_000, 9_000]]) for (let now = 1_700_000_000_000; now < 1_700_000_060_000; now += 1_000) {
            const point = { at: now, admitted: top, denied: 0, unavailable: 0 };
            chart.draw({ runs: [[{ ...point, at: now - 1000 }, point]], now, span, marks: [] });
            const boxes = [...box.querySelectorAll(".grid text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
            for (const [text, a] of boxes) {
                if (a.left < room.left - 1 || a.right > room.right + 1) problems.push(`${text} is cut off`);
                for (const [other, b] of boxes) {
                    const apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
                    if (text !== other && !apart) problems.push(`${text} and ${other} overlap`);
                }
            }
        }
        box.remove();
        return [[...new Set(problems)], [9999, 10194, 50000, 1234567].map(rate)];
    }""")
    assert found == [[], ["9,999", "10.2K", "50K", "1.23M"]], found


IN_ORDER = [sentences, leases, totals, many, left_out, returned, means, axes]
