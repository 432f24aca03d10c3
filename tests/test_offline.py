"""What a browser does by itself: the page that looks inside a translator as it works."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect

from bench.web import static
from config.search import SearchConfig
from const.path import PICKLES, ROOT
from tests import tiny
from tests.explained import explained
from tests.samples import HOSTILE
from tests.test_browser import PATIENCE_MS
from tests.tiny import MODEL, TEXT
from utils.command import content_policy, page_template
from utils.export.graph import Traced, write_graphs
from utils.export.web import PACKAGE, RUNTIME, VERSION, find_runtime, write_web
from utils.load import Run, load_run
from utils.run import WEIGHTS
from utils.text.tokenizer import TokenizerPair
from utils.text.words import WORDS
from utils.training.checkpoint import read_weights, write_weights
from utils.training.schedule import Rank

pytestmark = pytest.mark.browser
expect.set_options(timeout=PATIENCE_MS)


# ---- the page that looks inside; it asks a network in PyTorch

SENTENCE, OTHER = TEXT.src[3], TEXT.src[40]
Answer = Callable[[dict[str, Any]], dict[str, Any]]
Explore = Callable[..., Page]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """An untrained run of two layers with two heads each, which answers as it is asked."""
    folder = tiny.run(tmp_path_factory.mktemp("explained"), replace(MODEL, max_length=16))
    run = load_run(folder, torch.device("cpu"))
    return partial(explained, run, run.translator(SearchConfig(beam_size=3, max_ratio=1.0), "fp32"))


@pytest.fixture
def explore(browser: Browser, network: Answer) -> Iterator[Explore]:
    """Opens the page with a fragment; `page.questions` has what it asked. Any error that it logs fails the test."""
    complaints: list[str] = []
    contexts = []
    html = page_template(ROOT / "utils/web/explorer.html").render(policy="POLICY", inside=None)
    html = html.replace("POLICY", content_policy(html), 1)

    def opened(answer: Answer = network, checkpoints: list[str] | None = None, **options: Any) -> Page:
        fragment = urlencode(options.pop("at", {"q": SENTENCE}))
        context = browser.new_context(**{"locale": "en-GB", "viewport": {"width": 1200, "height": 800}} | options)
        contexts.append(context)
        page, questions = context.new_page(), []
        page.set_default_timeout(PATIENCE_MS)

        def respond(route: Route) -> None:
            if route.request.url.endswith("/api/runs"):
                runs = [{"name": name, "source": "ja", "target": "en", "examples": [OTHER]} for name in ("one", "two")]
                route.fulfill(json={"runs": [run | {"checkpoints": checkpoints or []} for run in runs]})
            elif route.request.url.endswith("/explain"):
                questions.append(json.loads(route.request.post_data or ""))
                answered = answer(questions[-1])
                route.fulfill(json=answered, status=400 if "error" in answered else 200)
            else:
                route.fulfill(body=html, content_type="text/html")

        def note(message: ConsoleMessage) -> None:
            if message.type == "error" and "status of 400" not in message.text:  # a refusal, which the page shows
                complaints.append(message.text)

        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.route("**/*", respond)
        page.goto(f"http://explainer/explain.html#{fragment}")
        page.questions = questions  # type: ignore[attr-defined]
        expect(page.locator("body:not(.working) .panels")).to_be_attached()
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def asked(page: Page, n: int) -> dict[str, Any]:
    """The n-th question, once it is answered."""
    expect(page.locator("body:not(.working) .panels")).to_be_attached()
    for _ in range(100):
        if len(page.questions) >= n:  # type: ignore[attr-defined]
            break
        page.wait_for_timeout(50)
    expect(page.locator("body")).not_to_have_class(re.compile("working"))
    return page.questions[n - 1]  # type: ignore[attr-defined]


def test_a_head_is_muted_by_click_or_key_and_shown_beside_what_was(explore: Explore, network: Answer) -> None:
    page = explore(at={"q": SENTENCE, "show": "attention", "kind": "decoder"})
    page.get_by_role("radio", name="Cross").check()
    expect(page.locator("#was")).to_be_hidden()
    page.locator(".heads [data-place='1 0']").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#view h2")).to_have_text("Cross, layer 2, head 2")
    page.keyboard.press("Enter")
    heads = asked(page, 2)["heads"]
    assert heads == {"encoder": [[1, 1]], "self": [[1, 1], [1, 1]], "cross": [[1, 1], [1, 0]]}
    assert page.evaluate("document.activeElement.dataset.place") == "1 1"
    expect(page.locator(".heads [data-place='1 1']")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".panel > h3")).to_have_text(["Now", "Before"])
    for place, question in (("#now", asked(page, 2)), ("#before", asked(page, 1))):
        expect(page.locator(place)).to_have_text(network(question)["text"], use_inner_text=True)
    page.locator(".heads .row").first.click()  # a whole layer
    assert asked(page, 3)["heads"]["cross"] == [[0, 0], [1, 0]]
    page.get_by_role("button", name="Take back: Cross, layer 1, head 2 muted").click()
    assert asked(page, 4)["heads"]["cross"] == [[0, 1], [1, 0]]
    page.get_by_role("button", name="Take everything back").click()
    expect(page.locator("#was")).to_be_hidden()
    assert len(page.questions) == 4  # type: ignore[attr-defined]  # what was before is known


def test_a_source_word_is_hidden(explore: Explore) -> None:
    page = explore(at={"q": SENTENCE, "show": "attention"})
    page.locator("#reads button").nth(2).click()
    assert asked(page, 2)["hidden"] == [2]
    shown = page.locator(".panel").first.locator("canvas")
    shown.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator("#telling")).to_contain_text(", 0.000")  # nobody looks at it
    expect(page.locator("#reads button").nth(2)).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("show", ["tokens", "guesses", "beam"])
def test_a_token_is_forced_and_forbidden(explore: Explore, network: Answer, show: str) -> None:
    page = explore(at={"q": SENTENCE, "show": show})
    before = network({"text": SENTENCE})
    first, *_ = before["target"]["ids"][1:]
    button = page.locator("#view button.best, #view .tokens button, #view td:last-child button.agrees").first
    page.get_by_role("radio", name="forbids it").check()
    button.click()
    assert asked(page, 2)["forbidden"] == [[0, first]]
    assert network(asked(page, 2))["target"]["ids"][1] != first
    expect(page.locator("#changes")).to_contain_text("as token 1")
    page.get_by_role("radio", name="forces it").check()
    page.locator(".panel").last.locator("button").nth(0).click()  # in what was before
    question = asked(page, 3)
    assert question["forbidden"] == []
    assert question["prefix"] == network(question)["target"]["ids"][1:2]
    expect(page.locator("#changes")).to_contain_text("begins with “")
    page.locator(".panel").first.locator("button").nth(0).press("Delete")
    question = asked(page, 4)
    assert (question["prefix"], len(question["forbidden"])) == ([], 1)


def test_what_is_searched_with_changes_by_sliders(explore: Explore) -> None:
    page = explore(at={"q": SENTENCE, "show": "beam", "run": "two"}, checkpoints=["100", "200", "300"])
    page.get_by_role("slider", name="Beam").press("ArrowLeft")
    assert (asked(page, 2)["run"], asked(page, 2)["beam"]) == ("two", 2)
    expect(page.locator("#tree, .beam").first).to_have_css("--beams", "2")
    page.get_by_role("slider", name="Length penalty").press("ArrowRight")
    assert asked(page, 3)["length_penalty"] == pytest.approx(0.1 + asked(page, 1).get("length_penalty", 0.6), abs=1)
    page.get_by_role("slider", name="Training").press("Home")
    assert asked(page, 4)["checkpoint"] == "100"
    page.get_by_role("slider", name="Training").press("End")
    assert "checkpoint" not in asked(page, 5)


def test_a_link_opens_what_was_shown(explore: Explore) -> None:
    page = explore(at={"q": SENTENCE, "show": "guesses", "run": "two"})
    expect(page.locator("table.guesses")).to_have_count(1)
    page.locator("#reads button").nth(1).click()
    page.get_by_role("radio", name="Attention").check()
    page.get_by_role("radio", name="Encoder self").check()
    asked(page, 2)
    link = page.url
    fields = dict(pair.split("=") for pair in link.partition("#")[2].split("&"))
    assert (fields["show"], fields["kind"], fields["run"]) == ("attention", "encoder", "two")
    shown = page.locator("#view").inner_text(), page.locator("#changes").inner_text()
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator("#changes button")).to_have_count(2)
    asked(page, 4)
    assert (page.locator("#view").inner_text(), page.locator("#changes").inner_text()) == shown
    page.get_by_role("link", name="日本語").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("翻訳モデルの中を見る")
    expect(page.locator("#changes button")).to_have_count(2)


def test_another_text_keeps_muted_heads_and_nothing_of_the_old_text(explore: Explore) -> None:
    page = explore(at={"q": SENTENCE, "with": json.dumps([["hidden", 1, "x"], ["muted", "cross", 0, 1]])})
    page.get_by_role("textbox").fill(OTHER)
    expect(page.locator("#changes button")).to_have_count(2)
    question = asked(page, 4)
    assert (question["text"], question["hidden"]) == (OTHER, [])
    assert question["heads"]["cross"] == [[1, 0], [1, 1]]


@pytest.mark.parametrize("show", ["tokens", "attention", "guesses", "beam"])
@pytest.mark.parametrize("width", [375, 1200])
def test_it_fits_the_window_in_either_language(explore: Explore, width: int, show: str) -> None:
    changes = json.dumps([["muted", "cross", 0, 0], ["hidden", 1, "x"], ["beam", 2]])
    page = explore(
        at={"q": SENTENCE, "show": show, "with": changes},
        locale="ja-JP",
        viewport={"width": width, "height": 800},
        color_scheme="dark",
        forced_colors="active",
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shown = page.locator("h1, h2, h3, legend, label > span, p:not(#now, #before, .panel *), #changes").all_inner_texts()
    assert not re.search("[a-z]{3,} [a-z]{2,}", " ".join(shown))


def test_texts_stay_texts(explore: Explore, network: Answer) -> None:
    def hostile(body: dict[str, Any]) -> dict[str, Any]:
        answer = json.dumps(network(body | {"text": SENTENCE}))
        return json.loads(answer.replace('"Th"', json.dumps(HOSTILE)))

    for show in ("tokens", "attention", "guesses", "beam"):
        page = explore(hostile, at={"q": HOSTILE, "show": show, "with": json.dumps([["hidden", 0, HOSTILE]])})
        assert page.title() == "Inside the translator"
        assert HOSTILE in page.locator("#view").inner_text()


def test_a_refusal_is_shown_and_what_was_shown_stays(explore: Explore, network: Answer) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return network(body) if body["text"] == SENTENCE else {"error": f"{body['text']}: {HOSTILE}"}

    page = explore(answer)
    shown = page.locator("#now").inner_text()
    page.get_by_role("textbox").fill("too long")
    expect(page.get_by_role("alert")).to_have_text(f"too long: {HOSTILE}")
    expect(page.locator("#now")).to_have_text(shown, use_inner_text=True)
    page.get_by_role("textbox").fill(SENTENCE)
    expect(page.get_by_role("alert")).to_have_text("")


def test_the_explainer_uses_only_what_a_static_host_sends() -> None:
    html = page_template(ROOT / "utils/web/explorer.html").render(policy="", inside=None)
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//|@import|url\(""", html)


# ---- pages that translate by themselves


NO_RUNTIME = f"node_modules/ has no {PACKAGE}: `make runtime` gets it from npm"


@pytest.fixture(scope="module")
def runtime() -> Path:
    """What computes in a browser; without npm or a network it may be missing, but not in CI."""
    try:
        return find_runtime(ROOT / "node_modules" / PACKAGE)
    except ValueError:
        assert not os.environ.get("CI"), NO_RUNTIME
        pytest.skip(NO_RUNTIME)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run for each direction; they differ in positions, and have learned nothing."""
    root = tmp_path_factory.mktemp("runs")
    there = tiny.run(root, replace(MODEL, positions="rotary"))
    with pytest.MonkeyPatch.context() as patch:
        both = tiny.tokenizers()
        patch.setattr(tiny, "tokenizers", lambda: TokenizerPair(both.tgt, both.src))
        back = tiny.run(root, replace(MODEL, norm_first=False))
    config = back / "config.yaml"
    config.write_text(
        config.read_text().replace("src_lang: ja", "src_lang: en").replace("tgt_lang: en", "tgt_lang: ja")
    )
    for run in (there, back):  # in the integers that are exported
        write_weights(read_weights(run / WEIGHTS), run / WEIGHTS, Rank(0.0), in_int8=True)
    return [there, back]


@pytest.fixture(scope="module")
def traced_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each run is traced once, which takes most of the time."""
    kept: dict[Path, tuple[Path, Any]] = {}

    def copied(run: Run, folder: Path, quantization: str, _: Traced) -> Any:
        if run.folder not in kept:
            made = tmp_path_factory.mktemp("graphs")
            kept[run.folder] = made, write_graphs(run, made, quantization)
        made, graphs = kept[run.folder]
        shutil.copytree(made, folder, dirs_exist_ok=True)
        return graphs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("utils.export.web.write_graphs", copied)
        yield


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, runs: list[Path], runtime: Path
) -> Path:
    request.getfixturevalue("traced_once")
    folder = tmp_path_factory.mktemp("site")
    write_web({runs[0]: [SENTENCE], runs[1]: []}, folder, runtime)
    return folder


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page that may ask nobody but the server it is from; an error that it logs fails the test."""
    complaints: list[str] = []
    contexts = []

    def opened(address: str, **options: Any) -> Page:
        context = browser.new_context(**{"locale": "en-GB", "viewport": {"width": 1200, "height": 800}} | options)
        contexts.append(context)
        page, own = context.new_page(), address[: address.rindex("/") + 1]
        page.set_default_timeout(PATIENCE_MS)

        def note(request: Any) -> None:
            if not request.url.startswith((own, "blob:", "data:")):
                complaints.append(f"asked {request.url}")

        page.add_init_script(
            """window.workers = [];
            window.Worker = class extends Worker { constructor(script) { super(script); workers.push(this); } };"""
        )
        page.on("request", note)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def asks(page: Page, path: str, body: dict[str, Any]) -> Any:
    """What the worker of a page answers."""
    return page.evaluate(
        """async question => {
            while (!window.workers.length) await new Promise(resolve => setTimeout(resolve, 50));
            return await new Promise(resolve => {
                const [worker] = workers, id = `${Math.random()}`;
                worker.addEventListener("message", ({ data: { id: of, ...answer } }) => of === id && resolve(answer));
                worker.postMessage({ id, ...question });
            });
        }""",
        {"path": path, "body": body},
    )


def expected(run: Path, text: str, **search: Any) -> str:
    loaded = load_run(run, torch.device("cpu"))
    translator = loaded.translator(replace(loaded.config.search, **search), "fp32")
    return "\n".join(found.text for found in translator.translate(text.split("\n")))


def test_both_directions_without_a_network(site: Path, runs: list[Path], visit: Callable[..., Page]) -> None:
    text = f"{TEXT.src[0]}{TEXT.src[1]}\n\n{TEXT.src[77]}"
    with static(site) as address:
        page = visit(address + "index.html")
        for run, given in zip(runs, (text, TEXT.tgt[5]), strict=True):
            page.get_by_role("textbox").fill(given)
            expect(page.locator("#target-name")).to_have_text("English" if run is runs[0] else "Japanese")
            expect(page.locator("#translation:not(.stale)")).to_have_text(
                expected(run, given, beam_size=4), use_inner_text=True
            )
        page.context.set_offline(True)
    page.get_by_role("textbox").fill(SENTENCE)  # its server has gone, too
    expect(page.locator("#translation:not(.stale)")).to_have_text(expected(runs[0], SENTENCE, beam_size=4))
    expect(page.locator("#attention svg path").first).to_be_attached()


@pytest.mark.usefixtures("traced_once")
def test_one_file_is_enough(tmp_path: Path, runs: list[Path], runtime: Path, visit: Callable[..., Page]) -> None:
    sizes = write_web({runs[0]: []}, tmp_path, runtime, one_file=True)
    assert [*sizes] == ["index.html"]
    assert {file.name for file in tmp_path.iterdir()} == {"index.html", "README.md"}
    page = visit(f"file://{tmp_path}/index.html")
    page.get_by_role("textbox").fill(SENTENCE)
    expect(page.locator("#translation span")).to_have_text(expected(runs[0], SENTENCE, beam_size=4))


def test_the_explainer_is_told_what_the_network_does(site: Path, runs: list[Path], visit: Callable[..., Page]) -> None:
    """All numbers, as changed as the page asks for; `explained` is the same by PyTorch."""
    run = load_run(runs[0], torch.device("cpu"))
    other = run.translator(replace(run.config.search, beam_size=3), "fp32")
    changes: list[dict[str, Any]] = [
        {},
        {"beam": 2, "length_penalty": 1.5, "hidden": [1], "prefix": [5, 6], "forbidden": [[2, 7], [3, 3]]},
        {"heads": {"encoder": [[1, 0]], "self": [[1, 1], [0, 1]], "cross": [[0, 1], [1, 1]]}},
    ]
    with static(site) as address:
        page = visit(address + "index.html")
        for change in changes:
            question = {"text": SENTENCE, "run": runs[0].name, "beam": 3} | change
            answer = asks(page, "explain", question)["answer"]
            told = explained(run, other, question)
            assert alike(answer, told | {"seconds": answer["seconds"]})


def test_without_cross_attention_the_explainer_shows_another_translation(
    site: Path, runs: list[Path], visit: Callable[..., Page]
) -> None:
    with static(site) as address:
        page = visit(f"{address}explain.html#{urlencode({'q': SENTENCE, 'run': runs[0].name})}")
        before = page.locator("#now:not(:empty)").inner_text()
        for layer in range(MODEL.n_decoder_layers):
            page.locator(".heads .row").nth(layer).click()
            expect(page.locator("#changes button")).to_have_count(1 + (layer + 1) * MODEL.n_heads)
        expect(page.locator("#before")).to_have_text(before, use_inner_text=True)
        expect(page.locator("#now")).not_to_have_text(before, use_inner_text=True)


def alike(a: Any, b: Any) -> bool:
    """Whether JSON is the same, but for the last digits of its numbers."""
    if isinstance(a, float) or isinstance(b, float):
        return a is not None and b is not None and abs(a - b) < 2e-3
    if isinstance(a, list) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a) if isinstance(a, dict) else bool(a == b)


def test_a_newer_text_makes_it_give_up_the_older(site: Path, runs: list[Path], visit: Callable[..., Page]) -> None:
    with static(site) as address:
        page = visit(address + "index.html")
        page.get_by_role("textbox").fill("".join(TEXT.src)[:4999])
        page.wait_for_timeout(1000)
        page.get_by_role("textbox").fill(SENTENCE)
        expect(page.locator("#translation span")).to_have_text(expected(runs[0], SENTENCE, beam_size=4))


def test_what_cannot_be_is_said_and_texts_stay_texts(site: Path, tmp_path: Path, visit: Callable[..., Page]) -> None:
    broken = shutil.copytree(site, tmp_path / "broken")
    for weights in broken.glob("*/weights.bin"):
        weights.write_bytes(weights.read_bytes()[:-1])
    with static(site) as address:
        page = visit(address + "index.html")
        page.get_by_role("textbox").fill("寺" * 5001)
        expect(page.locator("#trouble")).to_contain_text("5,001 characters exceed the limit of 5,000")
        page.get_by_role("textbox").fill("  ")
        expect(page.locator("#translation")).to_be_empty()
        page.get_by_role("textbox").fill(HOSTILE)
        expect(page.locator("#translation span").first).not_to_be_empty()
        assert page.locator("#translation *").count() == page.locator("#translation span").count()
        answer = asks(page, "explain", {"text": f"{SENTENCE}{SENTENCE}"})
        assert answer == {"status": 400, "answer": {"error": "these are 2 sentences: give one of them"}}
    with static(broken) as address:
        page = visit(address + "index.html", locale="ja-JP")
        page.get_by_role("textbox").fill(SENTENCE)
        expect(page.locator("#trouble")).to_contain_text("weights.bin has")
        expect(page.locator("#trouble")).to_contain_text("モデルを使えません")


def test_without_the_runtime_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"npm pack {PACKAGE}@{VERSION} &&"):
        find_runtime(tmp_path)
    for name in RUNTIME:
        (tmp_path / "dist").mkdir(exist_ok=True)
        (tmp_path / "dist" / name).touch()
    assert find_runtime(tmp_path) == tmp_path / "dist"


LINES = {
    "kftt_ja_en": """
京都は日本の古都である。
駅はどこですか。
明日は雨が降るでしょう。傘を持って行ってください。
この寺は1397年に足利義満によって建てられた。
人口は約350万人である。
金閣寺（きんかくじ）は、京都市北区にある臨済宗相国寺派の寺院。
詳しくは https://example.com/kyoto を見てください。
午後3時30分に京都駅で会いましょう。
彼は「ありがとう」と言った。
ＪＲ京都線は大阪と京都を結ぶ。
1. 京都
2. 奈良
- 大阪は大きな町です。
猫
！！！
源氏物語は紫式部が書いた長編小説である。全54帖から成る。
電話番号は075-123-4567です。
1868年1月3日、王政復古の大号令が発せられた。
応仁の乱（1467年-1477年）で京都は焼け野原となった。
私は毎朝コーヒーを飲みます。
価格は1,234,567円です。
延暦寺は滋賀県大津市坂本本町にあり、標高848mの比叡山全域を境内とする寺院。
天皇は1180年に即位した。その後、都は福原に移された。しかし半年で京都に戻った。
𠮷野家で牛丼を食べた😀
東海道本線の駅のうち、京都駅は東海道新幹線も停車する。
""",
    "kftt_en_ja": """
Kyoto was the capital of Japan.
Where is the station?
It will rain tomorrow. Please take an umbrella with you.
The temple was built by Yoshimitsu ASHIKAGA in 1397.
The population is about 3.5 million.
THE TEMPLE WAS BUILT IN KYOTO.
See https://example.com/kyoto for details.
Let's meet at Kyoto Station at 3:30 p.m.
He said, "Thank you."
JR Kyoto Line connects Osaka and Kyoto.
1. Kyoto
2. Nara
- Osaka is a big city.
Cat
!!!
The Tale of Genji is a long novel written by Murasaki Shikibu. It consists of 54 chapters.
The phone number is 075-123-4567.
On January 3, 1868, the restoration of imperial rule was proclaimed.
Kyoto was burnt to ashes in the Onin War (1467-1477).
I drink coffee every morning.
The price is 1,234,567 yen.
Dr. Smith lives at 221B Baker St. in London. He is a detective, e.g. of murders.
He became the Emperor in 1180. Later, the capital was moved to Fukuhara. But it returned to Kyoto in half a year.
I ate gyudon at Yoshinoya 😀
Of the stations on the Tokaido Main Line, Kyoto Station is also served by the Tokaido Shinkansen.
""",
}


@pytest.mark.usefixtures("traced_once")
def test_the_weights_of_other_steps_are_told_apart(
    runs: list[Path], tmp_path: Path, runtime: Path, visit: Callable[..., Page]
) -> None:
    other = tmp_path / "step_1.safetensors"
    network = tiny.translating(replace(MODEL, positions="rotary"), seed=2)
    write_weights(network.state_dict(), other, Rank(0.0), in_int8=True)
    (tmp_path / "site").mkdir()
    write_web({runs[0]: []}, tmp_path / "site", runtime, [other])
    with static(tmp_path / "site") as address:
        page = visit(address + "index.html")
        assert asks(page, "api/runs", {})["answer"]["runs"][0]["checkpoints"] == ["step_1", ""]
        both = [asks(page, "explain", {"text": SENTENCE} | of)["answer"] for of in ({}, {"checkpoint": "step_1"})]
    run = load_run(runs[0], torch.device("cpu"))
    for answer, weights in zip(both, (runs[0] / WEIGHTS, other), strict=True):
        run.model.load_state_dict(read_weights(weights))
        told = explained(run, run.translator(run.config.search, "fp32"), {"text": SENTENCE})
        assert alike(answer, told | {"seconds": answer["seconds"]})
    assert both[0]["text"] != both[1]["text"]


def test_a_run_that_reads_separated_words_is_refused(tmp_path: Path, runtime: Path) -> None:
    own = tmp_path / "run"
    own.mkdir()
    (own / WORDS).write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="a page cannot separate them"):
        write_web({own: []}, tmp_path, runtime)


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_a_shipped_run_says_the_same_as_translate_py(
    name: str, tmp_path: Path, runtime: Path, visit: Callable[..., Page]
) -> None:
    run, lines = PICKLES / name, LINES[name].strip().split("\n")
    write_web({run: []}, tmp_path, runtime)
    sizes = {file.name: file.stat().st_size for file in (tmp_path / name).iterdir()}
    assert sum(sizes.values()) < 20e6
    loaded = load_run(run, torch.device("cpu"))
    translator = loaded.translator(replace(loaded.config.search, beam_size=4), "fp32")
    with static(tmp_path) as address:
        page = visit(address + "index.html")
        said = [asks(page, "api/translate", question(line, name))["answer"]["sentences"] for line in lines]
    texts = ["".join(part["candidates"][0]["text"] + part["gap"] for part in parts) for parts in said]
    assert texts == [found.text for found in translator.translate(lines)]


def question(text: str, run: str) -> dict[str, Any]:
    return {"text": text, "run": run, "source": "auto", "target": "auto", "beam": 4, "n_best": 1, "tag": None}
