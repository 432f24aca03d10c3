"""The attention page in a real browser: its content, and its keyboard control."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from const.token import EOS
from tests.utils.visualize.recorded import HOSTILE, HOSTILE_PAIR, PAIR, recorded
from utils.search.inspection import AttentionMap
from utils.visualize.attention import Pair, write_attention_page

pytestmark = pytest.mark.browser

Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Writes a page and opens it; any error that it logs or request that it makes fails the test."""
    complaints: list[str] = []
    pages: list[Page] = []
    path = tmp_path / "page.html"

    def open_it(found: AttentionMap, pair: Pair = PAIR, locale: str = "en-GB", width: int = 1200) -> Page:
        write_attention_page(found, pair, path)
        page = browser.new_page(locale=locale, viewport={"width": width, "height": 900})
        pages.append(page)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: complaints.append(request.url))
        page.goto(path.as_uri())
        complaints.remove(path.as_uri())
        return page

    yield open_it
    for page in pages:
        page.close()
    assert complaints == []


def listed(page: Page) -> float:
    """Return the largest weight listed, in percent."""
    return float(page.locator("#readout tr").first.locator("td").nth(1).inner_text().removesuffix(" %"))


def test_a_token_shows_what_it_looks_at(opened: Open) -> None:
    found = recorded()
    page = opened(found)
    assert page.locator("#map-title").inner_text() == "Cross, layer 2, mean"
    page.locator("#rows button").nth(3).hover()
    mean = found.weights["cross"][1].mean(0)
    top = int(mean[3].argmax())
    assert page.locator("#readout p").inner_text() == "“temple” attends most to"
    assert listed(page) == pytest.approx(100 * float(mean[3, top]), abs=0.11)
    alpha = [
        float(colour.split("/")[1].strip(" )")) if "/" in colour else float(colour.split(",")[3].strip(" )"))
        for colour in page.locator("#columns button").evaluate_all("all => all.map((one) => one.style.background)")
    ]
    assert alpha.index(max(alpha)) == top
    page.locator("#columns button").nth(1).click()
    page.locator("#rows button").nth(0).hover()
    page.mouse.move(0, 0)
    assert page.locator("#readout p").inner_text() == "“京都” is attended to most by"  # held
    assert listed(page) == pytest.approx(100 * float(mean[:, 1].max()), abs=0.11)
    page.keyboard.press("Escape")
    assert page.locator("#readout").inner_text() == ""


def test_kind_layer_head_and_tokens_are_chosen_by_keys(opened: Open) -> None:
    page = opened(recorded())
    title, pressed = page.locator("#map-title"), page.keyboard.press
    pressed("Tab")
    pressed("ArrowLeft")
    assert title.inner_text() == "Decoder self, layer 2, mean"
    pressed("ArrowLeft")
    assert page.locator("#layers input").count() == 3
    pressed("Tab")
    pressed("ArrowRight")
    assert title.inner_text() == "Encoder self, layer 3, mean"
    pressed("Tab")
    pressed("ArrowRight")
    assert title.inner_text() == "Encoder self, layer 3, head 1"
    pressed("Tab")
    pressed("ArrowRight")
    assert page.locator("#readout p").inner_text() == "“京都” attends most to"
    assert page.locator("#rows .chosen").inner_text() == "京都"
    assert page.locator("#all button[aria-pressed=true]").get_attribute("data-place") == "2 0"
    page.locator("#all button").nth(1).click()
    assert title.inner_text() == "Encoder self, layer 1, head 2"


def test_the_map_is_painted_as_the_weights_are(opened: Open) -> None:
    """One pixel per weight, stronger in colour where the weight is larger, for the chosen head only."""
    found = recorded()
    page = opened(found)
    page.locator("#all button").nth(3).click()
    alphas = page.locator("#plot canvas").evaluate(
        "(one) => [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data].filter((_, i) => i % 4 == 3)"
    )
    weights = found.weights["cross"][1][1].flatten()
    assert alphas == pytest.approx([255 * float(weight) ** 0.6 for weight in weights], abs=1)


def test_each_target_token_has_a_line_to_its_source_token(opened: Open) -> None:
    page = opened(recorded())
    assert page.locator("#links path").count() == 5
    page.locator("#links ol:last-child li").nth(3).hover()
    assert page.locator("#links path.lit").count() == 1
    assert page.locator("#links li.lit").count() == 2


def test_hostile_tokens_run_nothing(opened: Open) -> None:
    page = opened(recorded([HOSTILE, EOS], [HOSTILE, EOS]), HOSTILE_PAIR)
    assert page.title() == f"Attention: {HOSTILE}"
    assert page.locator("#rows button").first.inner_text() == HOSTILE


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_nothing_is_wider_than_the_screen(opened: Open, width: int) -> None:
    many = [*(f"▁token{i}" for i in range(60)), EOS]
    page = opened(recorded(many, many), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    labels = page.locator("#plot .across")
    assert labels.evaluate("(one) => one.offsetHeight") < 120  # letters are side by side, not stacked


def test_a_japanese_reader_is_spoken_to_in_japanese(opened: Open) -> None:
    page = opened(recorded(), locale="ja-JP")
    assert page.locator("html").get_attribute("lang") == "ja"
    assert page.locator("h1").inner_text() == "翻訳器が見ているもの"
    assert page.locator("#map-title").inner_text() == "交差注意、第2層、平均"
