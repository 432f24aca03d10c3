"""The page holds what was recorded, shows hostile text as text, asks nobody for anything, and obeys keys."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from const.token import BOS, EOS
from utils.search.attention_map import AttentionMap, attention_entropy
from utils.visualize.attention_page import Pair, write_attention_page

HOSTILE = '</script><script>document.title="taken"</script>&lt;'
SRC, TGT = ["▁", "京都", "の", "寺", EOS], ["▁Kyoto", "'", "s", "▁temple", "▁temples", EOS]
PAIR = Pair("京都の寺", "Kyoto's temple temples", "ja", "en", "run-a")


def recorded(src: list[str] = SRC, tgt: list[str] = TGT) -> AttentionMap:
    draw = torch.Generator().manual_seed(3)

    def weights(n_layers: int, *size: int) -> list[torch.Tensor]:
        return [torch.rand(2, *size, generator=draw).mul(4).softmax(-1) for _ in range(n_layers)]

    s, t = len(src), len(tgt)
    decoder = [layer.tril() / layer.tril().sum(-1, keepdim=True) for layer in weights(2, t, t)]
    return AttentionMap(src, tgt, {"encoder": weights(3, s, s), "decoder": decoder, "cross": weights(2, t, s)})


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


def write(tmp_path: Path, found: AttentionMap, pair: Pair = PAIR) -> str:
    write_attention_page(found, pair, tmp_path / "page.html")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_has_every_weight_and_the_entropy_of_every_head(tmp_path: Path) -> None:
    found = recorded()
    data = data_of(write(tmp_path, found))
    assert [kind["kind"] for kind in data["kinds"]] == ["encoder", "decoder", "cross"]
    for kind in data["kinds"]:
        layers = found.weights[kind["kind"]]
        assert kind["rows"]["tokens"] == found.rows(kind["kind"])
        assert kind["columns"]["tokens"] == found.columns(kind["kind"])
        assert len(kind["weights"]) == len(kind["entropy"]) == len(layers)
        for shown, entropy, weights in zip(kind["weights"], kind["entropy"], layers, strict=True):
            torch.testing.assert_close(torch.tensor(shown) / data["parts"], weights, atol=0.00051, rtol=0)
            assert entropy == pytest.approx(attention_entropy(weights).tolist(), abs=0.001)
    assert data["kinds"][1]["columns"]["tokens"][0] == BOS
    languages = [(kind["rows"]["lang"], kind["columns"]["lang"]) for kind in data["kinds"]]
    assert languages == [("ja", "ja"), ("en", "en"), ("en", "ja")]


def test_links_are_of_the_last_layers_mean_and_end_at_no_end(tmp_path: Path) -> None:
    found = recorded()
    found.weights["cross"][-1][..., -1] += 5  # </s> has most weight of all
    data = data_of(write(tmp_path, found))
    mean = found.weights["cross"][-1].mean(0)[:5, :4]
    assert [[s, t] for s, t, _ in data["links"]] == [[place, t] for t, place in enumerate(mean.argmax(-1).tolist())]
    assert [weight for *_, weight in data["links"]] == pytest.approx(mean.amax(-1).tolist(), abs=0.001)
    assert data["source"]["tokens"] == SRC[:-1]
    assert data["target"]["tokens"] == TGT[:-1]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = write(
        tmp_path, recorded([HOSTILE, EOS], [HOSTILE, "<!--", EOS]), Pair(HOSTILE, HOSTILE, "ja", "en", HOSTILE)
    )
    assert page.count("<script") == page.count("</script>") == 2
    assert "<!--" not in page.removeprefix("<!DOCTYPE html>")
    data = data_of(page)
    assert data["source"]["tokens"] == [HOSTILE]
    assert data["target"]["tokens"] == [HOSTILE, "<!--"]


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    page = write(tmp_path, recorded())
    assert "default-src 'none'" in page
    without_namespace = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|<link|<img|\bsrc=|@import|url\(|fetch\(", without_namespace)
    assert '<span lang="ja">京都の寺</span>' in page
    assert '<span lang="en">Kyoto&#39;s temple temples</span>' in page


def test_a_translation_of_nothing_has_no_links(tmp_path: Path) -> None:
    data = data_of(write(tmp_path, recorded(SRC, [EOS])))
    assert data["links"] == []
    assert data["kinds"][1]["weights"][0][0] == [[1000]]


# in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def opened(browser: Any, path: Path, locale: str = "en-US", width: int = 1200, height: int = 900) -> Any:
    page = browser.new_page(locale=locale, viewport={"width": width, "height": height})
    page.wrong = []
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("console", lambda message: message.type == "error" and page.wrong.append(message.text))
    page.on("request", lambda request: request.url.startswith("file:") or page.wrong.append(request.url))
    page.goto(path.as_uri())
    return page


@pytest.mark.browser
def test_a_token_shows_what_it_looks_at(browser: Any, tmp_path: Path) -> None:
    found = recorded()
    write(tmp_path, found)
    page = opened(browser, tmp_path / "page.html")
    assert page.locator("#map-title").inner_text() == "Cross, layer 2, mean"
    page.locator("#rows button").nth(3).hover()
    mean = found.weights["cross"][1].mean(0)
    top = int(mean[3].argmax())
    told = page.locator("#readout").inner_text()
    assert told.startswith("“temple” has most weight for")
    assert f"{100 * mean[3, top]:.1f} %" in told.splitlines()[1]
    alpha = [
        float(colour.split("/")[1].strip(" )")) if "/" in colour else 0.0
        for colour in page.locator("#columns button").evaluate_all("all => all.map((one) => one.style.background)")
    ]
    assert alpha.index(max(alpha)) == top
    page.locator("#columns button").nth(1).click()
    page.mouse.move(0, 0)
    told = page.locator("#readout").inner_text()  # held
    assert told.startswith("“京都” has most weight in the choice of")
    assert f"{100 * mean[:, 1].max():.1f} %" in told
    page.keyboard.press("Escape")
    assert page.locator("#readout").inner_text() == ""
    assert page.wrong == []


@pytest.mark.browser
def test_kind_layer_head_and_tokens_are_chosen_by_keys(browser: Any, tmp_path: Path) -> None:
    write(tmp_path, recorded())
    page = opened(browser, tmp_path / "page.html")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#map-title").inner_text() == "Decoder self, layer 2, mean"
    page.keyboard.press("ArrowLeft")
    assert page.locator("#layers input").count() == 3
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.locator("#map-title").inner_text() == "Encoder self, layer 3, mean"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.locator("#map-title").inner_text() == "Encoder self, layer 3, head 1"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.locator("#readout").inner_text().startswith("“京都” has most weight for")
    assert page.locator("#rows .chosen").inner_text() == "京都"
    assert page.locator("#all button[aria-pressed=true]").get_attribute("data-place") == "2 0"
    page.locator("#all button").nth(1).click()
    assert page.locator("#map-title").inner_text() == "Encoder self, layer 1, head 2"
    assert page.wrong == []


@pytest.mark.browser
def test_hostile_tokens_run_nothing(browser: Any, tmp_path: Path) -> None:
    write(tmp_path, recorded([HOSTILE, EOS], [HOSTILE, EOS]), Pair(HOSTILE, HOSTILE, "ja", "en", HOSTILE))
    page = opened(browser, tmp_path / "page.html")
    assert page.title() == f"Attention: {HOSTILE}"
    assert page.locator("#rows button").first.inner_text() == HOSTILE
    assert page.wrong == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_nothing_is_wider_than_the_screen(browser: Any, tmp_path: Path, width: int) -> None:
    many = [*(f"▁token{i}" for i in range(60)), EOS]
    write(tmp_path, recorded(many, many))
    page = opened(browser, tmp_path / "page.html", width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.wrong == []


@pytest.mark.browser
def test_a_japanese_reader_is_spoken_to_in_japanese(browser: Any, tmp_path: Path) -> None:
    write(tmp_path, recorded())
    page = opened(browser, tmp_path / "page.html", locale="ja-JP")
    assert page.locator("html").get_attribute("lang") == "ja"
    assert page.locator("h1").inner_text() == "翻訳器が見ているもの"
    assert page.locator("#map-title").inner_text() == "交差注意, 第2層, 平均"
    assert page.wrong == []
