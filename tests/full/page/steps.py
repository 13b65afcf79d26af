"""An on-call engineer's evening, step by step. Each step checks what the page shows, within the promised time."""

import re
import time

import viewers
from chain import ask, report, within
from page_checks import PHONE, SCREEN, fits, is_accessible, is_reached_by_keyboard, screenshot

# The promise is 2 s; the rest is for test machines that stall.
SECONDS = 2 + 2


def text(page, selector):
    return page.text_content(selector)


def headline(page):
    return text(page, "#headline")


def wait_for_headline(page, what, seconds=SECONDS):
    """Waits for a headline, and reports how long it took."""
    _, took = within(seconds, f"{what!r} in the headline", lambda: what in headline(page))
    report(f"      {headline(page)!r} after {took:.1f} s")


def notes(page):
    return page.locator("#notes li").all_text_contents()


def number(words):
    return float(words.removesuffix("/s").replace(",", ""))


def events(page):
    return page.locator(".events strong").all_text_contents()


def idle(page, folder, monitor):
    """no traffic"""
    wait_for_headline(page, "Nobody is being limited")
    assert text(page, "#live-text") == "live"
    assert text(page, "#store-state") == "Redis answers"
    assert text(page, "#policy-state") == "In force"
    assert text(page, "#policy-detail").startswith("Version 1 since the sidecar started.")
    all_have = r"Rules [0-9a-f]{12}: ([2-9]) of \1 filters have them\.$"
    within(SECONDS, "rules in every filter", lambda: re.search(all_have, text(page, "#policy-detail")))
    assert "sliding_log 10 per 2s, sliding_log 100000 per 1h" in text(page, "#limits-rows tr:first-child")
    assert events(page) == ["Sidecar started"]
    screenshot(page, folder, "idle")


def attack(page, folder, monitor):
    """one client sends many times its quota"""
    ask("calm")
    time.sleep(5)
    assert "Nobody is being limited" in headline(page), headline(page)
    ask("attack")
    wait_for_headline(page, "429s:", seconds=SECONDS + 2)
    assert "on per-client for" in headline(page), headline(page)
    assert text(page, "#chip") == "Clients over a limit"
    assert text(page, "#spoken") == text(page, "#chip"), "screen readers announce it"


def rates(page, folder, monitor):
    """the rates shown are those that the clients see"""
    time.sleep(5)
    shown = {"admitted": [], "denied": []}
    before, started = ask("count"), time.monotonic()
    for _ in range(10):
        time.sleep(0.5)
        for kind, values in shown.items():
            values.append(number(text(page, f"#now-{kind}")))
    after, seconds = ask("count"), time.monotonic() - started
    for kind, values in shown.items():
        seen = (after[kind] - before[kind]) / seconds
        mean = sum(values) / len(values)
        report(f"      {kind}: {mean:.1f}/s shown, {seen:.1f}/s seen by the clients")
        assert 0.75 * seen < mean < 1.25 * seen, f"{kind}: {values}, seen {seen}"
    row = page.locator("#limits-rows tr", has_text="per-client")
    assert number(row.locator("td").nth(2).text_content()) > 0
    assert page.locator("#limits-rows tr", has_text="search").locator("td").nth(2).text_content() == "0"


def who(page, folder, monitor):
    """the subject that gets nearly all 429s is named by its hash only"""
    within(SECONDS, "all of them", lambda: any("gets all of per-client's 429s" in note for note in notes(page)))
    first = page.locator("#denied-rows tr").first
    subject = first.locator("code").text_content()
    assert len(subject) == 20 and int(subject, 16), subject
    wanted = f"One subject, {subject}, gets"
    assert any(note.startswith(wanted) for note in notes(page)), notes(page)
    assert "mallory" not in page.content()


def lifted(page, folder, monitor):
    """the command that a button copies lifts the limit for this client, and can be taken back"""
    # Another page, since Tab goes on from where the last click was.
    other = page.context.new_page()
    other.goto(monitor.address)
    other.locator("#denied-rows tr").first.locator("button").click()
    command = other.evaluate("navigator.clipboard.readText()")
    assert text(other, "#copied") == f"Copied: {command}", command
    assert other.evaluate("document.activeElement.className") == "copy", "the focus stays"
    screenshot(other, folder, "copied")
    other.close()
    ask(f"run {command}")
    within(SECONDS + 5, "no 429s", lambda: text(page, "#now-denied") == "0/s")
    assert events(page)[0] == "Override set", events(page)
    ask("run " + command.replace(" set ", " remove ").replace(" --unlimited --for 1h", ""))
    within(SECONDS + 5, "429s again", lambda: text(page, "#now-denied") != "0/s")


def views(page, folder, monitor):
    """on a screen and on a phone, light and dark, nothing is cut off, too pale or unreachable"""
    within(10, "the outage is over", lambda: text(page, "#now-unavailable") == "0/s")
    assert text(page, "#chip") == "Clients over a limit"
    assert not page.locator("#slots").is_visible(), "nobody has a slot"
    ask("hold slots")
    within(SECONDS, "slots", page.locator("#slots").is_visible)
    limit, in_use, subject, _, who = page.locator("#slots-rows tr").locator("th, td").all_text_contents()
    assert (limit, in_use, len(subject)) == ("uploads", "2", 20) and who.startswith("sidecar "), (limit, in_use, subject, who)
    ask("reserve")
    client = lambda: text(page, "#limits-rows tr:first-child .windows")
    within(SECONDS, "the reserve", lambda: client().endswith("2 units of 1 request are reserved"))
    assert "concurrency 9 at once" in text(page, "#limits-rows tr:last-child")
    page.evaluate("document.activeElement.blur()")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for name, size in (("screen", SCREEN), ("phone", PHONE)):
            page.set_viewport_size(size)
            page.wait_for_timeout(200)
            screenshot(page, folder, f"attack-{name}-{theme}")
            is_accessible(page, monitor.address)
    page.set_viewport_size(SCREEN)
    page.emulate_media(color_scheme="light")


def reordered(page, folder, monitor):
    """the keyboard's focus stays on its limit when another one starts to deny"""
    order = lambda: page.locator("#limits-rows .name").all_text_contents()
    focused = lambda: page.evaluate("document.activeElement.textContent")
    assert order() == ["per-client", "search", "strict", "uploads"], order()
    page.locator("#limits-rows .name", has_text="search").focus()
    ask("deny strict")
    within(SECONDS, "strict before search", lambda: order() == ["per-client", "strict", "search", "uploads"])
    assert focused() == "search", focused()


def unknown(page, folder, monitor):
    """decisions on a limit that the policy does not have can be selected like a limit"""
    ask("unknown limit")
    name = page.locator("#limits-rows .name", has_text="(unknown limit)")
    within(SECONDS, "its row", lambda: name.count() == 1)
    chosen = lambda: page.evaluate("document.getElementById('pick').selectedOptions[0]?.textContent")
    for limit in ("(unknown limit)", "search"):
        page.locator("#limits-rows .name", has_text=limit).click()
        assert chosen() == limit, chosen()
    page.select_option("#pick", label="(unknown limit)")
    assert name.get_attribute("aria-pressed") == "true"
    within(SECONDS, "only its requests", lambda: text(page, "#now-admitted") == "0/s")
    assert chosen() == "(unknown limit)", chosen()


def full_list(page, folder, monitor):
    """overrides are among the events, and of more events than fit each is whole, the earlier ones after a click"""
    ask("change overrides")
    within(SECONDS, "20 events", lambda: len(events(page)) >= 20)
    assert events(page)[:2] == ["Override removed", "Override set"], events(page)
    assert page.locator("#earlier li").count() >= 14 and not page.locator("#earlier li").first.is_visible()
    page.click("#earlier-box summary")
    cut = "[...document.querySelectorAll('.events')].filter((list) => !list.checkVisibility() || list.scrollHeight > list.clientHeight).length"
    assert page.evaluate(cut) == 0
    is_accessible(page, monitor.address)
    page.click("#earlier-box summary")


def by_hand(page, folder, monitor):
    """pause, selecting a limit and the chart's table work with the keyboard alone"""
    is_reached_by_keyboard(page)
    page.locator("#numbers summary").focus()
    page.keyboard.press("Enter")
    within(2, "rows", lambda: page.locator("#numbers-rows tr").count() >= 2)
    fits(page)
    page.keyboard.press("Enter")
    name = page.locator("#limits-rows .name", has_text="search")
    name.focus()
    page.keyboard.press("Enter")
    assert name.get_attribute("aria-pressed") == "true"
    assert page.input_value("#pick") == "search" and text(page, "#now-denied") == "0/s"
    page.keyboard.press("Enter")
    assert page.input_value("#pick") == ""
    page.focus("#pause")
    page.keyboard.press("Space")
    frozen = text(page, "main")
    page.wait_for_timeout(1_500)
    assert text(page, "main") == frozen and text(page, "#live-text") == "paused"
    page.keyboard.press("Space")
    within(SECONDS, "live again", lambda: text(page, "main") != frozen and text(page, "#live-text") == "live")


def loaded(page, folder, monitor):
    """a new policy is loaded"""
    ask("good policy")
    within(SECONDS, "the second", lambda: "Version 2 since" in text(page, "#policy-detail"))
    assert events(page)[0] == "Policy loaded", events(page)
    assert text(page, "#events li:first-child .quiet").startswith("version 2: per-client: quota"), text(page, "#events")


def refused(page, folder, monitor):
    """a refused policy: the page says where it is wrong, and shows what it quotes as text"""
    ask("hostile policy")
    within(SECONDS, "the refusal", lambda: "refused" in text(page, "#policy-state"))
    assert events(page)[0] == "Policy refused", events(page)
    assert any("refused" in note and "line " in note for note in notes(page)), notes(page)
    assert page.locator("main img").count() == 0
    fits(page)
    ask("good policy")
    within(SECONDS, "the third", lambda: "Version 3 since" in text(page, "#policy-detail"))


def outage(page, folder, monitor):
    """Redis is killed and comes back"""
    ask("kill redis")
    wait_for_headline(page, "Redis has not answered since")
    assert text(page, "#chip") == "Trouble on our side"
    assert text(page, "#store-state") == "Redis does not answer"
    within(SECONDS, "the undecided requests", lambda: any("are undecided" in note for note in notes(page)))
    time.sleep(4)
    screenshot(page, folder, "redis-down")
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(200)
    screenshot(page, folder, "redis-down-phone-dark")
    page.set_viewport_size(SCREEN)
    page.emulate_media(color_scheme="light")
    ask("start redis")
    within(SECONDS, "Redis answers", lambda: text(page, "#store-state") == "Redis answers")
    assert events(page)[:2] == ["Redis back", "Redis down"], events(page)
    wait_for_headline(page, "/s on per-client for", seconds=10)
    assert any(note.startswith("Redis was down until") for note in notes(page)), notes(page)


def restart(page, folder, monitor):
    """the sidecar is killed and starts again: the page says so and continues its chart"""
    points = "document.querySelectorAll('#chart .layer.admitted')[0].getAttribute('d').split('M').length - 1"
    runs = page.evaluate(points)
    monitor.expects_disconnect = True
    ask("kill sidecar")
    wait_for_headline(page, "The sidecar has not answered since")
    assert text(page, "#live-text") == "disconnected"
    screenshot(page, folder, "sidecar-away")
    ask("start sidecar")
    within(SECONDS, "live", lambda: text(page, "#live-text") == "live")
    assert events(page) == ["Sidecar started"]
    assert any("This sidecar started" in note for note in notes(page)), notes(page)
    monitor.expects_disconnect = False
    wait_for_headline(page, "429s:", seconds=10)
    # One more piece in the same chart; the earlier samples are still there, once.
    within(SECONDS, "another piece", lambda: page.evaluate(points) == runs + 1)
    assert page.locator("#chart svg").count() == 1


def sparse(page, folder, monitor):
    """429s in intervals of 13 seconds are one run: its start stays, and a screen reader is told nothing; between them nothing is red"""
    row = page.locator("#limits-rows tr", has_text="per-client")
    since = row.locator(".since").text_content()
    denied = lambda: ask("count")["denied"]
    page.evaluate("""window.said = [];
        new MutationObserver(() => said.push(spoken.textContent)).observe(spoken, { childList: true, characterData: true, subtree: true })""")
    for more in (True, False):
        ask("stop traffic")
        stopped = time.monotonic()
        while time.monotonic() - stopped < 13:
            assert row.locator(".since").text_content() == since, row.text_content()
            assert headline(page).startswith("429s:"), headline(page)
            time.sleep(0.5)
        assert page.get_attribute("#status", "data-tone") == "wait" and row.get_attribute("data-denies") == "false", headline(page)
        report(f"      {headline(page)!r}")
        if more:
            before = denied()
            ask("attack")
            within(SECONDS, "a 429", lambda: denied() > before)
    assert page.evaluate("said") == []


def idle_again(page, folder, monitor):
    """traffic has stopped, and the page says when the last 429 was"""
    wait_for_headline(page, "Nobody is being limited", seconds=30 + SECONDS)
    within(SECONDS, "the last 429", lambda: any("The last 429 was" in note for note in notes(page)))


def goodbye(page, folder, monitor):
    """a viewer does not delay the sidecar's shutdown"""
    monitor.expects_disconnect = True
    started = time.monotonic()
    ask("signal sidecar")
    took = time.monotonic() - started
    assert took < 3, f"{took:.1f} s"
    wait_for_headline(page, "The sidecar has not answered since")


IN_ORDER = [
    idle, attack, rates, who, lifted, loaded, outage, by_hand, views, reordered, refused, full_list, viewers.refused, viewers.resumed,
    unknown, viewers.other_clock, restart, sparse, idle_again, goodbye,
]
