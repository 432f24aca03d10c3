"""A headless Chromium, and pages in it that may ask nobody but this machine."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

Open = Callable[..., Page]


def chromium() -> str | None:
    """The browser of the system."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The one of the system; without it the test is skipped."""
    if chromium() is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path: install one to test the page")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a page; any error that it logs fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_it(url: str, allowed: str = "", **options: Any) -> Page:
        context = browser.new_context(**{"locale": "en-GB"} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)

        def note_message(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not (allowed and allowed in message.text):
                complaints.append(message.text)

        def note_request(request: Request) -> None:
            if not request.url.startswith((url, "data:")):
                complaints.append(f"asked {request.url}")

        page.on("console", note_message)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", note_request)
        page.goto(url)
        page.wait_for_selector("#direction option", state="attached")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []
