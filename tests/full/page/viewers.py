"""What a viewer sees whose connection or clock is the problem, not the sidecar."""

import datetime
import re

from chain import ask, report, within

SECONDS = 4


def text(page, selector):
    return page.text_content(selector)


def refused(page, folder, monitor):
    """a page whose token is no longer right is told so, and not that the sidecar is away"""
    context = page.context.browser.new_context(timezone_id="UTC")
    other = context.new_page()
    other.route("**/page/snapshot*", lambda route: route.fulfill(status=401))
    other.goto(monitor.address)
    within(SECONDS, "it says why", lambda: "The sidecar refuses to give this page its data" in text(other, "#headline"))
    assert other.get_attribute("#status", "data-tone") == "wait"
    assert "Envoy" not in text(other, "#notes"), text(other, "#notes")
    other.unroute("**/page/snapshot*")
    within(SECONDS, "it gets its data", lambda: text(other, "#live-text") == "live")
    context.close()


def resumed(page, folder, monitor):
    """after a pause the page is live when data has come, not before"""
    page.click("#pause")
    ask("stop sidecar")
    page.click("#pause")
    for _ in range(10):
        assert text(page, "#live-text") == "connecting", text(page, "#live-text")
        page.wait_for_timeout(100)
    ask("continue sidecar")
    within(SECONDS, "live", lambda: text(page, "#live-text") == "live")


def other_clock(page, folder, monitor):
    """all times are the sidecar's, also that of its last answer, if the viewer's clock is ten minutes ahead"""
    context = page.context.browser.new_context(timezone_id="UTC")
    ahead = context.new_page()
    ahead.add_init_script("const real = Date.now; Date.now = () => real() + 600_000;")
    ahead.goto(monitor.address)
    within(SECONDS, "live", lambda: text(ahead, "#live-text") == "live")
    monitor.expects_disconnect = True
    ask("kill sidecar")
    within(SECONDS, "it has noticed", lambda: "has not answered since" in text(ahead, "#headline"))
    report(f"      {text(ahead, '#headline')!r}")
    since = re.search(r"\d\d:\d\d:\d\d", text(ahead, "#headline"))[0]
    now = datetime.datetime.now(datetime.timezone.utc)
    shown = datetime.datetime.combine(now.date(), datetime.time.fromisoformat(since), datetime.timezone.utc)
    # Around midnight the time shown may be yesterday's.
    ago = (now - shown).total_seconds() % 86_400
    assert ago < 60, f"{since}, {ago} s ago"
    ask("start sidecar")
    within(SECONDS, "live again", lambda: text(ahead, "#live-text") == text(page, "#live-text") == "live")
    monitor.expects_disconnect = False
    context.close()
    # The new process has had no decisions on an unknown limit: what was selected is gone.
    assert page.evaluate("document.getElementById('pick').selectedOptions[0]?.textContent") == "all limits"
