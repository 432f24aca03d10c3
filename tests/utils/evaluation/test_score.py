"""Our scores are sacreBLEU's own, told with its signature."""

import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

from utils.evaluation.score import bleu_tokenizer, score

ENGLISH = (
    ["There is an old temple in Kyoto.", "The bridge isn't new, is it?", "A garden (small)."],
    ["There is an old temple in the city of Kyoto.", "The bridge isn't new, is it?", "A small, old garden."],
)
JAPANESE = (
    ["京都に古い寺がある。", "橋は新しくありません。", "小さい庭です。"],
    ["京都市には古い寺がある。", "橋は新しくはありません。", "小さな庭です。"],
)
CASES = pytest.mark.parametrize(
    ("texts", "lang", "pre_tokenized", "tokenizer"),
    [
        (ENGLISH, "en", False, "13a"),
        (JAPANESE, "ja", False, "ja-mecab"),
        (ENGLISH, "en", True, "none"),
        (ENGLISH, "de", False, "13a"),
    ],
    ids=["13a", "ja-mecab", "none", "another language"],
)
Texts = tuple[list[str], list[str]]


@CASES
def test_it_is_sacrebleu(texts: Texts, lang: str, pre_tokenized: bool, tokenizer: str) -> None:
    translations, references = texts
    ours = score(translations, references, lang, pre_tokenized)
    assert ours.bleu == sacrebleu.corpus_bleu(translations, [references], tokenize=tokenizer, force=True).score
    assert ours.chrf == sacrebleu.corpus_chrf(translations, [references]).score
    assert 10 < ours.bleu < 90
    assert ours.bleu_signature.startswith(f"nrefs:1|case:mixed|eff:no|tok:{tokenizer}")
    assert ours.bleu_signature.endswith(f"smooth:exp|version:{sacrebleu.__version__}")
    assert ours.chrf_signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"


def test_the_command_line_agrees(tmp_path: Path) -> None:
    for name, lines in zip(("ours", "theirs"), JAPANESE, strict=True):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "theirs", "-i", "ours", "-tok", "ja-mecab", "-f", "text", "-w", "6"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    ours = score(*JAPANESE, "ja", pre_tokenized=False)
    assert told.startswith(f"BLEU|{ours.bleu_signature} = {ours.bleu:.6f} ")


@CASES
def test_translations_and_references_cannot_be_swapped(
    texts: Texts, lang: str, pre_tokenized: bool, tokenizer: str
) -> None:
    ours, swapped = (score(*pair, lang, pre_tokenized) for pair in (texts, texts[::-1]))
    assert abs(ours.bleu - swapped.bleu) > 1
    assert abs(ours.chrf - swapped.chrf) > 1
    assert tokenizer == bleu_tokenizer(lang, pre_tokenized)


def test_neither_side_is_changed_before_it_is_counted() -> None:
    assert score(["京都　１２"], ["京都　１２"], "ja", False).chrf == pytest.approx(100)
    assert score(["THE OLD TEMPLE IN KYOTO"], ["the old temple in kyoto"], "en", False).bleu < 1
    assert score(["ＡＢＣ ＤＥＦ ＧＨＩ ＪＫＬ"], ["ABC DEF GHI JKL"], "en", False).chrf < 1


def test_an_empty_translation_is_one_of_the_translations() -> None:
    translations, references = ENGLISH
    lost = score(["", *translations[1:]], references, "en", False)
    assert lost.bleu < score(translations, references, "en", False).bleu


@pytest.mark.parametrize(
    ("translations", "references", "message"),
    [
        (["a"], ["a", "b"], "1 translations against 2 references"),
        (["a", "b"], ["a"], "2 translations against 1 references"),
        ([], [], "0 translations against 0 references"),
    ],
)
def test_there_must_be_a_reference_for_each(translations: list[str], references: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}: one for each is needed$"):
        score(translations, references, "en", False)
