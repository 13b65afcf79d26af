"""How the page must look and behave at any time: on every width, in both themes, for those who do not see it."""

from axe_playwright_python.sync_playwright import Axe

SCREEN = {"width": 1280, "height": 900}
PHONE = {"width": 375, "height": 800}


class Witness:
    """Hears what the page complains of, and whom it speaks to."""

    def __init__(self, page, address):
        self.address = address
        self.complaints = []
        self.strangers = []
        # While the sidecar is away, the browser itself says so on the console.
        self.expects_away = False
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._request)

    def _console(self, message):
        if message.type in ("error", "warning") and not self.expects_away:
            self.complaints.append(message.text)

    def _request(self, request):
        if not request.url.startswith(self.address):
            self.strangers.append(request.url)

    def is_content(self):
        assert not self.complaints, f"the console says {self.complaints}"
        assert not self.strangers, f"asked another host: {self.strangers}"


def take(page, folder, name):
    """A picture of the whole page, after what every view must fulfil."""
    fits(page)
    page.screenshot(path=folder / f"{name}.png", full_page=True)


def fits(page):
    """Nothing needs to be scrolled sideways, and no text runs out of its box."""
    wide, room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= room, f"{wide} px wide in {room} px"
    # A table's words must not be over each other's.
    cut = page.evaluate("""[...document.querySelectorAll("th, td, p, li, h2, button")]
        .filter((e) => e.checkVisibility() && !e.classList.contains("spoken") && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
        .map((e) => e.textContent)""")
    assert not cut, f"runs out of its box: {cut}"


def is_accessible(page, address):
    """No rule of WCAG 2.2 AA that axe-core knows is broken, contrast included."""
    # The page forbids scripts that are not its own, axe too: so it is looked at in a window that lets them in.
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
    said = [f"{rule['id']}: {node['html']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]
    assert not said, "\n".join(said)


def is_reached_by_keyboard(page):
    """Tab goes to everything that can be used, in the order of the page, and each shows that it is there."""
    page.evaluate("document.activeElement.blur()")
    reached = []
    while True:
        page.keyboard.press("Tab")
        here = page.evaluate("""(() => {
            const e = document.activeElement, box = e.getBoundingClientRect();
            return e === document.body ? null
                : [e.id || e.textContent, getComputedStyle(e).outlineStyle, box.width > 0 && box.height > 0];
        })()""")
        if here is None or here[0] in reached:
            break
        name, outline, visible = here
        assert outline != "none" and visible, f"nobody sees that {name} is focused"
        reached.append(name)
    wanted = ["Skip to the status", "pause", "theme", "pick", "The chart as a table", "per-client", "search"]
    assert [name for name in reached if name in wanted] == wanted, reached
