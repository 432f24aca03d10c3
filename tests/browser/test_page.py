"""The page in a real browser, served by untrained runs."""

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.tiny import TEXT
from tests.utils.serve.served import Scribe, interpreter, route, serving, translator
from utils.serve.service import Asked, Limits

pytestmark = pytest.mark.browser

TEXT_JA, TEXT_EN = TEXT.src[3], TEXT.tgt[7]
BEST = translator(beam=4).translate([TEXT_JA], n_best=4)[0]


@pytest.fixture(scope="module")
def both() -> Iterator[str]:
    """A server of a run for each direction."""
    with serving([route("there"), route("back", back=True)]) as url:
        yield url


@pytest.fixture
def scribe() -> Scribe:
    return Scribe()


def translation(page: Page, expected: str) -> None:
    expect(page.locator("#translation")).to_have_text(expected, use_inner_text=True)


def type_text(page: Page, text: str) -> None:
    page.get_by_role("textbox").press_sequentially(text)


def test_the_translation_appears_as_one_stops_typing(both: str, open_page: Open) -> None:
    page = open_page(both)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.post_data or "") if "translate" in request.url else None)
    page.get_by_role("textbox").press_sequentially(TEXT_JA, delay=40)
    expect(page.locator("#translation p")).to_have_text(BEST.text)
    assert json.loads(asked[-1])["text"] == TEXT_JA
    assert len(asked) < len(TEXT_JA) / 2
    expect(page.locator("#source-name")).to_have_text("Japanese")
    expect(page.locator("#target-name")).to_have_text("English")
    assert page.locator("#translation").get_attribute("aria-live") == "polite"
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#translation")).to_be_empty()
    expect(page.locator("#attention")).to_be_hidden()


def test_an_older_answer_never_takes_the_place_of_a_newer_one(scribe: Scribe, open_page: Open) -> None:
    with serving([scribe.route()], Limits(batch_texts=1)) as url:
        page = open_page(url)
        # the first answer arrives long after the second one, and the page cannot stop it
        page.evaluate("() => { AbortController.prototype.abort = () => {}; }")
        held = []
        page.route(
            "**/api/translate", lambda r: held.append(r) if r.request.post_data_json["text"] == "京" else r.continue_()
        )
        type_text(page, "京")
        assert eventually(page, lambda: len(held) == 1)
        type_text(page, "都の駅")
        translation(page, "駅の都京")
        held[0].fulfill(json={"run": "scribe", "source": "ja", "target": "en", "seconds": 0, "lines": []})
        page.wait_for_timeout(300)
        translation(page, "駅の都京")


def eventually(page: Page, holds: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true while the browser keeps running."""
    for _ in range(200):
        if holds():
            return True
        page.wait_for_timeout(20)
    return False


def test_what_is_being_typed_is_no_longer_asked_for(scribe: Scribe, open_page: Open) -> None:
    """The browser disconnects, and the server drops the text."""
    with serving([scribe.route()], Limits(batch_texts=1)) as url:
        page = open_page(url)
        with scribe.held_up():
            for text in ("a", "b", "c"):
                type_text(page, text)
                page.wait_for_timeout(500)
        translation(page, "cba")
    assert scribe.calls == [["a"], ["abc"]]


def test_pointing_at_a_word_shows_where_it_came_from(both: str, open_page: Open) -> None:
    page = open_page(both)
    type_text(page, TEXT_JA)
    page.wait_for_selector("#into button")
    (line,) = interpreter().translate([TEXT_JA], Asked(None, 4, True))
    weights = line.attention[0]
    assert page.locator("#from button").count() == len(line.source_tokens)
    assert page.locator("#into button").count() == len(line.translation.candidates[0].tokens)

    def shown(row: str) -> list[float]:
        return [
            float(button.evaluate("b => b.style.getPropertyValue('--weight')") or 0)
            for button in page.locator(f"#{row} button").all()
        ]

    page.locator("#into button").nth(2).hover()
    assert shown("from") == pytest.approx(weights[2])
    assert "chosen" in str(page.locator("#into button").nth(2).get_attribute("class"))
    strongest = max(range(len(weights[2])), key=weights[2].__getitem__)
    expect(page.locator("#telling")).to_contain_text(f"{round(100 * weights[2][strongest])} %")
    expect(page.locator("#telling")).to_contain_text(line.source_tokens[strongest].lstrip("▁"))
    assert page.locator("#woven path").count() > 0

    page.locator("#from button").nth(1).hover()
    assert shown("into") == pytest.approx([row[1] for row in weights])
    assert shown("from") == [0.0] * len(line.source_tokens)
    page.mouse.move(0, 0)
    assert shown("into") == [0.0] * len(weights)


def test_the_threads_are_reached_by_keys_and_by_touch(both: str, open_page: Open) -> None:
    page = open_page(both, has_touch=True)
    type_text(page, TEXT_JA)
    page.wait_for_selector("#into button")
    page.locator("#from button").first.focus()
    expect(page.locator("#from button").first).to_have_class("chosen")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#from button").nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.parentElement.id") == "into"
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.parentElement.id") == "from"
    page.keyboard.press("Escape")
    expect(page.get_by_role("textbox")).to_be_focused()
    page.locator("#into button").nth(1).tap()
    expect(page.locator("#into button").nth(1)).to_have_class("chosen")
    # one Tab stop per row, not one per word
    assert page.locator("#from button[tabindex='0']").count() == page.locator("#into button[tabindex='0']").count() == 1


def test_other_translations_take_the_place_of_the_best(both: str, open_page: Open) -> None:
    page = open_page(both)
    type_text(page, TEXT_JA)
    expect(page.locator("#others .said")).to_have_text([candidate.text for candidate in BEST.candidates])
    page.locator("#others button").nth(2).click()
    expect(page.locator("#translation p")).to_have_text(BEST.candidates[2].text)
    expect(page.locator("#others button").nth(2)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#others button").nth(2)).to_be_focused()
    assert page.locator("#into button").count() == len(BEST.candidates[2].tokens)


def test_the_direction_is_turned_round(both: str, open_page: Open) -> None:
    page = open_page(both)
    type_text(page, TEXT_JA)
    expect(page.locator("#translation p")).to_have_text(BEST.text)
    page.get_by_role("button", name="Translate the other way round").click()
    expect(page.get_by_role("textbox")).to_have_value(BEST.text)
    back = translator(back=True, beam=4).translate([BEST.text], n_best=4)[0].text
    expect(page.locator("#translation p")).to_have_text(back)
    expect(page.locator("#source-name")).to_have_text("English")
    expect(page.locator("#direction")).to_have_value("en→ja")


def test_run_and_beam_are_chosen(scribe: Scribe, open_page: Open) -> None:
    with serving([scribe.route("one"), scribe.route("two"), scribe.route("three", "en", "ja")]) as url:
        page = open_page(url)
        type_text(page, "ab")
        translation(page, "ba")
        expect(page.locator("#time")).to_contain_text("three")
        page.get_by_label("Direction").select_option("Japanese → English")
        expect(page.locator("#time")).to_contain_text("one")
        assert page.locator("#run option").all_inner_texts() == ["The first that fits", "one", "two"]
        page.get_by_label("Run").select_option("two")
        expect(page.locator("#time")).to_contain_text("two")
        page.get_by_label("Beam").select_option("2")
        assert eventually(page, lambda: scribe.asked[-1] == Asked(2, 2, True))


def test_each_line_has_its_own_threads(both: str, open_page: Open) -> None:
    page = open_page(both)
    text = page.get_by_role("textbox")
    text.fill(f"{TEXT.src[3]}\n\n{TEXT.src[50]}")
    found = interpreter().translate([TEXT.src[3], TEXT.src[50]], Asked(None, 4, True))
    expect(page.locator("#translation p")).to_have_text([found[0].translation.text, "", found[1].translation.text])
    n_tokens = [len(line.source_tokens) for line in found]
    expect(page.locator("#from button")).to_have_count(n_tokens[1])
    text.press("Control+Home")
    expect(page.locator("#from button")).to_have_count(n_tokens[0])


def test_markup_stays_text(scribe: Scribe, open_page: Open) -> None:
    text = "<img src=x onerror=document.title=1><script>document.title=2</script>"
    with serving([scribe.route()]) as url:
        page = open_page(url)
        page.get_by_role("textbox").fill(text[::-1])  # which the scribe turns round
        page.get_by_label("Direction")
        translation(page, text)
        expect(page.locator("#into button")).to_have_count(0)
        assert page.locator("#translation img, #translation script").count() == 0
        assert page.title() == "都 Miyako"


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_window(both: str, open_page: Open, width: int) -> None:
    page = open_page(both, viewport={"width": width, "height": 800})
    page.get_by_role("textbox").fill(f"{'寺' * 60}{TEXT_JA}\n{TEXT_JA}\n{'W' * 120}")
    page.wait_for_selector("#translation p")
    page.wait_for_timeout(200)
    page.locator("details").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut_off = page.locator("#text, #translation, #others .said, .tokens").evaluate_all(
        "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.id || e.className)"
    )
    assert cut_off == []
    small = page.locator("button:visible, select:visible").evaluate_all(
        "all => all.filter(e => e.getBoundingClientRect().height < 32).map(e => e.id || e.textContent)"
    )
    assert small == []


def test_it_speaks_the_readers_language_and_the_other(both: str, open_page: Open) -> None:
    page = open_page(both, locale="ja-JP")
    expect(page.get_by_label("ビーム幅")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "ja"
    assert page.locator("#direction option").all_inner_texts() == ["言語を検出", "日本語 → 英語", "英語 → 日本語"]
    page.get_by_role("button", name="English").click()
    expect(page.get_by_label("Beam")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Beam")).to_be_visible()  # remembered


def test_it_is_dark_where_the_reader_likes_it_dark(both: str, open_page: Open) -> None:
    def brightness(scheme: str) -> int:
        page = open_page(both, color_scheme=scheme)
        colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return sum(int(part) for part in colour.strip("rgb()").split(","))

    assert brightness("light") > 600
    assert brightness("dark") < 150


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (503, "server is busy"),
        (504, "took too long"),
        (500, "Something went wrong"),
        (400, "a line of the server"),
    ],
)
def test_a_trouble_is_told_and_passes(both: str, open_page: Open, status: int, said: str) -> None:
    page = open_page(both, allowed="Failed to load resource")
    page.route("**/api/translate", lambda r: r.fulfill(status=status, json={"error": "a line of the server"}))
    type_text(page, TEXT_JA)
    expect(page.get_by_role("alert")).to_contain_text(said)
    page.unroute("**/api/translate")
    if status != 503:  # then the page asks again by itself
        page.get_by_label("Beam").select_option("4")
    expect(page.locator("#translation p")).to_have_text(BEST.text)
    expect(page.locator("#trouble")).to_be_empty()


def test_a_server_that_is_gone_is_asked_again(scribe: Scribe, open_page: Open) -> None:
    with serving([scribe.route()]) as url:
        page = open_page(url, allowed="Failed to load resource")
    type_text(page, "ab")
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    assert scribe.calls == []


def test_too_long_a_text_is_not_even_sent(scribe: Scribe, open_page: Open) -> None:
    with serving([scribe.route()], Limits(max_chars=5)) as url:
        page = open_page(url)
        type_text(page, "123456")
        expect(page.get_by_role("alert")).to_contain_text("6 characters exceed the limit of 5")
        assert scribe.calls == []
        page.keyboard.press("Backspace")
        translation(page, "54321")
        page.get_by_role("textbox").fill("12\n345")  # line ends do not count as characters
        translation(page, "21\n\n543")


def test_too_many_lines_are_not_even_sent_and_what_was_said_before_looks_old(scribe: Scribe, open_page: Open) -> None:
    with serving([scribe.route()], Limits(max_texts=2)) as url:
        page = open_page(url, locale="ja-JP")
        type_text(page, "ab")
        translation(page, "ba")
        page.get_by_role("textbox").fill("a\nb\nc")
        expect(page.get_by_role("alert")).to_contain_text("3 行あります。一度に訳せるのは 2 行までです。")
        assert len(scribe.calls) == 1
        expect(page.locator("#translation")).to_have_class("stale")


def test_an_empty_page_offers_sentences(both: str, open_page: Open) -> None:
    page = open_page(both)
    page.locator("#tries button").first.click()
    assert page.get_by_role("textbox").input_value()
    page.wait_for_selector("#translation p")
    expect(page.locator("#tries")).to_be_hidden()
