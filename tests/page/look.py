import sys, time, pathlib
from playwright.sync_api import sync_playwright
from chain import ask, say
url, out = sys.argv[1], pathlib.Path(sys.argv[2]); out.mkdir(parents=True, exist_ok=True)
with sync_playwright() as p:
    b = p.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    page = b.new_page(viewport={"width":1280,"height":900})
    page.on("console", lambda m: say(f"console {m.type}: {m.text}"))
    page.on("pageerror", lambda e: say(f"pageerror: {e}"))
    page.goto(url); time.sleep(2); page.screenshot(path=out/"d1.png")
    ask("calm"); time.sleep(8); ask("attack"); time.sleep(15)
    page.screenshot(path=out/"d2.png", full_page=True); say(page.inner_text("main"))
    ask("kill redis"); time.sleep(3); page.screenshot(path=out/"d3.png", full_page=True); say(page.inner_text("#status"))
    page.emulate_media(color_scheme="dark"); page.set_viewport_size({"width":375,"height":800}); page.screenshot(path=out/"d4.png", full_page=True)
    ask("start redis"); time.sleep(3); say(page.inner_text("#status")); 
    ask("hostile policy"); time.sleep(2); say(page.inner_text("#status"))
    ask("kill sidecar"); time.sleep(2); say(page.inner_text("#status")); ask("start sidecar"); time.sleep(3); say(page.inner_text("main"))
    page.set_viewport_size({"width":1280,"height":800}); page.screenshot(path=out/"d5.png", full_page=True)
    b.close()
