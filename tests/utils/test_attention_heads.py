"""The picture of the heads, on a run that has learned nothing."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image

from const.token import EOS
from tests.tiny import TEXT, run
from utils.command import run_command
from utils.run import Run, find_run, load_run
from utils.search.constraint import SearchConfig
from utils.visualize import attention
from utils.visualize.attention import cross_attention, last_cross_attention, show_attention

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("pickles"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Run:
    return load_run(folder, CPU)


def test_weights_are_those_of_the_last_block_on_the_runs_own_translation(loaded: Run) -> None:
    sentences = [TEXT.src[0], TEXT.src[77]]
    found = last_cross_attention(loaded, sentences)
    translations = [best.text for best in loaded.translator().translate(sentences)]
    src, tgt = loaded.tokenizers
    for sentence, translation, (weights, src_tokens, tgt_tokens) in zip(sentences, translations, found, strict=True):
        (ids,) = src.encode([sentence])
        assert src_tokens == [*src.tokens(ids), EOS]
        assert tgt_tokens[-1] == EOS
        assert "".join(tgt_tokens[:-1]).replace("▁", " ").strip() == translation
        every = {token: i for i, token in enumerate(tgt.tokens(range(len(tgt))))}
        expected = cross_attention(loaded.model, ids, [every[token] for token in tgt_tokens[:-1]])
        assert expected.shape[0] == 2  # blocks
        torch.testing.assert_close(weights, expected[1])


def test_a_sentence_takes_the_search_that_the_run_has(loaded: Run) -> None:
    config = replace(loaded.config, search=SearchConfig(beam_size=1, max_length=2))
    ((weights, _, tgt_tokens),) = last_cross_attention(loaded._replace(config=config), TEXT.src[:1])
    assert weights.shape[1] == len(tgt_tokens) <= 3


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("", r"^'' has no token: give a sentence$"),
        ("寺" * 32, r"^\d\d tokens, </s> included, are more than the 32 that .* reads at a time: shorten '寺+'$"),
    ],
)
def test_a_sentence_that_is_not_translated_at_once_is_refused(loaded: Run, sentence: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        last_cross_attention(loaded, [TEXT.src[0], sentence])


def test_a_run_of_fused_attention_shows_the_same(folder: Path, loaded: Run) -> None:
    ((found, *_),) = last_cross_attention(load_run(folder, CPU), TEXT.src[:1])
    ((expected, *_),) = last_cross_attention(loaded, TEXT.src[:1])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_a_picture_of_another_kind_is_refused(loaded: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.svg is neither \.html nor \.png: give the file one of these extensions$"):
        show_attention(loaded, loaded.translator(), "寺", tmp_path / "a.svg")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr(sys, "argv", ["attention_heads", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run_command("attention_heads", attention.main)
    return ended.value.code


def test_the_command_draws_what_a_run_looks_at(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named, newest = tmp_path / "named.png", tmp_path / "newest.png"
    assert command(monkeypatch, *TEXT.src[:2], "--run", folder, "--picture", named) == 0
    monkeypatch.setattr(attention, "find_run", partial(find_run, root=folder.parent))
    assert command(monkeypatch, *TEXT.src[:2], "--picture", newest) == 0
    with Image.open(named) as one, Image.open(newest) as other:
        assert one.size == other.size
        assert one.tobytes() == other.tobytes()
    assert capsys.readouterr() == ("", "")


def test_a_mistake_is_answered_with_a_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "heads.png"
    assert command(monkeypatch, "", "--run", folder, "--picture", picture) == 2
    assert command(monkeypatch, "寺", "--run", tmp_path / "none", "--picture", picture) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "attention_heads: error: '' has no token: give a sentence"
    assert err[1].startswith(f"attention_heads: error: no run {tmp_path / 'none'}: ")
    assert len(err) == 2
    assert not picture.exists()
