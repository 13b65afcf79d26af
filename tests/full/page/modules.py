"""The page's pure scripts alone: the sentence for each state, and the rates from samples."""

import shlex

from page_checks import PHONE, SCREEN

NONE = {"admitted": 0, "denied": 0, "unavailable": 0, "error": 0, "shadow_denied": 0, "leased": 0}
NOW = 1_700_000_000_000  # 22:13:20 UTC


def rates(**some):
    return {**NONE, **some}


def limit(name, denied=0, since=None, last=None):
    since, last = since and NOW - since, last and NOW - last
    return {"name": name, "now": rates(denied=denied), "denies": last is not None and NOW - last < 30_000, "since": since, "last": last, "runs": []}


def policy(**changed):
    return {"epoch": 3, "refused": None, "unknown_limits": [], "rules": "a41c09d2e7f3", "filters": {"in_force": 6}, "filters_apart": [], **changed}


def view(**changed):
    quiet = {
        "now": NOW, "up": 3_600_000, "store": {"name": "Redis", "sidecars": 2, "health": {"state": "answers"}},
        "policy": policy(), "limits": [limit("a"), limit("b")], "total": NONE, "top": [], "events": [], "failing": [],
    }
    return {**quiet, **changed}


LOST = {"name": "Redis", "sidecars": 2, "health": {"state": "lost", "since_ms": NOW - 60_000, "why": "no answer from the store within 20ms"}}
MEMORY = {"name": "the sidecar's memory", "sidecars": 1, "health": {"state": "answers"}}
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
    (view(limits=[{**A[0], "reserves": {"used_ratio": 0.124, "starve": True}}], total=rates(denied=120)), "them", "429s: 120/s on a for 3 min.",
     "Reserves may starve a: 12 % of what is reserved is used."),
    (view(limits=MORE, total=rates(denied=133)), "them",
     "429s: 120/s on a for 3 min, 12/s on b for 40 s and 2 more limits.", "100 % of 133 requests/s are denied."),
    # A denial each 15 seconds.
    (view(limits=SPARSE, total=rates(admitted=3)), "wait", "429s: on a for 3 min, the last 12 s ago.", None),
    (view(limits=SPARSE), "wait", "429s: on a for 3 min, the last 12 s ago.", None),
    # Nobody has asked: that is not good news, and said first.
    (view(policy=policy(filters={"in_force": 0, "behind": 0})), "wait", "No Envoy asks this sidecar.",
     "Nor has any program asked in the last minutes, so nothing is limited here. sluicegate rollout lists the filters that ask."),
    (view(policy=policy(filters={}, refused="line 4: no")), "us", "No Envoy asks this sidecar.",
     "The policy file was refused; the one before stays in force: line 4: no"),
    (view(policy=policy(filters={}), limits=[{**limit("a"), "runs": [[{}]]}]), "calm", "Nobody is being limited.", "No requests right now."),
    (view(store=LOST, total=rates(unavailable=35)), "us", "Redis has not answered since 22:12:20.",
     "35 requests/s are undecided: the limit's when_store_is_down or the rule's when_unavailable lets them pass unmetered or answers 503."),
    (view(store=LOST), "us", "Redis has not answered since 22:12:20.", "No answer from the store within 20ms. The sidecar keeps retrying."),
    (view(store=LOST), "us", "Redis has not answered since 22:12:20.", "This sidecar enforces its share of each limit, unless the limit's when_store_is_down says otherwise."),
    (view(store={**LOST, "sidecars": 0}), "us", "Redis has not answered since 22:12:20.",
     "How many sidecars there are is not known, so this sidecar has no share yet."),
    # Both at once: the trouble on our side comes first.
    (view(store=LOST, limits=A, total=rates(denied=120)), "us", "Redis has not answered since 22:12:20.", "429s: 120/s on a for 3 min."),
    (view(total=rates(unavailable=2)), "us", "2 requests/s are undecided.", "Each rule's when_unavailable lets them pass unmetered or answers 503."),
    (view(total=rates(unavailable=2), failing=["timeout", "connection"]), "us", "2 requests/s are undecided.",
     "Redis answers, but too slowly: not within store_timeout."),
    (view(total=rates(unavailable=2), failing=["timeout", "connection"]), "us", "2 requests/s are undecided.", "Redis breaks connections."),
    (view(total=rates(unavailable=2), failing=["state"]), "us", "2 requests/s are undecided.",
     "Redis has a key with data that the sidecar did not write; the sidecar's log has the error."),
    (view(total=rates(unavailable=2), failing=["full"], store=MEMORY), "us", "2 requests/s are undecided.",
     "The sidecar's memory has reached the policy's memory_limit: requests with new keys are undecided until something expires."),
    # Undecided requests just after an outage belong to it.
    (view(total=rates(unavailable=2), events=BACK), "calm", "Nobody is being limited.",
     "Redis was down until 22:13:15; it came back after 4.5 s."),
    (view(total=rates(unavailable=2), events=[{**BACK[0], "at_ms": NOW + 1_800_000}]), "us", "2 requests/s are undecided.", None),
    (view(policy=policy(refused="line 4: no")), "us", "Nobody is being limited.",
     "The policy file was refused; the one before stays in force: line 4: no"),
    (view(policy=policy(refused="line 4: no"), limits=A, total=rates(denied=120)), "them", "429s: 120/s on a for 3 min.",
     "The policy file was refused; the one before stays in force: line 4: no"),
    (view(total=rates(error=0.02)), "calm", "Nobody is being limited.",
     "<0.1 requests/s cannot be decided, for example because they cost more than their limit ever admits."),
    (view(total=rates(error=50), policy=policy(unknown_limits=["login"])), "us",
     "Requests ask for limit login, which the policy does not have.",
     "50 requests/s are undecided: each rule's when_unavailable lets them pass unmetered or answers 503. "
     "Compare rules and policy with sluicegate check-config."),
    (view(policy=policy(unknown_limits=["login", "a", "b"])), "us",
     "Requests ask for limit login and 2 more, which the policy does not have.", None),
    (view(policy=policy(filters_apart=["filter 1a2b3c4d refuses the rules: why"])), "us", "Nobody is being limited.",
     "Filter 1a2b3c4d refuses the rules: why."),
    (view(policy=policy(filters_apart=["filter 1a2b3c4d refuses the rules: why"]), limits=A, total=rates(denied=120)), "them", "429s: 120/s on a for 3 min.",
     "Filter 1a2b3c4d refuses the rules: why."),
    (view(total=rates(shadow_denied=7)), "calm", "Nobody is being limited.", "Shadow rules would have denied 7 requests/s."),
    (view(up=20_000), "calm", "Nobody is being limited.", "This sidecar started 20 s ago."),
    (view(unreachable_since=NOW - 9_000), "us", "The sidecar has not answered since 22:13:11.", "Everything below is the last known state."),
    (view(unreachable_since=NOW - 9_000), "us", "The sidecar has not answered since 22:13:11.",
     "If the sidecar is away, Envoy applies each rule's when_unavailable: requests pass unmetered or get a 503. This page retries every second."),
    ({"now": NOW, "unreachable_since": NOW - 9_000}, "us", "The sidecar does not answer.", None),
    # It answers: requests are decided.
    ({"now": NOW, "unreachable_since": NOW - 9_000, "refused": True}, "wait",
     "The sidecar refuses to give this page its data.", "It may have another token now: reload the page to enter it."),
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
        # Red is for what goes on; a pause between two 429s is announced to nobody.
        is_over = summary.get("spoken", summary["chip"]) == "Clients over a limit"
        assert is_over == (headline.startswith("429s")), summary


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
    for some, line in [({"admitted": 9}, ""), ({"admitted": 60, "denied": 40, "leased": 24.8}, "leases answer 25 % of the requests")]:
        found = page.evaluate("""async (state) => (await import("/page/summary.js")).leasedText(state)""", rates(**some))
        assert found == line, (some, found)


# Limits with slots, and the rows that they must give: those with the most slots first.
HOLD = {"limit": "l", "subject": "0123456789abcdef0123", "slots": 1, "since_seconds": 61, "ends_in_seconds": 9, "granted_by": "2f1ba85c"}
VM = "5f0c6b1a9d3e4f2c8b7a6d5e4f3c2b1a"
SLOTS = [
    ({"in_use": 3, "oldest": HOLD}, ["l", 3, "0123456789abcdef0123", 61_000, False, "sidecar 2f1ba85c"]),
    ({"in_use": 2, "oldest": {**HOLD, "vm": VM, "consumer": "acme"}}, ["l", 2, "acme", 61_000, False, "filter 5f0c6b1a"]),
    ({"in_use": 0, "oldest": {**HOLD, "vm": VM, "node": "gateway-0", "outlived": True}}, ["l", 0, "0123456789abcdef0123", 61_000, True, "gateway-0"]),
]


def slots(page, folder, monitor):
    """the table of slots says how many are in use, and whose the oldest is"""
    found = page.evaluate("""async (all) => (await import("/page/limits.js")).slots(all)
        .map(({ name, in_use, subject, for_ms, outlived, who }) => [name, in_use, subject, for_ms, outlived, who])""", [of for of, _ in reversed(SLOTS)])
    assert found == [row for _, row in SLOTS], found
    assert page.evaluate("""async (all) => (await import("/page/limits.js")).slots(all).length""", [SLOTS[0][0]] * 9) == 8


# Which filters have which rules, and the line that it must give.
RULES = [
    ((None, {}), ""),
    (("a41c09d2e7f3", {}), "Rules a41c09d2e7f3: no filter has asked for them."),
    (("a41c09d2e7f3", {"in_force": 1}), "Rules a41c09d2e7f3: 1 of 1 filters have them."),
    (("a41c09d2e7f3", {"in_force": 16}), "Rules a41c09d2e7f3: 16 of 16 filters have them."),
    (("a41c09d2e7f3", {"in_force": 12, "behind": 1, "none": 1, "refused": 2}),
     "Rules a41c09d2e7f3: 12 of 16 filters have them, 1 behind, 1 without rules, 2 refused them."),
    ((None, {"refused": 3}), "No rules: 0 of 3 filters have them, 3 refused them."),
]


def rules(page, folder, monitor):
    """the line about rules says which, and how many filters have them"""
    for (digest, filters), line in RULES:
        found = page.evaluate("""async (policy) => (await import("/page/summary.js")).rulesText(policy)""", {"rules": digest, "filters": filters})
        assert found == line, (digest, filters, found)


# What follows makes samples: of a second each up to `second`, with what was denied under each limit.
SAMPLES = """
    const { RateHistory, ALL } = await import("/page/rates.js");
    const { limits } = await import("/page/limits.js");
    const counts = (denied) => [10 * denied, denied, 0, 0, 0, 0];
    const sample = (second, denied, seconds = 1) => ({ from_ms: 1000 * (second - seconds), at_ms: 1000 * second, failures: {},
        counts: Object.fromEntries(Object.entries(denied).map(([name, more]) => [name, counts(more)])) });
"""


def samples(page, folder, monitor):
    """rates survive lost and repeated samples, restarts and gaps"""
    found = page.evaluate("""async () => {""" + SAMPLES + """
        const history = new RateHistory();
        const ends = () => history.runs().map((run) => [run[0].at / 1000, run.at(-1).at / 1000]);
        const found = {};
        history.add([sample(5, { a: 50 }, 5), sample(6, { a: 10 })]);
        found.past = [history.now("a").denied, history.now("a").admitted, history.latest()];
        // Seconds 7 and 8 come late, 9 comes twice, and a second limit appears.
        history.add([7, 8, 9].map((second) => sample(second, { a: 10, b: 1 })));
        history.add([sample(9, { a: 10, b: 1 }), sample(10, { a: 10, b: 5 })]);
        history.add([]);
        found.late = [history.now("a").denied, history.now("b").denied, history.now(ALL).denied, history.now("nobody").denied];
        found.one = ends();
        // A new process starts three seconds later.
        history.add([sample(14, { b: 20, a: 1 })]);
        found.restarted = [history.now("a").denied, history.now("b").denied];
        found.two = ends();
        // Samples older than the chart are dropped.
        for (let second = 15; second < 1000; second++) history.add([sample(second, { a: 1 })]);
        const all = history.runs().flat();
        found.bounded = all.length < 320 && 1000 * 999 - all[0].at < 320_000;
        // The clock is set back by an hour: the page gets all that the sidecar has.
        for (let second = 1; second <= 60; second++) history.add([sample(10_000 + second, { a: 0 })]);
        for (let second = 1; second < 60; second++) history.add([sample(6_460 + second, { a: 100 })]);
        found.step = [history.now("a").denied, history.latest() / 1000, ends().at(-1)];
        return found;
    }""")
    assert found == {
        "past": [10, 100, 6000],
        "late": [10, 8 / 5, 10 + 8 / 5, 0],
        "one": [[0, 10]],
        "restarted": [1, 20],
        "two": [[0, 10], [13, 14]],
        "bounded": True,
        "step": [100, 6519, [6460, 6519]],
    }, found


def failing(page, folder, monitor):
    """the kinds of store calls that fail now are told, the most frequent first"""
    found = page.evaluate("""async () => {""" + SAMPLES + """
        const history = new RateHistory();
        const failures = [{ auth: 9 }, {}, {}, { timeout: 1 }, {}, { timeout: 1, connection: 3 }, {}];
        history.add(failures.map((some, index) => ({ ...sample(index + 1, {}), failures: some })));
        return history.failing();
    }""")
    assert found == ["connection", "timeout"], found


def many(page, folder, monitor):
    """thousands of limits cost little: none for limits without decisions, and with many busy ones the chart is shorter"""
    steps, rows, kept = page.evaluate("""async () => {""" + SAMPLES + """
        const names = [...Array(2000).keys()].map((number) => `limit-${number}`);
        const policy = { limits: names.map((name) => ({ name, windows: "" })) };
        const denied = (busy) => Object.fromEntries(names.slice(0, busy).map((name) => [name, 1]));
        const history = new RateHistory();
        for (let second = 1; second <= 310; second++) history.add([sample(second, denied(120))]);
        // Every count of a sample is looked up in a Map.
        const get = Map.prototype.get;
        let [steps, rows] = [0];
        Map.prototype.get = function (key) { steps += 1; return get.call(this, key); };
        try {
            rows = limits({ policy, denying: {}, top: { limits: [] }, now_ms: 310_000, up_ms: 310_000 }, history);
        } finally {
            Map.prototype.get = get;
        }
        for (let second = 311; second <= 400; second++) history.add([sample(second, denied(1000))]);
        return [steps, rows.map((row) => [row.now.admitted, row.runs.length]), history.runs()[0].length];
    }""")
    assert rows == 120 * [[10, 1]] + 1880 * [[0, 0]], rows
    # A few for each sample and busy limit; it was more than a million with rates of all limits for all samples.
    assert steps < 5 * 310 * 120, steps
    assert kept == 1 + 38_400 // 1_001, kept


def listed(page, folder, monitor):
    """a limit that is not in the policy is listed while its decisions are in the chart, and not after the sidecar restarted"""
    found = page.evaluate("""async () => {""" + SAMPLES + """
        const history = new RateHistory();
        history.add([sample(1, { gone: 1 }), sample(2, { a: 1 }), sample(3, { "": 2 })]);
        const shown = (up_ms) => {
            const denying = { a: { since_ms: 2000, last_ms: 3000, goes_on: true }, gone: { since_ms: 1000, last_ms: 1000, goes_on: false } };
            const top = { limits: [{ limit: "b", reserves: { used_ratio: 2, starve: false } }] };
            const rows = limits({ policy: { limits: [{ name: "b", windows: "w" }, { name: "a", windows: "w" }] }, denying, top, now_ms: 3000, up_ms }, history);
            return rows.map(({ name, windows, reserves, denies, since, last }) => [name, windows ?? null, reserves?.used_ratio ?? null, denies, since ?? null, last ?? null]);
        };
        return [shown(3000), shown(500)];
    }""")
    [a, b, unknown] = ["a", "w", None, True, 2000, 3000], ["b", "w", 2, False, None, None], ["", None, None, False, None, None]
    assert found == [[a, b, unknown, ["gone", None, None, False, 1000, 1000]], [a, b, unknown]], found


def means(page, folder, monitor):
    """the chart's table has the true means, however often samples were taken"""
    found = page.evaluate("""async () => {""" + SAMPLES + """
        const history = new RateHistory();
        history.add([sample(5, { a: 50 }, 5), sample(10, { a: 50 }, 5), ...[11, 12, 13, 14, 15].map((second) => sample(second, {}))]);
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


def flags(page, folder, monitor):
    """flags of events do not overlap: those that would are one, which names all of them and has the tone of the worst"""
    found = page.evaluate("""async () => {
        const { Chart } = await import("/page/chart.js");
        const { event } = await import("/page/summary.js");
        const box = document.body.appendChild(document.createElement("div"));
        box.className = "chart";
        box.style.width = "309px";
        const chart = new Chart(box, document.createElement("p"));
        await new Promise((resolve) => { new ResizeObserver(() => requestAnimationFrame(resolve)).observe(box); });
        const now = 1_700_000_000_000;
        const marks = [[1, "store_back"], [2, "policy_loaded"], [3, "store_lost"], [4, "override_set"], [50, "policy_loaded"]]
            .map(([ago, kind]) => ({ at: now - ago * 1000, tone: event({ kind, detail: "" }, "Redis").tone, label: kind }));
        chart.draw({ runs: [], now, span: 60_000, marks });
        const flags = [...box.querySelectorAll(".flag")];
        const boxes = flags.map((flag) => flag.getBoundingClientRect());
        const overlap = boxes.slice(1).some((one, at) => one.left < boxes[at].right);
        const found = [flags.map((flag) => flag.dataset.tone), [...box.querySelectorAll(".marks title")].map((title) => title.textContent), overlap];
        box.remove();
        return found;
    }""")
    assert found[0][0] == "wait" and "us" in found[0] and found[2] is False, found
    assert "\n".join(found[1]).split("\n") == ["policy_loaded", "override_set", "store_lost", "policy_loaded", "store_back"], found


def names(page, folder, monitor):
    """a limit's name is not broken at its hyphen, on a phone either"""
    page.wait_for_selector("#limits-rows .name")
    for size in (PHONE, SCREEN):
        page.set_viewport_size(size)
        lines = page.evaluate("""() => {
            const name = document.querySelector("#limits-rows .name");
            const height = (text) => { name.textContent = text; return name.getBoundingClientRect().height; };
            return height("per-key.default") / height("a");
        }""")
        assert lines == 1, (size, lines)


def commands(page, folder, monitor):
    """the command for a subject or a consumer names the sidecar unless it is here, and a shell reads each name as one word"""
    found = page.evaluate("""async () => {
        const { overrideCommand } = await import("/page/limits.js");
        const here = "http://127.0.0.1:9181", limit = "per-key", subject = "935bcf14b3e6e491dcab";
        return [
            overrideCommand({ limit, subject }, here),
            overrideCommand({ limit: "partner.acme", subject, consumer: "acme" }, "https://limits.example.com"),
            overrideCommand({ limit: "a; rm -rf '$HOME'", subject, consumer: "" }, here),
        ];
    }""")
    words = [shlex.split(command) for command in found]
    rest = ["--unlimited", "--for", "1h"]
    start = ["sluicegate", "override", "set", "--limit"]
    assert words == [
        [*start, "per-key", "--subject", "935bcf14b3e6e491dcab", *rest],
        [*start, "partner.acme", "--consumer", "acme", *rest, "--admin", "https://limits.example.com"],
        [*start, "a; rm -rf '$HOME'", "--consumer", "", *rest],
    ], words


IN_ORDER = [sentences, leases, slots, rules, samples, failing, many, listed, means, axes, flags, commands, names]
