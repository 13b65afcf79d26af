"""What an engineer sees on the live page, in Chromium. main.rs starts it, and does to the chain what it asks for.

    look.py ADDRESS FOLDER     FOLDER gets the screenshots
"""

import pathlib
import shutil
import sys

from playwright.sync_api import sync_playwright

import looks
import modules
import steps
from chain import say

# As root, in a container, and with what a test machine lacks.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def main(address, folder):
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium")
    if not chromium:
        sys.exit("there is no chromium; install it: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        # UTC, so that pictures and times do not depend on the machine.
        context = browser.new_context(viewport=looks.SCREEN, timezone_id="UTC", reduced_motion="reduce")
        page = context.new_page()
        witness = looks.Witness(page, address)
        page.goto(address)
        for step in [modules.sentences, modules.totals, *steps.IN_ORDER]:
            say(f"page: {step.__doc__}")
            step(page, folder, witness)
        witness.is_content()
        browser.close()
    say(f"page: all seen; screenshots in {folder.name}/")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
