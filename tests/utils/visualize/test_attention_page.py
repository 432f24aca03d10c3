"""The page holds the recorded data, shows hostile text as text, and requests nothing."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from const.token import BOS, EOS
from tests.utils.visualize.recorded import HOSTILE, HOSTILE_PAIR, PAIR, SRC, TGT, recorded
from utils.search.inspection import AttentionMap, attention_entropy
from utils.visualize.attention import Pair, write_attention_page


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
    found.weights["cross"][-1][..., -1] += 5  # </s> gets the most weight
    data = data_of(write(tmp_path, found))
    mean = found.weights["cross"][-1].mean(0)[:5, :4]
    assert [[s, t] for s, t, _ in data["links"]] == [[place, t] for t, place in enumerate(mean.argmax(-1).tolist())]
    assert [weight for *_, weight in data["links"]] == pytest.approx(mean.amax(-1).tolist(), abs=0.001)
    assert data["source"]["tokens"] == SRC[:-1]
    assert data["target"]["tokens"] == TGT[:-1]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = write(tmp_path, recorded([HOSTILE, EOS], [HOSTILE, "<!--", EOS]), HOSTILE_PAIR)
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
