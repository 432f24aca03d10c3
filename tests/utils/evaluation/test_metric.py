"""Metrics against sacreBLEU's command line on the same files, digit by digit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU

from tests.utils.evaluation.texts import ENGLISH, JAPANESE, TOKENIZED, Translated
from utils.evaluation.metric import build_metrics, fitting_tokenizer, measure, sampling_seed, with_interval

ASIAN = ["--ter-normalized", "--ter-asian-support"]
LANGUAGES = pytest.mark.parametrize(
    ("text", "lang", "tokenize", "options"),
    [
        (ENGLISH, "en", "13a", []),
        (TOKENIZED, "en", "none", ["--force"]),
        (JAPANESE, "ja", "ja-mecab", ASIAN),
        (JAPANESE, "zh-CN", "zh", ASIAN),
    ],
    ids=["en", "en, tokenized", "ja", "zh"],
)


def said(folder: Path, text: Translated, tokenize: str, *options: str, seed: str | None = None) -> list[dict[str, str]]:
    """BLEU, chrF2 and TER by the command line."""
    for name, lines in text._asdict().items():
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "references", "-i", "good", "-m", "bleu", "chrf", "ter"]
    environment = {name: value for name, value in os.environ.items() if name != "SACREBLEU_SEED"}
    ended = subprocess.run(
        [*command, "-tok", tokenize, *options, "-f", "json", "-w", "9"],
        cwd=folder,
        env=environment | ({"SACREBLEU_SEED": seed} if seed else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[dict[str, str]] = json.loads(ended.stdout)
    return found


@LANGUAGES
def test_scores_and_signatures_are_sacrebleus(
    text: Translated, lang: str, tokenize: str, options: list[str], tmp_path: Path
) -> None:
    theirs = said(tmp_path, text, tokenize, *options)
    ours = measure(text.good, text.references, build_metrics(lang, tokenize))
    assert [metric.name for metric in ours] == ["BLEU", "chrF2", "TER"]
    for metric, other in zip(ours, theirs, strict=True):
        assert (metric.name, metric.signature) == (other["name"], other["signature"])
        assert metric.score == pytest.approx(other["score"], abs=1e-8)
        assert metric.low == metric.score == metric.high
        assert 2 < metric.score < 98


@pytest.mark.parametrize(
    ("text", "lang", "tokenize", "options"),
    [(ENGLISH, "en", "13a", []), (JAPANESE, "ja", "char", ASIAN)],
    ids=["en", "ja by characters"],
)
def test_intervals_are_sacrebleus(
    text: Translated, lang: str, tokenize: str, options: list[str], tmp_path: Path
) -> None:
    theirs = said(tmp_path, text, tokenize, *options, "--confidence", "--confidence-n", "200", seed="7")
    with sampling_seed(7):
        ours = measure(text.good, text.references, build_metrics(lang, tokenize), 200)
    for metric, other in zip(ours, theirs, strict=True):
        mean, half = float(other["confidence_mean"]), float(other["confidence_var"])
        assert metric.signature == other["signature"]
        assert "bs:200|seed:7|" in metric.signature
        assert metric.low == pytest.approx(mean - half, abs=1e-4)
        assert metric.high == pytest.approx(mean + half, abs=1e-4)
        assert metric.low < metric.score < metric.high
        assert type(metric.score) is type(metric.low) is type(metric.high) is float  # JSON knows no other


def test_without_a_seed_it_is_that_of_the_environment_or_sacrebleus(monkeypatch: pytest.MonkeyPatch) -> None:
    def seed_in_signature(seed: int | None) -> str:
        with sampling_seed(seed):
            (bleu,) = measure(ENGLISH.good, ENGLISH.references, {"BLEU": BLEU()}, 100)
        return bleu.signature.split("|")[2]

    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    assert seed_in_signature(None) == "seed:12345"
    assert seed_in_signature(3) == "seed:3"
    assert "SACREBLEU_SEED" not in os.environ
    monkeypatch.setenv("SACREBLEU_SEED", "9")
    assert seed_in_signature(None) == "seed:9"
    assert seed_in_signature(3) == "seed:3"
    assert os.environ["SACREBLEU_SEED"] == "9"
    monkeypatch.setenv("SACREBLEU_SEED", "None")
    assert seed_in_signature(None) == "seed:none"


@pytest.mark.parametrize("seed", ["0", "-3", "x"])
def test_a_seed_that_sacrebleu_does_not_take_is_refused(seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    with pytest.raises(ValueError, match=f"^seed {seed}: give 1 or more"), sampling_seed(None):
        pass
    assert os.environ["SACREBLEU_SEED"] == seed


def test_two_seeds_draw_differently_and_one_the_same() -> None:
    def low(seed: int) -> float:
        with sampling_seed(seed):
            return measure(ENGLISH.good, ENGLISH.references, build_metrics("en", "13a"), 100)[0].low

    assert low(1) == low(1) != low(2)


def test_ter_of_japanese_counts_kanji_and_not_sentences() -> None:
    references, translations = (
        ["京都に古い寺がある。", "奈良に橋がある。"],
        ["京都に古い橋がある。", "奈良に橋がある。"],
    )
    ter = measure(translations, references, build_metrics("ja", "ja-mecab"))[2]
    assert ter.score == pytest.approx(100 / 14)  # 京 都 に 古 い 寺 がある 。 and 奈 良 に 橋 がある 。
    assert "norm:yes|punct:yes|asian:yes" in ter.signature
    spaced = measure(["京都 に 橋"], ["京都 に 寺"], build_metrics("ja", "none"))[2]
    assert spaced.score == pytest.approx(100 / 3)
    assert "norm:no|punct:yes|asian:no" in spaced.signature


def test_no_end_of_an_interval_leaves_the_scale() -> None:
    found = [with_interval(name, 99, 98, 3, "") for name in ("BLEU", "chrF2", "TER")]
    assert [(metric.low, metric.high) for metric in found] == [(95, 100), (95, 100), (95, 101)]
    assert with_interval("BLEU", 1, 1, 3, "").low == 0


def bleu_and_chrf(translations: list[str], references: list[str]) -> tuple[float, float]:
    metrics = build_metrics("en", "13a")
    bleu, chrf = measure(translations, references, {name: metrics[name] for name in ("BLEU", "chrF2")})
    return bleu.score, chrf.score


def test_neither_side_is_changed_before_it_is_counted() -> None:
    assert bleu_and_chrf(["THE OLD TEMPLE IN KYOTO"], ["the old temple in kyoto"])[0] < 1
    assert bleu_and_chrf(["ＡＢＣ ＤＥＦ ＧＨＩ ＪＫＬ"], ["ABC DEF GHI JKL"])[1] < 1


def test_translations_and_references_cannot_be_swapped() -> None:
    shorter = [line.rpartition(" ")[0] for line in ENGLISH.good]
    both = bleu_and_chrf(shorter, ENGLISH.references), bleu_and_chrf(ENGLISH.references, shorter)
    for ours, swapped in zip(*both, strict=True):
        assert abs(ours - swapped) > 1


def test_an_empty_translation_is_one_of_the_translations() -> None:
    lost = bleu_and_chrf(["", *ENGLISH.good[1:]], ENGLISH.references)
    assert lost < bleu_and_chrf(ENGLISH.good, ENGLISH.references)


@pytest.mark.parametrize(
    ("translations", "references", "message"),
    [
        (["a"], ["a", "b"], "1 translations against 2 references"),
        (["a", "b"], ["a"], "2 translations against 1 references"),
        ([], [], "0 translations against 0 references"),
    ],
)
def test_there_must_be_a_reference_for_each(translations: list[str], references: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}: give one for each$"):
        bleu_and_chrf(translations, references)


def test_each_metric_is_told_of() -> None:
    told: list[int] = []
    measure(ENGLISH.good, ENGLISH.references, build_metrics("en", "13a"), 0, told.append)
    assert told == [1, 1, 1]


def test_no_log_of_sacrebleu_reaches_the_user(caplog: pytest.LogCaptureFixture) -> None:
    lines = [f"{line} ." for line in ENGLISH.good] * 4
    measure(lines, lines, build_metrics("en", "13a"))
    assert not caplog.records


@pytest.mark.parametrize("n", [-1, 1, 99])
def test_so_few_resamples_that_they_say_nothing_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"^--bootstrap {n}: give 100 or more"):
        measure(ENGLISH.good, ENGLISH.references, build_metrics("en", "13a"), n)


def test_more_resamples_than_memory_holds_are_refused() -> None:
    lines = ENGLISH.good * 10_000
    with pytest.raises(ValueError, match=r"of 400,000 lines needs 30 GB of memory: give --bootstrap 125, or 0$"):
        measure(lines, lines, build_metrics("en", "13a"), 1000)


@pytest.mark.parametrize(
    ("lang", "pre_tokenized", "wanted", "force", "tokenizer"),
    [
        ("en", False, None, False, "13a"),
        ("ja", False, None, False, "ja-mecab"),
        ("ja_JP", False, None, False, "ja-mecab"),
        ("zh-Hant", False, None, False, "zh"),
        ("ko", False, None, False, "ko-mecab"),
        ("ja", True, None, False, "none"),
        ("ja", True, "none", False, "none"),
        ("ja", False, "char", False, "char"),
        ("en", False, "intl", False, "intl"),
        ("en", False, "none", False, "none"),
        ("ja", False, "13a", True, "13a"),
        ("ja", True, "13a", True, "13a"),
    ],
)
def test_the_tokenizer_fits_the_language(
    lang: str, pre_tokenized: bool, wanted: str | None, force: bool, tokenizer: str
) -> None:
    assert fitting_tokenizer(lang, pre_tokenized, wanted, force) == tokenizer


@pytest.mark.parametrize("wanted", ["13a", "intl", "none"])
@pytest.mark.parametrize(("lang", "own"), [("ja", "ja-mecab"), ("zh", "zh"), ("ko", "ko-mecab"), ("ja-JP", "ja-mecab")])
def test_a_tokenizer_by_spaces_is_refused_where_there_are_none(lang: str, own: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"^--tokenize {wanted} cannot split {lang} into words.* --tokenize {own}, "):
        fitting_tokenizer(lang, False, wanted)


def test_a_tokenizer_of_another_language_is_refused() -> None:
    with pytest.raises(ValueError, match="give --tokenize 13a"):
        fitting_tokenizer("en", False, "ja-mecab")
    with pytest.raises(ValueError, match="give --tokenize ja-mecab"):
        fitting_tokenizer("ja", False, "zh")


@pytest.mark.parametrize(
    ("translations", "references"), [(["x", ""], ["", "He is home ."]), (["", "He is home ."], ["x", "He is home ."])]
)
def test_an_interval_of_next_to_nothing_is_refused(translations: list[str], references: list[str]) -> None:
    with pytest.raises(ValueError, match=r"2 lines, some of them empty, .* give --bootstrap 0$"):
        measure(translations, references, build_metrics("en", "13a"), 1000)
    assert len(measure(translations, references, build_metrics("en", "13a"))) == 3


def test_cutting_what_is_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="split already"):
        fitting_tokenizer("en", True, "13a")


def test_a_tokenizer_that_is_not_installed_is_told_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ko_mecab.MeCab", None)
    with pytest.raises(ValueError, match=r"(?s)^BLEU cannot tokenize ko with ko-mecab: .*pip install sacrebleu\[ko\]"):
        build_metrics("ko", "ko-mecab")
