"""Draw the page as shown in the READMEs: `python -m tests.browser.draw_page RUN SENTENCE FILE`."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from bench.serve import served
from tests.browser.conftest import chromium
from utils.command import run_command
from utils.run import find_run


def draw_page(run: Path, sentence: str, picture: Path) -> None:
    """Have a sentence translated on the page, point at the second token of the translation, and photograph it."""
    with served(run) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1000, "height": 600}, locale="en-GB")
        page.goto(url)
        page.get_by_role("textbox").fill(sentence)
        page.locator("#into > *").nth(1).hover()
        page.wait_for_timeout(500)  # of animation
        page.screenshot(path=picture, full_page=True)
        browser.close()


def main() -> None:
    """Read the arguments and draw the page."""
    if len(sys.argv) != 4:
        raise ValueError("give a run, a sentence and a file: python -m tests.browser.draw_page RUN SENTENCE FILE")
    draw_page(find_run(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]))


if __name__ == "__main__":
    run_command("draw_page", main)
