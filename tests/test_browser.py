"""The pages of the server, of attention, of an explanation and of a training, in a headless Chromium.

It may ask this machine only.

`python -m tests.test_browser RUN SENTENCE FILE` draws the server's page as shown in the READMEs, and
`python -m tests.test_browser PAGE FILE` the attention and the guesses of an explanation as shown in the guide.
"""

import base64
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from bench.serve import served
from bench.web import launched
from config.search import Limits, SearchConfig
from const.token import EOS
from tests import tiny
from tests.samples import HOSTILE, HOSTILE_PAIR, PAIR, page_data, recorded
from tests.served import Scribe, eventually, line_translator, served_run, serving, translator
from tests.tiny import MODEL, TEXT, translating
from utils.command import run_command
from utils.load import Run, load_run
from utils.run import find_run
from utils.search.forced import AttentionMap, Kind, attention_weights
from utils.search.translation import Translation
from utils.search.translator import Translator
from utils.serve.service import Options
from utils.training.report import Validation
from utils.training.schedule import Progress
from utils.visualize.attention import Pair, show_map, write_page
from utils.visualize.explain import Watch, show_explanation

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
PATIENCE_MS = 60_000  # of a test that is about to fail; it says nothing about how fast a page is
expect.set_options(timeout=PATIENCE_MS)
TEXT_JA = TEXT.src[3]


@cache
def best() -> Translation:
    return translator(beam=4).translate([TEXT_JA], n_best=4)[0]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a page; any error that it logs, and any request to somebody else, fails the test.

    Its clock goes on by itself, and a test may turn it: `page.clock.run_for(ms)`, `stopped(page)`.
    """
    complaints: list[str] = []
    contexts = []

    def open_it(url: str, allowed: str = "", width: int = 1200, **options: Any) -> Page:
        context = browser.new_context(**{"locale": "en-GB", "viewport": {"width": width, "height": 800}} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.clock.install(time=0)

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
        if url.startswith("http"):
            page.locator("#beam option").first.wait_for(state="attached")  # then it knows the runs of the server
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


def stopped(page: Page) -> Page:
    """Let time pass on the page only where the test says so."""
    page.clock.pause_at(3600)  # seconds, far ahead of any test
    return page


# ---- the page of the server, served by untrained runs


@pytest.fixture(scope="module")
def both() -> Iterator[str]:
    """A server of a run for each direction."""
    with serving([served_run("there"), served_run("back", back=True)]) as url:
        yield url


@pytest.fixture
def scribe() -> Scribe:
    return Scribe()


def translation(page: Page, expected: str) -> None:
    expect(page.locator("#translation")).to_have_text(expected, use_inner_text=True)


def type_text(page: Page, text: str) -> None:
    """Type, and touch nothing for as long as the page waits before it asks."""
    page.get_by_role("textbox").press_sequentially(text)
    page.clock.run_for(300)


def fill(page: Page, text: str) -> None:
    """Put a text in the place of all, and touch nothing for as long as the page waits before it asks."""
    page.get_by_role("textbox").fill(text)
    page.clock.run_for(300)


def is_question(request: Request) -> bool:
    return request.url.endswith("/api/translate")


def test_the_translation_appears_as_one_stops_typing(both: str, open_page: Open) -> None:
    page = stopped(open_page(both))
    asked: list[str] = []

    def note(request: Request) -> None:
        if is_question(request):
            asked.append(json.loads(request.post_data or "")["text"])

    page.on("request", note)
    for key in TEXT_JA:
        page.get_by_role("textbox").press_sequentially(key)
        page.clock.run_for(299)
    page.clock.run_for(1)
    expect(page.locator("#translation span")).to_have_text(best().text)
    assert asked == [TEXT_JA]
    expect(page.locator("#source-name")).to_have_text("Japanese (detected)")
    expect(page.locator("#target-name")).to_have_text("English")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#translation")).to_be_empty()
    expect(page.locator("#attention")).to_be_hidden()


def test_each_sentence_has_its_own_attention_and_candidates(both: str, open_page: Open) -> None:
    page = open_page(both)
    fill(page, f"{TEXT.src[0]}{TEXT.src[1]}\n{TEXT.src[77]}")
    spans = page.locator("#translation span")
    expect(spans).to_have_count(3)
    assert page.locator("#translation").inner_text().count("\n") == 1
    for i, source in ((2, TEXT.src[77]), (0, TEXT.src[0])):
        spans.nth(i).click()
        expect(page.locator("#translation .current")).to_have_count(1)
        assert "current" in str(spans.nth(i).get_attribute("class"))
        shown = "".join(page.locator("#from button").all_inner_texts()[:-1])
        assert shown.replace("▁", "") == source


def test_a_choice_survives_an_edit_and_a_link_brings_a_text(both: str, open_page: Open) -> None:
    page = open_page(both)
    page.goto(f"{both}/?q={TEXT_JA}")
    second = page.locator("#others button").nth(1)
    chosen = second.locator(".said").inner_text()
    second.click()
    expect(page.locator("#translation span")).to_have_text(chosen)
    page.get_by_role("textbox").press("End")
    type_text(page, TEXT.src[7])
    expect(page.locator("#translation span")).to_have_count(2)
    expect(page.locator("#translation span").first).to_have_text(chosen)


def test_examples_are_those_of_the_run(scribe: Scribe, open_page: Open) -> None:
    own = scribe.served()._replace(examples=["寺がある。", "川。"])
    with serving([own]) as url:
        page = open_page(url)
        page.get_by_role("button", name="川。").click()
        expect(page.locator("#translation")).to_have_text("。川")


def test_a_kind_of_text_is_chosen_where_one_run_is_meant(scribe: Scribe, open_page: Open) -> None:
    with serving([scribe.served()._replace(tags=["bt", "law"]), scribe.served("plain", "en", "ja")]) as url:
        page = open_page(url)
        tag = page.get_by_label("Kind of text")
        expect(tag).to_be_hidden()  # the language is to be detected
        page.get_by_label("Direction").select_option("ja→en")
        fill(page, "寺、川")
        translation(page, "川、寺")
        for chosen, text in (("law", "寺"), ("None", "川")):
            tag.select_option(chosen)
            fill(page, text)
            translation(page, text)
        assert [options.tag for options in scribe.options[:1] + scribe.options[-1:]] == [None, ""]
        assert "law" in [options.tag for options in scribe.options]
        page.get_by_label("Direction").select_option("en→ja")
        expect(tag).to_be_hidden()
        fill(page, "ab")
        translation(page, "ba")
        assert scribe.options[-1].tag is None


# Has the page read all answers, of requests that it has given up, too; `read` tells when it is done with the older one.
def test_an_older_answer_never_takes_the_place_of_a_newer_one(scribe: Scribe, open_page: Open) -> None:
    with serving([scribe.served()], Limits(batch_texts=1)) as url:
        page = open_page(url)
        # the first answer arrives long after the second one, and the page cannot stop it
        page.evaluate(
            """() => {
              AbortController.prototype.abort = () => {};
              const read = Response.prototype.json;
              window.answers = [];
              Response.prototype.json = async function () {
                const answer = await read.call(this);
                setTimeout(() => answers.push(answer));  // once the page has done with it what it does
                return answer;
              };
            }"""
        )
        held = []
        page.route(
            "**/api/translate", lambda r: held.append(r) if r.request.post_data_json["text"] == "京" else r.continue_()
        )
        with page.expect_request(is_question):
            type_text(page, "京")
        type_text(page, "都の駅")
        translation(page, "駅の都京")
        held[0].fulfill(json={"run": "scribe", "source": "ja", "target": "en", "seconds": 0, "sentences": []})
        page.wait_for_function("answers.at(-1)?.sentences.length === 0")
        translation(page, "駅の都京")


def test_what_is_being_typed_is_no_longer_asked_for(scribe: Scribe, open_page: Open) -> None:
    """The browser disconnects, and the server drops the text."""
    with serving([scribe.served()], Limits(batch_texts=1)) as url:
        page = stopped(open_page(url))

        def n_waiting(n: int) -> bool:
            return eventually(lambda: f'miyako_queue_texts{{run="scribe"}} {n}.0' in httpx.get(f"{url}/metrics").text)

        with scribe.held_up():
            type_text(page, "a")
            assert scribe.has_begun.wait(60)
            type_text(page, "b")
            assert n_waiting(1)
            page.get_by_role("textbox").press_sequentially("c")
            assert n_waiting(0)
            page.clock.run_for(300)
            assert n_waiting(1)
        translation(page, "cba")
    assert scribe.calls == [["a"], ["abc"]]


def test_pointing_at_a_word_shows_where_it_came_from(both: str, open_page: Open) -> None:
    page = open_page(both)
    fill(page, TEXT_JA)
    page.wait_for_selector("#into button")
    (line,) = line_translator()([TEXT_JA], Options(None, 4, True))
    (source_tokens,), (weights, *_) = line.source_tokens, line.attention[0]
    assert page.locator("#from button").count() == len(source_tokens)
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
    expect(page.locator("#telling")).to_contain_text(source_tokens[strongest].lstrip("▁"))
    assert page.locator("#woven path").count() > 0

    page.locator("#from button").nth(1).hover()
    assert shown("into") == pytest.approx([row[1] for row in weights])
    assert shown("from") == [0.0] * len(source_tokens)


def test_the_threads_are_reached_by_keys_and_by_touch(both: str, open_page: Open) -> None:
    page = open_page(both, has_touch=True)
    fill(page, TEXT_JA)
    page.wait_for_selector("#into button")
    page.locator("#from button").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#from button").nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.closest('.tokens').id") == "into"
    page.keyboard.press("Escape")
    expect(page.get_by_role("textbox")).to_be_focused()
    page.locator("#into button").nth(1).tap()
    expect(page.locator("#into button").nth(1)).to_have_class(re.compile("chosen"))


def test_the_direction_is_turned_round(both: str, open_page: Open) -> None:
    page = open_page(both)
    type_text(page, TEXT_JA)
    expect(page.locator("#translation span")).to_have_text(best().text)
    page.get_by_role("button", name="Translate the other way round").click()
    expect(page.get_by_role("textbox")).to_have_value(best().text)
    back = translator(back=True, beam=4).translate([best().text], n_best=4)[0].text
    expect(page.locator("#translation span")).to_have_text(back)
    expect(page.locator("#source-name")).to_have_text("English")
    expect(page.locator("#direction")).to_have_value("en→ja")


def test_markup_stays_text(scribe: Scribe, open_page: Open) -> None:
    text = "<img src=x onerror=document.title=1><script>document.title=2</script>"
    with serving([scribe.served()]) as url:
        page = open_page(url)
        fill(page, text[::-1])  # which the scribe turns round
        translation(page, text)
        assert page.locator("#translation img, #translation script").count() == 0
        assert page.title() == "都 Miyako"


@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_is_wider_than_the_window(both: str, open_page: Open, width: int) -> None:
    page = open_page(both, width=width)
    fill(page, f"{'寺' * 60}{TEXT_JA}\n{TEXT_JA}\n{'W' * 120}")
    page.locator("#translation span").nth(1).click()
    page.wait_for_selector("#into button")
    page.locator("details").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    overflowing = page.locator("#text, #translation, #others .said, .tokens").evaluate_all(
        "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.id || e.className)"
    )
    small = page.locator("button:visible, select:visible").evaluate_all(
        "all => all.filter(e => e.getBoundingClientRect().height < 32).map(e => e.id || e.textContent)"
    )
    assert (overflowing, small) == ([], [])


def test_it_speaks_the_readers_language_and_the_other(both: str, open_page: Open) -> None:
    page = open_page(both, locale="ja-JP")
    expect(page.get_by_label("ビーム幅")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "ja"
    page.get_by_role("button", name="English").click()
    page.reload()
    expect(page.get_by_label("Beam")).to_be_visible()  # remembered


@pytest.mark.parametrize(("status", "said"), [(503, "server is busy"), (400, "a line of the server")])
def test_a_trouble_is_told_and_passes(both: str, open_page: Open, status: int, said: str) -> None:
    page = open_page(both, allowed="Failed to load resource")
    page.route("**/api/translate", lambda r: r.fulfill(status=status, json={"error": "a line of the server"}))
    fill(page, TEXT_JA)
    expect(page.get_by_role("alert")).to_contain_text(said)
    page.unroute("**/api/translate")
    if status == 503:
        page.clock.run_for(2000)  # then the page asks again by itself
    else:
        page.get_by_label("Beam").select_option("4")
    expect(page.locator("#translation span")).to_have_text(best().text)
    expect(page.locator("#trouble")).to_be_empty()


def test_too_long_a_text_is_not_even_sent(scribe: Scribe, open_page: Open) -> None:
    with serving([scribe.served()], Limits(max_chars=5)) as url:
        page = stopped(open_page(url))
        type_text(page, "123456")
        expect(page.get_by_role("alert")).to_contain_text("6 characters exceed the limit of 5")
        assert scribe.calls == []
        page.keyboard.press("Backspace")
        page.clock.run_for(300)
        translation(page, "54321")


# ---- the page of attention


def write(folder: Path, attention: AttentionMap, pair: Pair = PAIR) -> str:
    """Write a page of attention, and return its address."""
    path = folder / "page.html"
    show_map(attention, pair, path)
    return path.as_uri()


def test_a_token_shows_what_it_looks_at(open_page: Open, tmp_path: Path) -> None:
    attention = recorded()
    page = open_page(write(tmp_path, attention))

    def listed() -> float:
        """Return the largest weight listed, in percent."""
        return float(page.locator("#readout tr").first.locator("td").nth(1).inner_text().removesuffix(" %"))

    assert page.locator("#map-title").inner_text() == "Cross, layer 2, mean"
    page.locator("#rows button").nth(3).hover()
    mean = attention.weights["cross"][1].mean(0)
    assert page.locator("#readout p").inner_text() == "“temple” attends most to"
    assert listed() == pytest.approx(100 * float(mean[3].max()), abs=0.11)
    page.locator("#columns button").nth(1).click()
    page.locator("#rows button").nth(0).hover()
    page.mouse.move(0, 0)
    assert page.locator("#readout p").inner_text() == "“京都” is attended to most by"  # held
    assert listed() == pytest.approx(100 * float(mean[:, 1].max()), abs=0.11)
    page.keyboard.press("Escape")
    assert page.locator("#readout").inner_text() == ""


def test_a_bert_attends_to_the_text_that_it_fills_in(open_page: Open, tmp_path: Path) -> None:
    tokens = ["<s>", "▁", "京都", "[MASK]", "寺", EOS]
    attention = AttentionMap(tokens, tokens, {"self": recorded(tokens, tokens).weights["encoder"]})
    url = write(tmp_path, attention, Pair("京都[MASK]寺", "京都の寺", "ja", "ja", "bert"))
    page = open_page(url)
    assert page.locator("#map-title").inner_text() == "Self-attention, layer 3, mean"
    assert page.locator("#rows-title").inner_text() == "Attending: each position of the text"
    assert page.locator("#columns-title").inner_text() == "Attended to: the same text"
    assert page.locator("#rows .special").all_inner_texts() == ["<s>", "[MASK]", EOS]
    expect(page.locator("#links-title")).to_have_count(0)
    in_japanese = open_page(url, locale="ja-JP")
    assert in_japanese.locator("#rows-title").inner_text() == "見る側：文の各位置"
    assert in_japanese.locator("#columns-title").inner_text() == "見られる側：同じ文"


# ---- the page that explains a translation


SEARCH = SearchConfig(beam_size=4, length_penalty=2.0)


class Explained(NamedTuple):
    url: str
    run: Run
    data: dict[str, Any]


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    """The page of a text, and the untrained run that it is about."""
    folder = tmp_path_factory.mktemp("explained")
    run, path = load_run(tiny.run(folder, replace(MODEL, max_length=20)), torch.device("cpu")), folder / "page.html"
    show_explanation(run, run.translator(SEARCH, "fp32"), TEXT_JA, path)
    return Explained(path.as_uri(), run, page_data(path))


@pytest.mark.parametrize(
    ("kind", "name"), [("encoder", "Encoder self"), ("decoder", "Decoder self"), ("cross", "Cross")]
)
def test_the_weights_that_the_page_computes_are_the_networks(
    explained: Explained, open_page: Open, kind: Kind, name: str
) -> None:
    page, (source, target) = open_page(explained.url), (explained.data[side]["ids"] for side in ("source", "target"))
    layers = attention_weights(explained.run.model, source[:-1], target[1:])[kind]
    page.get_by_role("radio", name=name).check()
    for place, number in (("#layers", len(layers)), ("#heads", 2)):
        page.locator(place).get_by_role("radio", name=str(number)).check()
    page.locator("#queries button").nth(3).click()
    shown = [float(text.removesuffix(" %")) for text in page.locator("#walk .share").all_inner_texts()]
    assert shown == pytest.approx((100 * layers[-1][1, 3]).tolist(), abs=0.2)
    scores = page.locator("#walk .number").all_inner_texts()
    assert scores.count("−∞") == (len(target) - 4 if kind == "decoder" else 0)
    page.locator("#walk .number").nth(1).hover()
    expect(page.locator("#telling")).to_contain_text(f"q·k/√8 = {scores[1]}, weight {shown[1]:.1f} %")


def test_every_number_is_reached_by_keys(explained: Explained, open_page: Open) -> None:
    page, data = open_page(explained.url, color_scheme="dark", forced_colors="active"), explained.data
    telling = page.locator("#telling")
    values = base64.b64decode(data["attention"]["cross"][1][1]["data"])  # the keys of the last layer, (H, S, K)
    page.locator("#walk canvas").nth(1).focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    value = int.from_bytes(values[18:20], "little", signed=True) * data["attention"]["cross"][1][1]["scale"]
    token = data["source"]["tokens"][1].replace("▁", " ").strip() or "␣"
    expect(telling).to_have_text(f"key k, {token}, component 2, {value:.3f}".replace("-", "−"))
    page.locator("#guesses button").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    (token, p), *_ = data["guesses"][1][1]
    expect(telling).to_contain_text(f"layer 2, {token.replace('▁', ' ').strip()} {100 * p:.1f} %, ")
    page.locator("#source button").nth(2).focus()
    expect(telling).to_contain_text(f"number {data['source']['ids'][2]}")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#source button").nth(3)).to_have_class(re.compile("chosen"))
    page.locator("#tree button").first.focus()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.closest('#tree') !== null")


def test_the_tree_says_what_won_and_why_the_others_dropped_out(explained: Explained, open_page: Open) -> None:
    page = open_page(explained.url)
    (translation,) = explained.run.translator(SEARCH, "fp32").translate([TEXT_JA])
    assert page.locator("#finished strong").inner_text() == translation.text
    best = page.locator("#tree button.best")
    shown = ["".join(text.split("\n")[:-1]) for text in best.all_inner_texts()]  # each above its log-probability
    assert shown == [*translation.candidates[0].tokens, EOS]
    best.last.hover()
    score = f"{translation.candidates[0].score:.2f}".replace("-", "−")
    expect(page.locator("#telling")).to_contain_text(f"= score {score}")
    page.locator("#tree .beside button.dead").first.hover()
    expect(page.locator("#telling")).to_contain_text("rank 5, ")
    expect(page.locator("#telling")).to_contain_text("not among the 4 best, out of the beam")


# ---- the page of a training


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    """The page of a training of four validations, at each of which the network is another."""
    folder = tmp_path_factory.mktemp("learned")
    run = load_run(tiny.run(folder), torch.device("cpu"))
    networks = iter([translating(seed=seed) for seed in range(5)])

    def translator() -> Translator:
        return run._replace(model=next(networks)).translator(SearchConfig(beam_size=1), "fp32")

    with closing(Watch(folder, 0, TEXT[:5], translator, ("ja", "en"))) as watch:
        for i in range(1, 5):
            watch.on_validation(Progress(1000 * i, seconds=90.0 * i), Validation(9.0 - i, {"bleu": 10.0 * i}))
    return Explained((folder / "watch.html").as_uri(), run, page_data(folder / "watch.html"))


def at_frame(page: Page, learned: Explained, frame: int, chosen: int = 0) -> None:
    """The page shows this validation: every translation, the scores, and what is inside of the chosen sentence."""
    record = learned.data["frames"][frame]
    for place, sentence in zip(page.locator("#sentences .said").all(), record["sentences"], strict=True):
        expect(place).to_have_text(sentence["translation"], use_inner_text=True)
    expect(page.locator("#now")).to_contain_text(f"update {record['step']:,} (" if frame else "before the first update")
    assert page.locator("#now .bleu").all_inner_texts() == ([f"BLEU {record['bleu']:.2f}"] if frame else [])
    written = page.locator("#guesses th:first-child").all_inner_texts()[1:]
    assert written == record["sentences"][chosen]["said"]
    assert page.locator("#plot .down span[lang]").all_inner_texts() == written


def test_the_slider_moves_by_keys_and_all_translations_with_it(learned: Explained, open_page: Open) -> None:
    page = open_page(learned.url)
    expect(page.get_by_role("slider", name="validation")).to_be_focused()  # keys work at once
    at_frame(page, learned, 0)
    assert page.locator("mark").count() == 0  # nothing is new yet
    for key, frame in (("ArrowRight", 1), ("ArrowRight", 2), ("End", 4), ("ArrowLeft", 3), ("Home", 0)):
        page.keyboard.press(key)
        at_frame(page, learned, frame)
    page.keyboard.press("ArrowRight")
    before, now = (frame["sentences"][0]["translation"] for frame in learned.data["frames"][:2])
    new = page.locator("#sentences button").first.locator("mark").all_inner_texts()
    words = re.findall(r"\w+", now)
    assert new == [word for word in words if word not in re.findall(r"\w+", before)] != []


def test_a_training_plays_from_its_beginning_and_stops_at_its_end(learned: Explained, open_page: Open) -> None:
    page = stopped(open_page(learned.url))
    page.get_by_role("slider").press("End")
    page.get_by_role("button", name="Play").click()
    for frame in range(5):
        at_frame(page, learned, frame)
        page.clock.run_for(800)
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(1600)
    page.get_by_role("button", name="Stop").click()
    page.clock.run_for(8000)
    at_frame(page, learned, 2)


def test_a_sentence_shows_its_attention_and_guesses(learned: Explained, open_page: Open) -> None:
    page = open_page(learned.url)
    page.get_by_role("slider").press("End")
    page.locator("#sentences button").nth(1).focus()
    page.keyboard.press("ArrowDown")
    at_frame(page, learned, 4, chosen=2)
    sentence = learned.data["frames"][4]["sentences"][2]
    expect(page.locator("#reference")).to_have_text(sentence["reference"])
    for layer in (1, 2):
        page.locator("#layers").get_by_role("radio", name=str(layer)).check()
        page.locator("#plot canvas").focus()
        page.keyboard.press("ArrowDown")
        share = sentence["cross"][layer - 1][1][0] / 1000
        expect(page.locator("#telling")).to_contain_text(f", {share:.3f}")
    (_, p), *_ = sentence["guesses"][0][0]
    assert page.locator("#guesses button").first.inner_text().split("\n")[-1] == f"{100 * p:.1f} %"


# ---- what holds for all pages that are files


@pytest.mark.parametrize("width", [375, 1200])
@pytest.mark.parametrize(
    ("name", "japanese", "english"),
    [
        ("explained", "この訳ができるまで", "How this translation came about"),
        ("learned", "訳せるようになるまで", "How it learned to translate"),
    ],
)
def test_a_page_fits_the_window_in_either_language(
    request: pytest.FixtureRequest, open_page: Open, name: str, japanese: str, english: str, width: int
) -> None:
    url, heading = request.getfixturevalue(name).url, {"ja": japanese, "en": english}
    page = open_page(url, width=width, locale="ja-JP", color_scheme="dark", forced_colors="active")
    if name == "learned":
        page.get_by_role("slider").press("End")
        expect(page.locator("#now")).to_contain_text("更新 4,000 回")
    expect(page.get_by_role("heading", level=1)).to_have_text(heading["ja"])
    shown = page.locator("h2, h3, main > p:not(.texts, .muted), section > p, #now, #telling").all_inner_texts()
    assert not re.search("[a-z]{2,} [a-z]{2,} [a-z]{2,}", " ".join(text for text in shown if "There" not in text))
    for language, link in (("en", "English"), ("ja", "日本語")):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("link", name=link).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(heading[language])


def test_hostile_texts_stay_texts(explained: Explained, learned: Explained, open_page: Open, tmp_path: Path) -> None:
    def opened(title: str) -> Page:
        page = open_page((tmp_path / "page.html").as_uri())
        assert page.title() == f"{title}: {HOSTILE}"
        return page

    write(tmp_path, recorded([HOSTILE, EOS], [HOSTILE, EOS]), HOSTILE_PAIR)
    assert opened("Attention").locator("#rows button").first.inner_text() == HOSTILE

    tokens = json.loads(json.dumps(explained.data).replace('"Th"', json.dumps(HOSTILE)))
    write_page("explain.html", tokens, HOSTILE_PAIR, tmp_path / "page.html")
    page = opened("Explained")
    for place in ("#queries", "#guesses", "#tree"):
        assert HOSTILE in page.locator(place).inner_text()

    sentences = json.loads(json.dumps(learned.data))
    for frame in sentences["frames"]:
        frame["sentences"][0] |= {"source": HOSTILE, "translation": HOSTILE, "reference": HOSTILE}
    write_page("watch.html", sentences, HOSTILE_PAIR, tmp_path / "page.html")
    page = opened("Learning")
    assert page.locator("#sentences button").first.inner_text().count(HOSTILE) == 2
    expect(page.locator("#reference")).to_have_text(HOSTILE)


def locale_of(picture: Path) -> str:
    """That of what a picture is called."""
    return "ja-JP" if picture.suffixes == [".ja", ".png"] else "en-GB"


def make_small(picture: Path) -> None:
    """256 colours: a third of the size."""
    Image.open(picture).quantize().save(picture, optimize=True)


def draw_explanation(explanation: Path, picture: Path) -> None:
    """Photograph the sections of attention and of the layers' guesses."""
    with sync_playwright() as playwright, launched(playwright) as browser:
        page = browser.new_page(viewport={"width": 860, "height": 600}, locale=locale_of(picture))
        page.goto(explanation.resolve().as_uri())
        others = "#telling, main > :not(section), section:not(:nth-of-type(3), :nth-of-type(4))"
        page.add_style_tag(content=f"{others} {{ display: none; }} body {{ padding: 0 1rem 1rem; margin-top: -2rem; }}")
        page.locator("body").screenshot(path=picture)
    make_small(picture)


def draw_page() -> None:
    """Have a sentence translated on the page, point at the second token of the translation, and photograph it."""
    if len(sys.argv) == 3:
        draw_explanation(Path(sys.argv[1]), Path(sys.argv[2]))
        return
    if len(sys.argv) != 4:
        raise ValueError("give a run, a sentence and a file: python -m tests.test_browser RUN SENTENCE FILE")
    own, picture = served([find_run(Path(sys.argv[1]))]), Path(sys.argv[3])
    with own as (url, _), sync_playwright() as playwright, launched(playwright) as browser:
        page = browser.new_page(viewport={"width": 1000, "height": 600}, locale=locale_of(picture))
        page.goto(url)
        page.get_by_role("textbox").fill(sys.argv[2])
        page.locator("#into > *").nth(1).hover()
        page.wait_for_timeout(500)  # of animation
        page.screenshot(path=picture, full_page=True)
    make_small(picture)


if __name__ == "__main__":
    run_command("draw_page", draw_page)
