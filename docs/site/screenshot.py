"""Takes the README's picture of the console from a running demo.

    make demo                                # in another terminal
    python docs/site/screenshot.py           # with the data of make demo

Signs in as the demo's owner, opens one page, and writes docs/console.png. It needs the development
environment and a Chromium (`make browser`).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "console.png"
WIDTH, HEIGHT = 1200, 760
MAX_BYTES = 200_000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT / "var/demo", help="the demo's directory")
    parser.add_argument("--page", default="/adapters", help="below /console")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    options = parser.parse_args()
    facts = json.loads((options.data / "demo.json").read_text())
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=options.browser, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        console = facts["base_url"].removesuffix("/v1") + "/console"
        page.goto(f"{console}/sign-in")
        page.fill("#email", facts["email"])
        page.fill("#password", facts["password"])
        page.click("button[type=submit]")
        page.wait_for_url("**/console/**")
        page.goto(console + options.page)
        page.wait_for_timeout(1000)
        page.screenshot(path=PICTURE)
        browser.close()
    size = PICTURE.stat().st_size
    print(f"{PICTURE}: {size / 1000:.0f} kB")
    return 0 if size < MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
