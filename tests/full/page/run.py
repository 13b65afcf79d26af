"""Drives the live page in Chromium and checks what an engineer sees. main.rs starts it and changes the chain at its request.

    run.py ADDRESS FOLDER     FOLDER gets the screenshots
"""

import pathlib
import shutil
import sys

from playwright.sync_api import sync_playwright

import page_checks
import modules
import steps
from chain import report

# Chromium runs as root, in a container, on a machine without a GPU.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def main(address, folder):
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium")
    if not chromium:
        sys.exit("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        # UTC, so that screenshots and times do not depend on the machine.
        context = browser.new_context(viewport=page_checks.SCREEN, timezone_id="UTC", reduced_motion="reduce", permissions=["clipboard-read"])
        page = context.new_page()
        monitor = page_checks.PageMonitor(page, address)
        page.goto(address)
        for step in [*modules.IN_ORDER, *steps.IN_ORDER]:
            report(f"page: {step.__doc__}")
            step(page, folder, monitor)
        monitor.assert_clean()
        browser.close()
    report(f"page: all steps passed; screenshots in {folder.name}/")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
