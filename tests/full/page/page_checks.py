"""Checks that must pass in every state of the page: layout at every width, both themes, accessibility."""

from axe_playwright_python.sync_playwright import Axe

SCREEN = {"width": 1280, "height": 900}
PHONE = {"width": 375, "height": 800}


class PageMonitor:
    """Records errors of the page and requests to other hosts."""

    def __init__(self, page, address):
        self.address = address
        self.complaints = []
        self.foreign_requests = []
        # While the sidecar is unreachable, the browser itself logs errors on the console.
        self.expects_disconnect = False
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._request)

    def _console(self, message):
        if message.type in ("error", "warning") and not self.expects_disconnect:
            self.complaints.append(message.text)

    def _request(self, request):
        if not request.url.startswith(self.address):
            self.foreign_requests.append(request.url)

    def assert_clean(self):
        assert not self.complaints, f"errors on the console: {self.complaints}"
        assert not self.foreign_requests, f"requests to other hosts: {self.foreign_requests}"


def screenshot(page, folder, name):
    """Takes a screenshot of the whole page, after checking its layout."""
    fits(page)
    page.screenshot(path=folder / f"{name}.png", full_page=True)


def fits(page):
    """Nothing scrolls sideways, and no text overflows its box."""
    wide, room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= room, f"{wide} px wide in {room} px"
    # Words in a table must not overlap.
    cut = page.evaluate("""[...document.querySelectorAll("th, td, p, li, h2, button")]
        .filter((e) => e.checkVisibility() && !e.classList.contains("spoken") && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
        .map((e) => e.textContent)""")
    assert not cut, f"overflows its box: {cut}"


def is_accessible(page, address):
    """axe-core finds no violation of WCAG 2.2 AA, contrast included."""
    # The page's policy blocks foreign scripts, axe too, so axe runs in a context that bypasses it.
    context = page.context.browser.new_context(
        bypass_csp=True, viewport=page.viewport_size, color_scheme=page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
    )
    other = context.new_page()
    other.goto(address)
    other.wait_for_selector("#live[data-live=yes]")
    other.wait_for_timeout(200)
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    found = Axe().run(other, options=options).response["violations"]
    context.close()
    violations = [f"{rule['id']}: {node['html']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]
    assert not violations, "\n".join(violations)


def is_reached_by_keyboard(page):
    """Tab reaches every control in the order of the page, and the focus is visible on each."""
    page.evaluate("document.activeElement.blur()")
    reached = []
    while True:
        page.keyboard.press("Tab")
        here = page.evaluate("""(() => {
            const e = document.activeElement, box = e.getBoundingClientRect();
            return e === document.body ? null
                : [e.id || e.ariaLabel || e.textContent, getComputedStyle(e).outlineStyle, box.width > 0 && box.height > 0];
        })()""")
        if here is None or here[0] in reached[:1]:
            break
        name, outline, visible = here
        assert outline != "none" and visible, f"the focus on {name} is invisible"
        reached.append(name)
    wanted = ["Skip to the status", "pause", "pick", "The chart as a table", "per-client", "search"]
    assert [name for name in reached if name in wanted] == wanted, reached
