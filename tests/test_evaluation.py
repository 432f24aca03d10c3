"""Scores: metrics and tests against sacreBLEU's command line, analysis by hand, heads against zeroed weights, verbs."""

import copy
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from itertools import chain, product
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import sacrebleu
import torch
import torch.nn.functional as F
import yaml
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn

import evaluate
from bench.everyday import LANGUAGES, PHRASES
from config.data import DataConfig
from config.search import SearchConfig
from const.path import EVERYDAY, FIGURE, PICKLES
from const.token import BOS_ID, EOS_ID, PAD_ID
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from tests import tiny
from tests.samples import ENGLISH, JAPANESE, TOKENIZED, Translated
from tests.tiny import CORPUS, MODEL, TEXT, Outcome, outcome, tagged_tokenizers, tokenizers, translating
from utils.config import TranslationConfig
from utils.dataset.batch import padded
from utils.dataset.corpus import prepare_corpus, prepare_to_score
from utils.dataset.embedded import MinimalPair
from utils.dataset.formats import pairs_in
from utils.dataset.labelled import LabelledBatch
from utils.dataset.masked import MaskedBatch
from utils.dataset.text import ParallelText, read_lines, read_parallel
from utils.evaluation.analysis import Analysis, PartScore, ReferenceText, repeats, under_translated
from utils.evaluation.heads import agreement, head_importance, parse_gold, score_alignment
from utils.evaluation.metric import (
    System,
    Test,
    bleu_tokenizer,
    build_metrics,
    compare,
    fitting_tokenizer,
    measure,
    moses_words,
    multi_bleu,
    sampling_seed,
    with_interval,
)
from utils.evaluation.survive import Sentence, check, draw, numbers, survival_table
from utils.evaluation.validation import class_accuracy, masked_accuracy, pair_accuracy, translation_scores
from utils.file import read_json, write_lines
from utils.load import Run, load_run
from utils.run import CONFIG, KEPT_WEIGHTS, SHIPPED, WEIGHTS, find_run
from utils.search.forced import attention_weights, attentions, row_entropy, token_log_probs
from utils.search.translation import Candidate, Translation
from utils.search.translator import Translator
from utils.terminal.output import notices
from utils.text.language import KANA, refuse_other_language
from utils.text.tokenizer import TokenizerPair
from utils.training.checkpoint import WEIGHTS_SUFFIX, step_file, write_weights
from utils.training.schedule import Rank

CPU = torch.device("cpu")
TESTS: tuple[Test, Test] = ("bootstrap", "randomization")


def write(path: Path, lines: Sequence[str]) -> Path:
    write_lines(path, lines)
    return path


def scored(text: Sequence[str], references: Sequence[str], lang: str, tokenize: str, n_bootstrap: int = 0) -> Any:
    with sampling_seed(7):
        return measure(text, references, build_metrics(lang, tokenize), n_bootstrap)


# sacreBLEU's command line on the same files, digit by digit


def sacrebleu_says(folder: Path, text: Translated, *words: str) -> str:
    for name, lines in text._asdict().items():
        write(folder / name, lines)
    command = [sys.executable, "-m", "sacrebleu", "references", *words]
    environment = os.environ | {"SACREBLEU_SEED": "7"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("text", "lang", "tokenize", "options"),
    [
        (ENGLISH, "en", "13a", ["--confidence", "--confidence-n", "200"]),
        (TOKENIZED, "en", "none", ["--force"]),
        (JAPANESE, "ja", "ja-mecab", ["--ter-normalized", "--ter-asian-support"]),
    ],
    ids=["en", "en, tokenized", "ja"],
)
def test_scores_signatures_and_intervals_are_sacrebleus(
    text: Translated, lang: str, tokenize: str, options: list[str], tmp_path: Path
) -> None:
    words = ["-i", "good", "-tok", tokenize, *options, "-f", "json", "-w", "9", "-m"]
    others = json.loads(sacrebleu_says(tmp_path, text, *words, "bleu", "chrf", "ter"))
    if lang == "en":  # whose words are separated by spaces
        others.insert(2, json.loads(sacrebleu_says(tmp_path, text, *words, "chrf", "--chrf-word-order", "2")))
    resamples = 200 if "--confidence" in options else 0
    ours = scored(text.good, text.references, lang, tokenize, resamples)
    assert [metric.name for metric in ours] == ["BLEU", "chrF2", *["chrF2++"] * (lang == "en"), "TER"]
    for metric, other in zip(ours, others, strict=True):
        assert (metric.name, metric.signature) == (other["name"], other["signature"])
        assert metric.score == pytest.approx(other["score"], abs=1e-8)
        mean, half = (float(other.get(f"confidence_{n}", metric.score * (n == "mean"))) for n in ("mean", "var"))
        assert (metric.low, metric.high) == pytest.approx((mean - half, mean + half), abs=1e-4)
        assert (metric.low < metric.score < metric.high) == (resamples > 0)
        assert 2 < metric.score < 98
        assert type(metric.score) is type(metric.low) is float  # JSON knows no other


def test_a_language_without_words_is_scored_by_its_characters() -> None:
    reference, near, far = "เกียวโตเป็นเมืองหลวงเก่าของญี่ปุ่น", "เกียวโตเป็นเมืองเก่าของญี่ปุ่น", "วัดนี้สร้างขึ้นเมื่อนานมาแล้ว"
    good, bad = (scored([text], [reference], "th", bleu_tokenizer("th", False)) for text in (near, far))
    assert [(metric.name, "tok:char" in metric.signature) for metric in good] == [("BLEU", True), ("chrF2", False)]
    assert good[0].score > 60 > 20 > bad[0].score
    assert list(build_metrics("th", "none")) == ["BLEU", "chrF2", "chrF2++", "TER"]
    assert list(build_metrics("zh", "zh")) == ["BLEU", "chrF2", "TER"]


def test_what_a_tokenizer_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.evaluation.metric.BLEU", Mock(side_effect=OSError("no network")))
    with pytest.raises(ValueError, match=r"flores200 is downloaded at its first use, and that failed .no network.: go"):
        build_metrics("en", "flores200")
    monkeypatch.setattr("utils.evaluation.metric.BLEU", Mock(side_effect=RuntimeError("no MeCab")))
    with pytest.raises(ValueError, match=r"^BLEU needs a package to split ko .*: poetry install --with korean"):
        build_metrics("ko", "ko-mecab")


@pytest.mark.parametrize("test", TESTS)
def test_p_values_are_sacrebleus(test: Test, tmp_path: Path) -> None:
    text, paired = ENGLISH, f"--paired-{'bs' if test == 'bootstrap' else 'ar'}"
    words = ["-i", "good", "bad", "-tok", "13a", paired, f"{paired}-n", "300", "-w", "4", "-m", "bleu", "chrf", "ter"]
    words += ["--chrf-word-order", "2", "-f", "latex", "--no-color"]  # its JSON fails with bootstrap results
    told = sacrebleu_says(tmp_path, text, *words)
    metrics = build_metrics("en", "13a")
    del metrics["chrF2"]  # its command line has only one chrF at a time
    with sampling_seed(7):
        systems = [System("good", text.good), System("bad", text.bad)]
        scores, comparisons = compare(systems, text.references, metrics, test, 300)
    expected: list[float] = []
    for metrics_of_system in scores:
        for metric, comparison in zip(metrics_of_system, comparisons, strict=True):
            middle, half = (metric.low + metric.high) / 2, (metric.high - metric.low) / 2
            expected += [metric.score] + ([middle, half] if test == "bootstrap" else [])
            expected += [comparison.p_value] if metrics_of_system is scores[1] else []
    assert [float(number) for number in re.findall(r"\d+\.\d{4}\b", told)] == pytest.approx(expected, abs=1e-3)
    for metric in scores[0]:
        assert f"{metric.name} {metric.signature}" in re.sub(" +", " ", told)


def compared(*others: list[str], test: Test = "bootstrap", n: int | None = 200, n_bootstrap: int = 0) -> Any:
    systems = [System(str(i), lines) for i, lines in enumerate(others)]
    with sampling_seed(7):
        return compare(systems, ENGLISH.references, build_metrics("en", "13a"), test, n, n_bootstrap)


@pytest.mark.parametrize("test", TESTS)
def test_a_few_words_are_chance_and_many_are_not(test: Test) -> None:
    for n, significant in ((0, False), (2, False), (12, True)):
        changed = [line.replace("There", "Here") if i < n else line for i, line in enumerate(ENGLISH.references)]
        _, tests = compared(ENGLISH.references, changed, test=test, n=500)
        assert (tests[0].p_value < 0.05) == significant
        assert n or {(c.difference, c.p_value) for c in tests} == {(0, 1)}
        if test == "randomization" and n == 2:  # no surer than its ways to swap
            assert [c.p_value for c in tests] == [1 / 2] * 4


def test_intervals_beside_a_randomization_are_those_of_each_system_alone() -> None:
    alone = scored(ENGLISH.good, ENGLISH.references, "en", "13a", 300)
    (baseline, _), (bleu, *_) = compared(ENGLISH.good, ENGLISH.bad, test="randomization", n_bootstrap=300)
    assert [(m.score, m.low, m.high) for m in baseline] == [(m.score, m.low, m.high) for m in alone]
    assert "|bs:300|ar:200|seed:7|" in bleu.signature


def test_the_seed_is_the_users_or_that_of_the_environment_or_sacrebleus(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted, environment, used in ((None, None, "12345"), (None, "9", "9"), (3, "9", "3")):
        monkeypatch.delenv("SACREBLEU_SEED", raising=False)
        if environment:
            monkeypatch.setenv("SACREBLEU_SEED", environment)
        with sampling_seed(wanted):
            (bleu,) = measure(ENGLISH.good, ENGLISH.references, {"BLEU": BLEU()}, 100)
        assert bleu.signature.split("|")[2] == f"seed:{used}"
        assert os.environ.get("SACREBLEU_SEED") == environment
    monkeypatch.setenv("SACREBLEU_SEED", "-3")
    with pytest.raises(ValueError, match=r"^seed -3: give 1 or more"), sampling_seed(None):
        pass


def test_ter_counts_given_words_and_no_end_of_an_interval_leaves_the_scale() -> None:
    assert scored(["京都 に 橋"], ["京都 に 寺"], "ja", "none")[-1].score == pytest.approx(100 / 3)
    metrics = [with_interval(name, 99, 98, 3, "") for name in ("BLEU", "chrF2", "TER")]
    assert [(metric.low, metric.high) for metric in metrics] == [(95, 100), (95, 100), (95, 101)]
    assert with_interval("BLEU", 1, 1, 3, "").low == 0


@pytest.mark.parametrize(
    ("translations", "references", "n", "message"),
    [
        (["a"], ["a", "b"], 0, "1 translations against 2 references"),
        (["a"] * 400_000, ["a"] * 400_000, 1000, "30 GB of memory: give --bootstrap 125"),
        (["x", ""], ["", "He is home ."], 1000, "some of them empty, .* give --bootstrap 0"),
    ],
)
def test_what_has_no_score_is_refused(translations: list[str], references: list[str], n: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scored(translations, references, "en", "13a", n)


def test_the_tokenizer_fits_the_language_or_is_refused() -> None:
    for lang, own in (("en", "13a"), ("ja_JP", "ja-mecab"), ("zh-Hant", "zh"), ("th", "char"), ("khm", "char")):
        assert fitting_tokenizer(lang, pre_tokenized=False) == own
    assert fitting_tokenizer("ja", pre_tokenized=True) == "none"
    assert fitting_tokenizer("ja", pre_tokenized=False, wanted="char") == "char"
    assert fitting_tokenizer("ja", pre_tokenized=True, wanted="13a", force=True) == "13a"
    for lang, pre_tokenized, wanted, remedy in (
        ("ja-JP", False, "none", "--tokenize ja-mecab, or --pre-tokenized"),
        ("en", False, "ja-mecab", "--tokenize 13a"),
        ("en", True, "13a", "split already"),
        ("lo", False, "13a", "--tokenize char"),
    ):
        with pytest.raises(ValueError, match=remedy):
            fitting_tokenizer(lang, pre_tokenized, wanted)


@pytest.mark.parametrize(
    ("lines", "refused", "accepted"),
    [
        (["The Kinkaku-ji (金閣寺) is in Kyoto.", *ENGLISH.references], ["ja", "ko"], ["en", "de"]),
        (JAPANESE.references, ["en", "jp", "ko"], ["ja", "ja_JP"]),  # jp is no code: Japanese is `ja`
        (["1603", "2, 3 ...", "・ a", "・・・ yes"], [], ["en"]),  # list bullets are not letters
        (["เมืองหลวงเก่าของญี่ปุ่น", "Kyoto"], ["en", "ja", "my"], ["th"]),
        (["Столица Японии — Tokyo", "Привет"], ["en", "ja", "el", "he", "de_AT"], ["ru", "sr", "uk", "sah"]),
        (["Η πρωτεύουσα"], ["en", "ru", "th"], ["el"]),
        (["عاصمة اليابان"], ["en", "ru"], ["ar", "fa"]),
        (["ᏣᎳᎩ"], ["en", "ja", "ru"], ["chr"]),
        (["µ = 3 Ω", "𝐇𝐞𝐥𝐥𝐨", "Ｈｅｌｌｏ"], ["ru", "ja"], ["en", "sr", "chr"]),
        (["ဂျပန်နိုင်ငံ၏ မြို့တော်ဟောင်း"], ["en", "th"], ["my", "mya"]),
    ],
)
def test_another_script_is_refused(lines: list[str], refused: list[str], accepted: list[str]) -> None:
    for language in refused:
        with pytest.raises(ValueError, match=f"^FILE is not in {language}: .*; look again$"):
            refuse_other_language(lines, language, "FILE", "look again")
    for language in accepted:
        refuse_other_language(lines, language, "FILE", "look again")


# multi-bleu.perl, by a copy of its formula that is independent of sacreBLEU


def by_hand(translations: list[str], references: list[str]) -> str:
    """The script in Python: bytes, words between ASCII spaces, clipped counts, a hugely negative log of zero."""
    correct, total, lengths = [0] * 4, [0] * 4, [0, 0]
    for pair in zip(translations, references, strict=True):
        ours, theirs = (line.lower().encode().split() for line in pair)
        lengths = [lengths[0] + len(ours), lengths[1] + len(theirs)]
        for n in range(4):
            a, b = (Counter(tuple(s[i : i + n + 1]) for i in range(len(s) - n)) for s in (ours, theirs))
            correct[n] += sum((a & b).values())
            total[n] += sum(a.values())
    precisions = [c / t if t else 0 for c, t in zip(correct, total, strict=True)]
    penalty = math.exp(1 - lengths[1] / lengths[0]) if lengths[0] < lengths[1] else 1
    bleu = penalty * math.exp(sum(math.log(p) if p else -9999999999 for p in precisions) / 4)
    return (
        f"BLEU = {100 * bleu:.2f}, {'/'.join(f'{100 * p:.1f}' for p in precisions)} (BP={penalty:.3f}, "
        f"ratio={lengths[0] / lengths[1]:.3f}, hyp_len={lengths[0]}, ref_len={lengths[1]})"
    )


@pytest.mark.parametrize(
    ("translations", "references"),
    [
        ([line.upper() for line in TOKENIZED.bad], TOKENIZED.references),
        ([" ".join(line) for line in JAPANESE.good], [" ".join(line) for line in JAPANESE.references]),
        (["a b c", "d e"], ["a b c d", "d e f"]),  # no 4-gram at all
        (["a b c x e f g"], ["a b c d e f g"]),  # 4-grams, but no matching one
        (["a\u3000b c\u00a0d e f g", "É a ＴＶ b c d"], ["a\u3000b c d e f g", "é a ｔｖ b c d"]),
    ],
)
def test_the_line_of_multi_bleu_is_that_of_the_script(translations: list[str], references: list[str]) -> None:
    assert multi_bleu(translations, references) == by_hand(translations, references)


def test_plain_english_is_tokenized_as_moses_does() -> None:
    plain = ["\"Don't,\" said the No. 3 monk (of Soto Zen's temple) & left for 1,000 years.", "", "vol. 1-12, 50% <b>"]
    assert moses_words(plain) == [
        "\" Don 't , \" said the No. 3 monk ( of Soto Zen 's temple ) & left for 1,000 years .",
        "",
        "vol . 1-12 , 50 % < b >",
    ]


# analysis, by hand


def analyse(
    sources: list[str], translations: list[str], references: list[str], tokenize: str, training_text: Path | None = None
) -> Analysis:
    return ReferenceText("test", "en", tokenize, sources, references, training_text).analyse(translations)


def sentence(n: int) -> str:
    return " ".join(f"w{i}" for i in range(n))


def labels(groups: list[PartScore]) -> list[tuple[str, int]]:
    return [(group.label, group.count) for group in groups]


def test_each_length_and_each_frequency_belongs_to_one_group(tmp_path: Path) -> None:
    lengths = [0, 1, 5, 6, 10, 11, 20, 21, 30, 31, 40, 41, 60, 61, 300]
    analysis = analyse([sentence(n) for n in lengths], ["a"] * 15, ["a"] * 15, "13a")
    groups = {"0-5": 3} | dict.fromkeys(("6-10", "11-20", "21-30", "31-40", "41-60", "61+"), 2)
    assert labels(analysis.bleu_by_length) == [(f"{label} source tokens", n) for label, n in groups.items()]
    occurrences = [0, 1, 2, 4, 5, 9, 10, 99, 100, 999, 1000, 2000]
    reference = " ".join(f"w{n}" for n in occurrences)
    training = write(tmp_path / "training", [f"w{n}" for n in occurrences for _ in range(n)])
    analysis = analyse([], [reference], [reference], "13a", training)
    groups = {"never seen": 1, "1 time": 1} | dict.fromkeys(
        ("2-4 times", "5-9 times", "10-99 times", "100-999 times", "1000+ times"), 2
    )
    assert labels(analysis.f1_by_frequency) == list(groups.items())


@pytest.mark.parametrize(
    ("source", "tokenizer", "label"),
    [
        ("京都は日本の古い都である。", "13a", "6-10 source"),  # 京都 は 日本 の 古い 都 で ある 。
        ("京都は日本の古い都である。", "none", "0-5 source"),
        ("", "13a", "11-20 reference"),  # no sources
    ],
)
def test_the_text_decides_what_a_source_token_is(source: str, tokenizer: str, label: str) -> None:
    analysis = analyse([source] if source else [], ["a"], [sentence(12)], tokenizer)
    assert labels(analysis.bleu_by_length) == [(f"{label} tokens", 1)]


def test_a_group_is_scored_as_a_text_of_its_own_with_its_tokenizer() -> None:
    translations = ["The old temple is in Kyoto, they say.", "It is a new and small house.", "Yes."]
    references = ["The old temple is in Nara, they say.", "It is a new and large house.", "Yes ."]
    short, long = analyse([sentence(20), sentence(12), "はい。"], translations, references, "13a").bleu_by_length
    assert short.score == pytest.approx(100)  # 13a cuts the full stop off; shorter n-grams count where there are no 4
    assert long.score == pytest.approx(sacrebleu.corpus_bleu(translations[:2], [references[:2]]).score)
    ours, theirs = ["古い寺が京都にある。", "庭は広くない。"], ["古い寺は京都にある。", "庭は広いです。"]
    (group,) = analyse([], ours, theirs, "char").bleu_by_length
    assert group.score == pytest.approx(sacrebleu.corpus_bleu(ours, [theirs], tokenize="char").score)


def test_f1_by_hand(tmp_path: Path) -> None:
    lines = ["the temple is old .", "the old temple", "the the the the the the the the", "is it ?"]
    # the: 10 times in the training text, temple and is: 2, old: 2, Kyoto: never
    ours, theirs = ["the the temple is", "Kyoto is old"], ["the temple is old", "the Kyoto temple"]
    # never: Kyoto is in the one reference and its translation; 2-4 times: the references have temple, is, old, temple,
    # the translations temple, is, is, old, and temple and is of the first match; 10-99: the, the against the, the
    groups = analyse([], ours, theirs, "13a", write(tmp_path / "training", lines)).f1_by_frequency
    assert labels(groups) == [("never seen", 1), ("2-4 times", 4), ("10-99 times", 2)]
    assert [group.score for group in groups] == pytest.approx([100, 100 * 2 * 2 / (4 + 4), 100 * 2 * 1 / (2 + 2)])
    # a word that another sentence's reference has is no match, and a second one only if the reference has two
    ours, theirs = ["temple temple temple", "x Temple"], ["temple x", "temple y"]
    groups = analyse([], ours, theirs, "13a", write(tmp_path / "temple", ["temple"])).f1_by_frequency
    assert groups == [PartScore("never seen", 2, 0), PartScore("1 time", 2, 100 * 2 * 1 / (2 + 3))]


@pytest.mark.parametrize(
    ("translation", "reference", "expected"),
    [
        ("a b c d x a b c d y a b c d", "a b c d", True),
        ("a b c d x a b c d", "a b c d", False),  # twice may be right
        ("a b c d x a b c d y a b c d", "a b c d z a b c d", False),  # the reference says it twice
        ("no , no , no", "no", True),  # punctuation hides nothing
        ("no no no no", "ha ha ha", True),
        ("of the of the of the temple", "of the temple", True),
        ("a b c a b c a b", "a b c", False),
        ("well . . . . .", "well", False),
        ("JNRRRRR", "JNR", True),
        ("aaaaa", "bbbbb", False),
        ("1000000 _____", "1", False),
    ],
)
def test_what_a_repetition_is(translation: str, reference: str, expected: bool) -> None:
    assert repeats(translation.split(), reference.split()) is expected


def test_what_an_under_translation_is_and_rates_are_shares_of_the_sentences() -> None:
    left_out, complete = [(0, 1), (1, 6), (4, 9), (9, 20)], [(0, 0), (1, 0), (1, 5), (4, 8), (10, 20), (40, 20)]
    assert [under_translated(*pair) for pair in left_out + complete] == [True] * 4 + [False] * 6
    translations = [sentence(10), "w0 w0 w0 w0 w0 w0", "w1 w2 w1 w2 w1 w2", *[sentence(10)] * 4, sentence(4)]
    analysis = analyse([], translations, [sentence(10)] * 8, "13a")
    assert (analysis.repetition_rate, analysis.under_translation_rate) == (25.0, 12.5)
    assert analysis.length_ratio == (5 * 10 + 6 + 6 + 4) / 80


def test_best_and_worst_have_their_lines() -> None:
    references = ["a temple", "a temple", "a garden", "the house", "a bridge"]
    translations = ["a temple", "xyz", "a garden", "the hut", "qqq"]
    analysis = analyse(["寺", "寺", "庭", "家", "橋"], translations, references, "13a")
    assert [shown.line for shown in analysis.best] == [1, 3, 4, 2, 5]
    assert [shown.line for shown in analysis.worst] == [2, 5, 4, 1, 3]
    shown = analysis.worst[2]
    assert (shown.source, shown.translation, shown.reference) == ("家", "the hut", "the house")
    assert shown.chrf == sacrebleu.sentence_chrf("the hut", ["the house"]).score


# heads: against networks with the head's weights zeroed

SHORT = ParallelText(["寺", *TEXT.src[:40:9]], ["A temple.", *TEXT.tgt[:40:9]])  # of different lengths


def without_head(model: Transformer, place: int) -> Transformer:
    """The same network with the output projection of one head zeroed; heads are counted over kinds and layers."""
    twin = copy.deepcopy(model)
    layer, head = divmod(place, 2)
    attention = [attention for layers in attentions(twin).values() for attention in layers][layer]
    attention.output.weight.data[:, 8 * head : 8 * head + 8] = 0
    return twin


@torch.no_grad()
def pair_by_pair(model: Transformer) -> float:
    """Nats per target token, computed pair by pair."""
    nats, n = 0.0, 0
    for source, target in zip(SHORT.src, SHORT.tgt, strict=True):
        src = padded(tokenizers().src.encode([source]))
        tgt = padded(tokenizers().tgt.encode([target]), bos=True)
        log_probs = model(src, tgt[:, :-1]).log_softmax(-1)
        nats -= log_probs.gather(-1, tgt[:, 1:, None]).sum().item()
        n += tgt.size(1) - 1
    return nats / n


def test_a_head_is_worth_what_the_loss_rises_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.search.forced._TOKENS_PER_BATCH", 60)  # several batches
    model = translating()
    loss, heads = head_importance(Run(Path(), TranslationConfig(model=MODEL), tokenizers(), model), SHORT)
    assert loss == pytest.approx(pair_by_pair(model), rel=1e-5)
    rises = [pair_by_pair(without_head(model, i)) - pair_by_pair(model) for i in range(10)]
    assert [head.loss_rise for head in heads] == pytest.approx(rises, abs=1e-4)
    assert len({round(rise, 3) for rise in rises}) == 10
    layers = (("encoder", 1), ("decoder", 1), ("decoder", 2), ("cross", 1), ("cross", 2))
    assert [head[:3] for head in heads] == [(*layer, head) for layer in layers for head in (1, 2)]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    # the entropy is the mean over all positions that are no padding
    ids = zip(tokenizers().src.encode(SHORT.src), tokenizers().tgt.encode(SHORT.tgt), strict=True)
    by_pair = [attention_weights(model, *pair) for pair in ids]
    for head in heads:
        rows = torch.cat([row_entropy(weights[head.kind][head.layer - 1][head.head - 1]) for weights in by_pair])
        assert head.entropy == pytest.approx(rows.mean().item(), rel=1e-4)


# scores at validation


class Dictionary(Translator):
    """Returns the right translation of each line, except for some wrong ones."""

    def __init__(self, wrong: Sequence[str] = ()) -> None:
        self.text = dict(zip(TEXT.src, TEXT.tgt, strict=True)) | dict.fromkeys(wrong, "There is nothing at all here.")

    def translate(self, texts: Sequence[str], *_: object) -> list[Translation]:
        return [Translation([Candidate(self.text[text], -1.0, [], [])], [], []) for text in texts]


def test_a_validation_scores_translations_against_references() -> None:
    text = TEXT[:10]
    right = translation_scores(Dictionary(), text, CORPUS, 2, 1.5)
    assert [right.loss, *right.scores.values()] == pytest.approx([1.5, 100, 100])
    some = translation_scores(Dictionary(text.src[:4]), text, CORPUS)
    assert list(some.translations) == ["There is nothing at all here."] * 4 + text.tgt[4:]
    assert some.scores["bleu"] == sacrebleu.corpus_bleu(list(some.translations), [text.tgt]).score
    into_japanese = replace(CORPUS, data=replace(CORPUS.data, tgt_lang="ja"))
    japanese = translation_scores(Dictionary(), TEXT[:3], into_japanese)
    assert ["tok:13a" in some.signatures["bleu"], "tok:ja-mecab" in japanese.signatures["bleu"]] == [True] * 2
    for lines, wanted, shown in ((10, 3, [0, 3, 6]), (2, 5, [0, 1]), (7, 0, [])):
        samples = translation_scores(Dictionary(), TEXT[:lines], CORPUS, wanted).samples
        assert [sample.source for sample in samples] == [TEXT.src[i] for i in shown]


def test_each_validation_decodes_with_the_weights_of_its_moment() -> None:
    model, other = translating(), translating(seed=2)
    run = Run(Path("nowhere"), TranslationConfig(model=MODEL), tokenizers(), model)
    search = SearchConfig(beam_size=1, max_length=9)
    before = translation_scores(run.translator(search), TEXT[:3], CORPUS)
    model.load_state_dict(other.state_dict())  # in place, as an optimizer does
    after = translation_scores(run.translator(search), TEXT[:3], CORPUS)
    expected = run._replace(model=other).translator(search).translate(TEXT.src[:3])
    assert after.translations == [translation.text for translation in expected] != before.translations


MASK = len(tokenizers().src)  # the first id after the vocabulary


class SaysWhere(nn.Module):
    """Predicts 10 + t for the masked token at position t, that a pair follows and that a text is of class 5."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.head = self.pooler = nn.Identity()

    def bert(self, ids: Tensor, segments: Tensor) -> Tensor:  # noqa: ARG002
        return F.one_hot(10 + torch.arange(ids.size(1)).expand_as(ids), 99).float()

    def next_sentence(self, x: Tensor) -> Tensor:
        return F.one_hot(torch.ones(len(x), dtype=torch.long), 2)

    def forward(self, ids: Tensor) -> Tensor:
        return F.one_hot(torch.full((len(ids),), 5), 9).float()


def masked(ids: list[list[int]], target: list[list[int]], follows: Sequence[int] = ()) -> MaskedBatch:
    rows = torch.tensor(ids)
    return MaskedBatch(rows, torch.zeros_like(rows), torch.tensor(target), torch.tensor(follows))


def test_accuracy_is_counted_over_all_batches() -> None:
    first = masked(
        [[BOS_ID, 15, MASK, MASK, EOS_ID], [BOS_ID, 16, MASK, EOS_ID, PAD_ID]],
        [[PAD_ID, PAD_ID, 12, 19, PAD_ID], [PAD_ID, PAD_ID, 12, PAD_ID, PAD_ID]],  # 12 is right, 19 is not
        [1, 0],
    )
    second = masked([[BOS_ID, 17, MASK, 18, EOS_ID]], [[PAD_ID, PAD_ID, 20, 13, PAD_ID]], [1])  # 20 is wrong, 13 right
    validation = masked_accuracy(cast(BertForPreTraining, SaysWhere()), [first, second], tokenizers().src, 2.5)
    assert validation.loss == 2.5
    assert validation.scores == {"accuracy": pytest.approx(100 * 3 / 5), "next_sentence": pytest.approx(100 * 2 / 3)}
    begin, fifteen, twelve, nineteen, end, thirteen = tokenizers().src.tokens([BOS_ID, 15, 12, 19, EOS_ID, 13])
    sample = validation.samples[0]
    assert sample.source.split() == [begin, fifteen, "[MASK]", "[MASK]", end]
    assert sample.reference.split() == [begin, fifteen, twelve, nineteen, end]
    assert sample.translation.split() == [begin, fifteen, twelve, thirteen, end]
    labelled = [LabelledBatch(torch.full((len(labels), 2), 7), torch.tensor(labels)) for labels in ([5, 6, 5], [4])]
    assert class_accuracy(cast(BertClassifier, SaysWhere()), labelled, 1.5).scores == {"accuracy": 50.0}


# evaluate.py in this process, in a folder with texts and a run that has learned nothing

Command = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("evaluate")
    for name in ("references", "good", "bad"):
        write(home / f"{name}.en", getattr(ENGLISH, name))
        write(home / f"{name}.ja", getattr(JAPANESE, name))
        write(home / f"{name}.tok", getattr(TOKENIZED, name))
    texts = {"sources": TEXT.src[:40], "short": ENGLISH.good[:-1], "corpus.ja": TEXT.src, "corpus.en": TEXT.tgt}
    texts |= {"words.ja": ["京都 の 寺", "橋"], "words.en": ["a temple", "a bridge"]}
    golds = {"right": ["0-0", "0-0"], "odd": ["0-0", "1_2"], "beyond": ["0-0 3-1", "0-0"], "vague": ["P-0-0", ""]}
    for name, lines in (texts | golds).items():
        write(home / name, lines)
    for folder in ("a", "b/a"):
        (home / "folder" / folder).mkdir(parents=True)
    run = tiny.run(home / "pickles")
    data = DataConfig(corpus="files", src=home / "corpus.ja", tgt=home / "corpus.en", held_out=15)
    replace(TranslationConfig.load(run / CONFIG), data=data).save(run / CONFIG)
    prepare_corpus(data, home / "split")
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a command runs in."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for module in ("evaluate", "utils.evaluation.score"):
        monkeypatch.setattr(f"{module}.find_run", partial(find_run, root=tmp_path / "pickles"))
    for prepare in (prepare_to_score, prepare_corpus):
        monkeypatch.setattr(f"utils.dataset.corpus.{prepare.__name__}", partial(prepare, root=made / "split"))
    return tmp_path


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    assert Path.cwd() == home
    return lambda line: outcome("evaluate.py", evaluate.main, capsys, *shlex.split(line))


@pytest.fixture
def folder(home: Path) -> Path:
    """That of the run."""
    (folder,) = (home / "pickles").iterdir()
    return folder


@pytest.fixture
def held_out(folder: Path, made: Path) -> Callable[[str], tuple[Run, ParallelText]]:
    """The run, and a held-out set of its corpus."""
    run = load_run(folder, CPU)
    corpus = prepare_to_score(run.config.data, made / "split")
    return lambda split: (run, read_parallel(getattr(corpus, split)))


def result_of(command: Command, line: str) -> Any:
    """What a command writes as JSON."""
    ended = command(f"{line} --json result.json")
    assert ended.status == 0, ended.err
    return read_json(Path("result.json"))


REFUSED = """
file short references.en --tgt-lang en                        | references.en has 40 lines but short has 39: line i
file good.en references.en --training-text no --tgt-lang en   | no such file: no
file - references.en --tgt-lang en                            | standard input is called /dev/stdin here, not: -
file good.en references.en --tgt-lang en --json good.en       | --json good.en is the file of translations: give another
file folder references.en --tgt-lang en                       | python evaluate.py run folder --translations FILE
file references.en references.en --tgt-lang en                | have the same 40
file good.en references.ja --tgt-lang en                      | REFERENCES references.ja is not in en
file good.en references.en --tgt-lang en --bootstrap 5        | --bootstrap 5: give 100 or more
file good.en references.en --tgt-lang en --tokenize zh        | --tokenize zh cannot split en into words
file good.en references.en                                    | such as --tgt-lang en
file good.en references.en --tgt-lang en --html folder        | folder exists and is not a file
compare references.en bad.en good.en --tgt-lang en --samples 0 | --samples 0
compare references.en bad.en good.en --tgt-lang en --bootstrap 0 | --bootstrap 0 and --test bootstrap at once
run --split tune                                              | --split tune: files has dev, test; give one of them
run --tag law                                                 | tag=law, but the vocabulary knows no tag: give one
run --minimum-bayes-risk --beam 1                             | nothing to choose from: give e.g. --beam 8
run --length-penalty 20                                       | --length-penalty 20.0: give
tune --save --beams 1 0                                       | --beams 0: give
alignments --gold right --sources words.ja                    | belong together: give all three
alignments --gold odd --sources words.ja --references words.en | odd, line 2: '1_2' is no link: write i-j or S-i-j
alignments --gold beyond --sources words.ja --references words.en | line 1: '3-1' is beyond 3 source and 2 target words
alignments --gold good.en --sources words.ja --references words.en | good.en has 40 lines but words.ja has 2
alignments --gold vague --sources words.ja --references words.en | no sentence with a sure link is left to score
alignments --gold right --sources words.en --references words.en | words.en is not in ja
alignments --gold right --sources words.ja --references words.en --layer 3 | --layer 3: the decoder has 2; give 1 to 2
pairs tiny                                                    | learned corpus=files, ja to en; the pairs are of
survive tiny --sentences 0                                    | --sentences 0: give 1 or more
curves folder                                                 | --picture is missing: give the PNG file to write
curves folder --picture x.png                                 | no log.jsonl in folder
curves folder/a folder/b/a --picture x.png                    | two runs are named a
curves tiny --picture x.png                                   | pickles/tiny-
curves tin --picture x.png                                    | no run tin: give a folder
                                                              | arguments are required: VERB
run --bim 3                                                   | evaluate.py run: error: unknown option bim: did you
"""


@pytest.mark.parametrize(("line", "words"), [row.split(" | ") for row in REFUSED.strip("\n").split("\n")])
def test_a_mistake_is_one_line_and_nothing_is_translated_or_written(
    line: str, words: str, command: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "translate", Mock(side_effect=AssertionError("translated in vain")))
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert words.strip() in command(line).complaint
    assert before == {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


WARNED = """
file good.tok references.en --tgt-lang en --bootstrap 0 | good.tok looks tokenized: give --pre-tokenized
file good.tok references.en --tgt-lang en --bootstrap 0 --pre-tokenized               |
multi-bleu references.tok references.tok --force        | is not tok/kyoto-test.en of KFTT
multi-bleu good.en references.tok                       | good.en is not tokenized
"""


@pytest.mark.parametrize(("line", "words"), [row.split("|") for row in WARNED.strip("\n").split("\n")])
def test_what_looks_wrong_is_scored_with_a_warning(line: str, words: str, command: Command) -> None:
    ended = command(line)
    assert ended.status == 0
    assert words.strip() in ended.err
    assert words.strip() or not ended.err


def test_a_file_is_scored(command: Command) -> None:
    words = "--tgt-lang ja --seed 7 --html report.html --sources sources --training-text references.ja"
    (evaluation,) = result_of(command, f"file good.ja references.ja {words}")["evaluations"]
    with sampling_seed(7):
        expected = measure(JAPANESE.good, JAPANESE.references, build_metrics("ja", "ja-mecab"), 1000)
    assert evaluation["metrics"] == [asdict(metric) for metric in expected]
    assert [evaluation[name] for name in ("system", "text", "n_sentences")] == ["good.ja", "references.ja", 40]
    page = Path("report.html").read_text(encoding="utf-8")
    assert all(f"{metric.score:.2f}" in page and metric.signature in page for metric in expected)
    assert evaluation["analysis"]["f1_by_frequency"]
    shown = evaluation["analysis"]["best"][0]
    assert (shown["source"], shown["translation"]) == (TEXT.src[shown["line"] - 1], JAPANESE.good[shown["line"] - 1])


def test_systems_are_compared_with_the_first_and_runs_stand_for_their_translations(
    command: Command, home: Path
) -> None:
    shutil.copy(home / "good.en", home / "folder" / "test.txt")
    shutil.copytree(home / "folder", home / "pickles" / "named")  # stands for its translations by its name, too
    systems, metrics = [System("bad.en", ENGLISH.bad), System("folder", ENGLISH.good)], build_metrics("en", "13a")
    with sampling_seed(3):
        scores, comparisons = compare(systems, ENGLISH.references, metrics, "randomization", 200, 1000)
    words = "--tgt-lang en --test randomization --samples 200 --seed 3"
    for run in ("folder", "named"):
        result = result_of(command, f"compare references.en bad.en {run} {words}")
        assert [of_system["metrics"] for of_system in result["evaluations"]] == [[*map(asdict, s)] for s in scores]
        assert [of_system["system"] for of_system in result["evaluations"]] == ["bad.en", run]
        assert result["comparisons"] == [asdict(comparison) | {"system": run} for comparison in comparisons]


def test_systems_are_contrasted_by_sentences_and_ngrams(command: Command, home: Path) -> None:
    river, bell = ["the river", "the river", "the shop"], ["bell", "bell", "bell", "bell"]
    write(home / "references", ["a red bridge", "an old temple", "the garden", *river, *bell])
    write(home / "before", ["a red bridge", "a temple", "the hut", "the lake", "the lake", "the shop", "bell", *"xyz"])
    write(home / "after", ["a bridge", "an old temple", "the garden", "the river", "a river river", "the shop", *bell])
    line = "compare references before after --tgt-lang en --html page.html --samples 100"
    (contrast,) = result_of(command, line)["contrasts"]
    assert (contrast["system"], contrast["baseline"]) == ("after", "before")
    assert {after["line"] for _, after in contrast["better"]} == {2, 3, 4, 5, 8, 9, 10}
    assert [(a["line"], a["translation"], b["translation"]) for a, b in contrast["worse"]] == [
        (1, "a red bridge", "a bridge")
    ]
    rises = [b["chrf"] - a["chrf"] for a, b in contrast["better"]]
    assert rises == sorted(rises, reverse=True)
    expected = [sacrebleu.sentence_chrf(text, ["the garden"]).score for text in ("the hut", "the garden")]
    assert expected in [[sentence["chrf"] for sentence in pair] for pair in contrast["better"]]
    gained, lost = (
        [tuple(ngram[name] for name in ("ngram", "baseline", "system", "references")) for ngram in contrast[side]]
        for side in ("gained", "lost")
    )
    # 3 / 4, 5 / 7; all others once against never: 2 / 3; a second river in one line is not in its reference
    assert gained[:2] == [("river", 0, 2, 2), ("bell", 1, 4, 4)]
    once = ("an", "old", "an old", "old temple", "an old temple", "garden", "the garden")
    assert {*gained[2:]} == {*((ngram, 0, 1, 1) for ngram in once), ("the river", 0, 1, 2)}
    assert {*lost} == {*((n, 1, 0, 1) for n in ("red", "a red", "red bridge", "a red bridge")), ("the", 4, 3, 4)}
    assert "differ most" in (home / "page.html").read_text(encoding="utf-8")


def test_the_line_of_multi_bleu_is_all_that_is_printed(command: Command) -> None:
    ended = command("multi-bleu good.en references.tok --plain")
    assert ended.out == multi_bleu(moses_words(ENGLISH.good), TOKENIZED.references) + "\n"
    assert "is not tokenized" not in ended.err


HeldOut = Callable[[str], tuple[Run, ParallelText]]


def test_a_run_translates_its_own_text(command: Command, folder: Path, held_out: HeldOut) -> None:
    run, pairs = held_out("dev")
    search = replace(run.config.search, beam_size=3, length_penalty=-1.0)
    expected = [translation.text for translation in run.translator(search).translate(pairs.src[:6])]
    words = "--split dev --beam 3 --length-penalty -1 --limit 6 --bootstrap 0 --translations out"
    (evaluation,) = result_of(command, f"run {folder} {words}")["evaluations"]
    assert read_lines(Path("out")) == expected
    assert evaluation["metrics"] == [asdict(m) for m in measure(expected, pairs.tgt[:6], build_metrics("en", "13a"))]
    assert (evaluation["text"], evaluation["n_sentences"]) == ("files dev, ja-en, first 6 sentences", 6)
    assert evaluation["system"] == f"{folder.name}, beam 3, length penalty -1"
    groups = evaluation["analysis"]["f1_by_frequency"]
    assert sum(group["count"] for group in groups if group["label"] != "never seen") > 3 * 6
    (evaluation,) = result_of(command, "run --bootstrap 0 --beam 1")["evaluations"]
    assert (evaluation["text"], evaluation["n_sentences"]) == ("files test, ja-en", 15)


def test_what_is_missing_or_could_not_be_translated_is_said(command: Command, home: Path, folder: Path) -> None:
    config = TranslationConfig.load(folder / CONFIG)
    src = write(home / "d.ja", [TEXT.src[0], "京都に古い寺" * 20, "鬱", "鬱"])
    tgt = write(home / "d.en", TEXT.tgt[:4])
    texts = replace(config.data, dev_src=src, dev_tgt=tgt, test_src=config.data.src, test_tgt=config.data.tgt)
    replace(config, data=replace(texts, src=home / "gone.ja")).save(folder / CONFIG)
    unknown, gone = command("run --split dev --bootstrap 0 --beam 1").err.splitlines()
    assert "2 of 4 sources are entirely outside the vocabulary" in unknown
    assert "no F1 by word frequency" in gone


def test_tuning_tries_each_setting_and_saves_the_best(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[tuple[int, float]] = []
    translate = Translator.translate

    def watched(translator: Translator, *rest: Any) -> list[Translation]:
        searched.append((translator.search.beam_size, translator.search.length_penalty))
        return translate(translator, *rest)

    monkeypatch.setattr(Translator, "translate", watched)
    ended = command("tune --beams 1 3 --length-penalties 0 2 --limit 4 --save --json tuned.json --picture tuned.png")
    tuned = read_json(Path("tuned.json"))
    trials = tuned["trials"]
    assert [(t["beam_size"], t["length_penalty"]) for t in trials] == [(1, 0), (1, 2), (3, 0), (3, 2)]
    best = max(trials, key=lambda trial: (trial["bleu"], -trial["beam_size"]))  # of equals, the smallest beam
    assert f"best: --beam {best['beam_size']} --length-penalty {best['length_penalty']:g}" in ended.out
    assert tuned["text"] == "files dev, ja-en, first 4 sentences"
    search = TranslationConfig.load(folder / CONFIG).search
    assert (search.beam_size, search.length_penalty) == (best["beam_size"], best["length_penalty"])
    assert Path("tuned.png").read_bytes().startswith(b"\x89PNG")
    assert searched == [(1, 0), (3, 0), (3, 2)]  # no length penalty changes greedy search
    line = "run --split dev --limit 4 --bootstrap 0 --beam 3 --length-penalty 2"
    (scored,) = result_of(command, line)["evaluations"]
    assert scored["metrics"][0]["score"] == pytest.approx(trials[3]["bleu"])
    assert scored["analysis"]["length_ratio"] == pytest.approx(trials[3]["length_ratio"])


def test_a_run_is_scored_with_what_agrees_most_in_the_precision_that_is_asked_for(
    command: Command, held_out: HeldOut
) -> None:
    by_risk = "run --split dev --bootstrap 0 --beam 6 --minimum-bayes-risk --precision bf16 --translations by_risk"
    (scored,) = result_of(command, by_risk)["evaluations"]
    run, pairs = held_out("dev")
    search = replace(run.config.search, beam_size=6)
    chosen, other = (
        [t.text for t in replace(run.translator(search, precision), minimum_bayes_risk=True).translate(pairs.src)]
        for precision in ("bf16", "fp32")
    )
    assert read_lines(Path("by_risk")) == chosen != other
    assert scored["system"].endswith("beam 6, length penalty 0.6, bf16, minimum Bayes risk")


def test_a_text_is_scored_with_the_tag_that_it_is_given(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = tagged_tokenizers()
    monkeypatch.setattr("tests.tiny.tokenizers", lambda: pair)
    tagged = tiny.run(folder.parent / "tagged")
    shutil.copy(folder / CONFIG, tagged)  # for its data
    by_tag = {}
    for tag in ("law", "bt", None):
        option = "" if tag is None else f"--tag {tag}"
        line = f"run {tagged} {option} --limit 9 --bootstrap 0 --translations by_tag"
        (evaluation,) = result_of(command, line)["evaluations"]
        assert evaluation["text"] == f"files test, ja-en{'' if tag is None else f', tag {tag}'}, first 9 sentences"
        by_tag[tag] = read_lines(Path("by_tag"))
    assert by_tag["law"] == by_tag[None] != by_tag["bt"]


def test_a_report_may_go_to_standard_output(command: Command) -> None:
    ended = command("file good.en references.en --tgt-lang en --bootstrap 0 --json -")
    assert ended.status == 0, ended.err
    shown, _, result = ended.out.partition("\n{")
    assert "BLEU" in shown
    assert json.loads("{" + result)["evaluations"][0]["metrics"][0]["name"] == "BLEU"


def test_heads_are_weighed_on_the_text_that_is_asked_for(command: Command, held_out: HeldOut) -> None:
    ended = command("heads --split test --limit 2 --picture heads.png --json heads.json")
    run, pairs = held_out("test")
    expected = head_importance(run, pairs[:2])
    last = expected.heads[-1]
    shown = ["cross-attention", "2", "2", f"{last.loss_rise:+.4f}", f"{last.entropy:.3f}"]
    assert ended.out.splitlines()[-1].split() == shown
    result = read_json(Path("heads.json"))
    assert (result["loss"], result["heads"]) == (expected.loss, [head._asdict() for head in expected.heads])
    assert Path("heads.png").read_bytes().startswith(b"\x89PNG")


# alignments: a hand-computed example, a run whose attention is known, the shipped run


def test_alignment_error_rate_precision_and_recall_are_those_of_och_and_ney() -> None:
    gold = parse_gold("gold, line 1", "0-0 S-1-2 P-2-1 0p3", 3, 4)
    assert gold[0].nonzero().tolist() == [[0, 0], [2, 1]]  # target, source
    assert gold[1].nonzero().tolist() == [[0, 0], [1, 2], [2, 1], [3, 0]]
    chosen = [[0, 2, 2, 1], [1, 1, 1, 1]]  # by two heads, for each target word
    weights = F.one_hot(torch.tensor(chosen), 3)[None].float()
    short = torch.ones(1, 2, 1, 1), parse_gold("gold, line 2", "0-0", 1, 1)
    # A: 4 + 1 links, S: 2 + 1; head 1 hits 1 + 1 sure links and 2 + 1 possible ones, head 2 1 + 1 and 1 + 1
    expected = [[[1 - (2 + 3) / (5 + 3), 1 - (2 + 2) / (5 + 3)]], [[3 / 5, 2 / 5]], [[2 / 3, 2 / 3]]]
    torch.testing.assert_close(agreement([(weights, gold), short]), torch.tensor(expected, dtype=torch.float64))


def test_words_are_aligned_by_the_attention_of_their_pieces(made: Path) -> None:
    (folder,) = (made / "pickles").iterdir()
    run = Run(folder, TranslationConfig.load(folder / CONFIG), tokenizers(), translating())
    pairs = [*zip(TEXT.src, TEXT.tgt, strict=True)][:9]
    words = [(re.findall("..?.?", text), line.split()) for text, line in pairs if len(text) % 3 != 1]
    spaced = [" ".join(src) for src, _ in words], [" ".join(tgt) for _, tgt in words]
    links: list[list[list[int]]] = []  # of each pair and head, layer by layer: the source word of each target word
    for src, tgt in words:
        texts = "".join(src), " ".join(tgt)
        owners, ids = [], []
        for tokenizer, text, side in zip(run.tokenizers, texts, (src, tgt), strict=True):
            letters = iter([i for i, word in enumerate(side) for _ in word])
            # the word of each character of each piece
            owners.append([[next(letters) for _ in piece.replace("▁", "")] for piece in tokenizer.split([text])[0]])
            ids += tokenizer.encode([text])
        links.append([])
        for of_layer in attention_weights(run.model, *ids)["cross"]:
            for weights in [*of_layer, of_layer.mean(0)]:
                sums = torch.zeros(len(tgt), len(src))
                for (t, of_target), (s, of_source) in product(enumerate(owners[1]), enumerate(owners[0])):
                    for j, i in product(of_target, of_source):
                        sums[j, i] += weights[t, s] / len(of_target) / len(of_source)
                links[-1].append(sums.argmax(1).tolist())
    for place in (0, 4, 5):  # the links of each as gold: it alone is right in everything
        lines = [" ".join(f"{i}-{j}" for j, i in enumerate(of_pair[place])) for of_pair in links]
        golds = [parse_gold("", line, len(src), len(tgt)) for line, (src, tgt) in zip(lines, words, strict=True)]
        scores, left_out = score_alignment(run, spaced, golds, None)
        assert left_out == 0
        assert [score[:2] for score in scores] == [(layer, head) for layer in (1, 2) for head in (1, 2, "mean")]
        assert [score[2:] == (0, 1, 1) for score in scores] == [i == place for i in range(6)]
        assert score_alignment(run, spaced, golds, 2)[0] == scores[3:]


def test_the_alignments_of_the_shipped_run_are_told(command: Command, home: Path) -> None:
    write(home / "words.ja", ["京都 は 日本 の 古都 で ある 。", "彼 は 京都 に 生まれ た 。", "京\u200b都 の 寺"])
    write(home / "words.en", ["Kyoto is an old capital of Japan .", "He was born in Kyoto .", "a temple of Kyoto"])
    write(home / "gold", ["0-0 5-1 6-1 4-3 4-4 3-5 2-6 7-7 P-4-2", "0-0 4-2 2-4 3-3 5-1 6-5 1p0", "0-3 1-2 2-1"])
    shutil.copytree(PICKLES / "kftt_ja_en", home / "shipped")  # it reads a tag, and plain text
    files = "--gold gold --sources words.ja --references words.en"
    ended = command(f"alignments {files} shipped --picture heads.png --json heads.json")
    assert ended.out.startswith("shipped, gold: 2 sentences, 1 left out; in %\n"), ended.err
    result = read_json(Path("heads.json"))
    scores, best = result["scores"], result["best"]
    assert result["left_out"] == 1  # its pieces have no invisible space
    heads = [(layer, head) for layer in (1, 2, 3) for head in (1, 2, 3, 4, 5, "mean")]
    assert [(score["layer"], score["head"]) for score in scores] == heads
    assert best == min(scores, key=lambda score: score["aer"])
    assert best["aer"] < 0.3  # of links at random, more than 0.8
    assert ended.out.splitlines()[-1] == f"best: layer {best['layer']}, head {best['head']}"
    row = [f"{100 * scores[-1][name]:.1f}" for name in ("aer", "precision", "recall")]
    assert ended.out.splitlines()[-3].split() == ["3", "mean", *row]
    assert (home / "heads.png").read_bytes().startswith(b"\x89PNG")


# pairs


def test_the_likelier_of_two_translations_is_found_by_the_sum_of_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def stub(_model: object, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """A token costs a nat, unless it is in the source."""
        return [[-1.0 * (i not in src) for i in tgt] for src, tgt in zip(sources, targets, strict=True)]

    letters = Mock()
    letters.encode = lambda texts: [[*map(ord, text)] for text in texts]
    run = Run(Path(), Mock(), TokenizerPair(letters, letters), Mock())
    monkeypatch.setattr("utils.evaluation.validation.token_log_probs", stub)
    copied, longer, same = map(MinimalPair, ("abc", "abc", ""), ("aabbcc", "aadd", "a"), ("d", "ad", "b"))
    accuracy = pair_accuracy(run, {"one": [copied], "other": [longer, copied, same, copied], "none": [same, longer]})
    assert accuracy == {"one": 100.0, "other": 50.0, "none": 0.0}


def test_a_run_is_asked_about_pairs_with_its_best_and_its_kept_weights(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(TranslationConfig.load(folder / CONFIG), data=DataConfig(corpus="embedded")).save(folder / CONFIG)
    assert "has fewer than two validations to draw: leave" in command("pairs tiny --picture pairs.png").complaint
    (folder / KEPT_WEIGHTS).mkdir()
    for step in 30, 200:
        file = step_file(folder / KEPT_WEIGHTS, step, WEIGHTS_SUFFIX)
        write_weights(translating(seed=step).state_dict(), file, Rank(0.0))
    texts = {"tense": range(0, 60, 2), "negation": range(1, 61, 4)}
    pairs = {n: [MinimalPair(TEXT.src[i], TEXT.tgt[i], TEXT.tgt[i + 33]) for i in rows] for n, rows in texts.items()}
    monkeypatch.setattr("utils.dataset.embedded.minimal_pairs", lambda: pairs)

    def expected(model: Transformer) -> dict[str, float]:
        src, tgt = (tokenizer.encode(side) for tokenizer, side in zip(tokenizers(), (TEXT.src, TEXT.tgt), strict=True))
        likely = {(i, j): sum(token_log_probs(model, [src[i]], [tgt[j]])[0]) for i in range(61) for j in (i, i + 33)}
        return {n: 100 * sum(likely[i, i] > likely[i, i + 33] for i in rows) / len(rows) for n, rows in texts.items()}

    ended = command("pairs tiny --picture pairs.png --json pairs.json")
    assert ended.status == 0, ended.err
    best, courses = expected(translating()), {str(step): expected(translating(seed=step)) for step in (30, 200)}
    assert read_json(Path("pairs.json")) == {
        "pairs": {"tense": 30, "negation": 15},
        "chance": 50.0,
        "runs": [{"run": folder.name, "accuracy": best, "by_updates": courses}],
    }
    assert len({best["tense"], *(accuracy["tense"] for accuracy in courses.values())}) == 3
    assert ended.out.startswith(f"{folder.name}: asking the weights of 2 validations\n")  # without a terminal
    assert ended.out.splitlines()[3].split() == ["tense", "30", f"{best['tense']:.1f}", "50.0"]
    assert Path("pairs.png").read_bytes().startswith(b"\x89PNG")


# survive

READ = """
ja | 人口は350万人 | 3500000
ja | 147万5183人、1億2000万円、1.5億 | 1475183 120000000 150000000
ja | 三百五十万、千二百三、一九一〇、十 | 3500000 1203 1910 10
ja | 3,500,000 １２３ 147,5183 3500,000 | 3500000 123 147 5183 3500 0
ja | 約1.5％、12パーセント | 1.5% 12%
ja | 明治43年（1910年）、昭和元年 | 1910 1910 1926
ja | 午後3時30分、午前九時半、5時、15:30に3時間 | 15:30 9:30 5:00 15:30 3
ja | 5月3日の第3回 | 5 3 3
en | 3.5 million, 120 million yen and 2 billion | 3500000 120000000 2000000000
en | two hundred, ten thousand; Three Hundred and Fifty-Six Thousand One Hundred and One | 200 10000 356101
en | a hundred monks and 1 million 475 thousand 183 people | 100 1475183
en | 1,475,183 and 147,5183 | 1475183 147 5183
en | 12%, 7.5 percent and 3 per cent of twenty | 12% 7.5% 3% 20
en | in 1910 two monks, in 1900 5; in the 1920s | 1910 2 1900 5
en | at 3:30 p.m., 9 AM, 11:05 in the morning or 15:30 | 15:30 9:00 11:05 15:30
en | the 3rd, the twenty-first of May, the fortieth and the twelfth | 3 21 5 40 12
"""


@pytest.mark.parametrize("row", READ.strip().split("\n"))
def test_numbers_are_read_by_value_in_all_writings(row: str) -> None:
    language, text, values = row.split(" | ")
    assert sorted(numbers(text, language)) == sorted({*values.split()})


@pytest.mark.parametrize("language", ["ja", "en"])
def test_different_sentences_are_drawn_of_each_kind_and_have_what_must_survive(language: str) -> None:
    sentences = draw(language, 2000)
    assert len({sentence.text for sentence in sentences}) == 2000
    assert sentences[:300] == draw(language, 300)
    assert all(("’" in sentence.kind) == ("’" in sentence.text) for sentence in sentences)
    assert min(Counter((sentence.topic, sentence.kind) for sentence in sentences).values()) >= 10
    assert not re.search("[<>|]", "".join(sentence.text + sentence.twin for sentence in sentences))
    assert all(numbers(s.text, language) for s in sentences if s.topic == "numbers")
    # each would be right as the translation of a sentence in the other language
    likewise = [
        sentence._replace(language="en" if language == "ja" else "ja")
        for sentence in sentences
        if sentence.topic in ("negation", "questions", "addresses", "emoji")
    ]
    texts = {text: text for sentence in likewise for text in (sentence.text, sentence.twin)}
    assert [one for one in check(likewise, texts) if not one.is_right] == []


RIGHT = """
numbers   | ja | 350万人   |       | 3.5 million in one of the three towns
numbers   | ja | 350万人   |       | 3,500,000
numbers   | en | in 1910   |       | 1910年（明治43年）、一般に
negation  | en | He didn’t | He did | 行かなかった。               | 行った。
negation  | ja | 行かない  | 行く  | He never went.              | He went.
negation  | en | He may not | He may | 禁じられた。              | 許された。
capitals  | en | NARA      | Nara  | 奈良                        | 奈良
addresses | ja | a@b.org へ | a@b.org | Write to a@b.org.
emoji     | en | Hi 👍🏽     | 👍🏽    | やあ👍🏽
names     | ja | 山田      | Yamada | Taro YAMADA
questions | en | Why?      |       | なぜか。
questions | ja | 何か。    |       | What?
"""
WRONG = """
numbers   | ja | 350万人   |       | 35 million
numbers   | ja | 350万人   |       | 3.5 million of 12
numbers   | ja | 350万人   |       | 3.5 million of 2
numbers   | en | 3.5 million |     | 人口
numbers   | ja | 午後3時   |       | at 3 a.m.
negation  | en | He didn’t | He did | 必ず、行った。              | 行った。
negation  | ja | 行かない  | 行く  | He never went.              | He does not go.
capitals  | en | NARA      | Nara  | 奈良ナ                      | 奈良
addresses | ja | a@b.org へ | a@b.org | Write to a@b org.
emoji     | en | Hi 👍🏽     | 👍🏽    | やあ👍
names     | ja | 山田      | Yamada | Yamamoto
questions | en | Why?      |       | なぜ
questions | ja | 何か。    |       | Something.
no loop   | ja | 寺        |       | the temple of the temple of the temple of the temple
no loop   | en | a dot     |       | 点.....
"""


@pytest.mark.parametrize("row", [f"{row} | 1" for row in RIGHT.strip().split("\n")] + WRONG.strip().split("\n"))
def test_what_has_survived_is_checked_exactly(row: str) -> None:
    topic, language, text, other, *translations = (cell.strip() for cell in row.split("|"))
    is_right = translations[-1] == "1"
    twin, kept = (other, ()) if topic in ("negation", "capitals") else (text, (other,))
    sentence = Sentence(topic, "", language, text, twin, kept)
    of_twin = translations[1] if twin == other else translations[0]
    one, again = check([sentence], {twin: of_twin, text: translations[0]})
    assert (one.is_right, one.translation, one.of_twin) == (is_right, translations[0], of_twin)
    assert again.sentence.topic == "no loop"


def test_a_run_is_checked_for_what_survives(command: Command, folder: Path) -> None:
    ended = command("survive tiny --sentences 60 --json result.json")
    assert ended.status == 0, ended.err
    sentences = draw("ja", 60)
    texts = [text for sentence in sentences for text in (sentence.text, sentence.twin)]
    found = load_run(folder, CPU).translator().translate(texts)
    checked = check(sentences, {text: translation.text for text, translation in zip(texts, found, strict=True)})
    n_right = sum(one.is_right for one in checked)
    assert 0 < n_right < len(checked) == 120
    assert "\n".join([f"{folder.name}, ja-en: what survives", *survival_table(checked), "", "wrong, "]) in ended.out
    assert "\nnegation: " in ended.out
    result = read_json(Path("result.json"))
    assert [record["right"] for record in result["sentences"]] == [one.is_right for one in checked]


def test_a_run_of_other_languages_is_not_checked(command: Command, folder: Path) -> None:
    replace(TranslationConfig.load(folder / CONFIG), data=DataConfig("files", src_lang="de")).save(folder / CONFIG)
    assert "translates de to en; the sentences are for ja to en, or en to ja" in command("survive tiny").complaint
    assert "reads de; the sentences are in ja and en" in command("everyday tiny").complaint


# everyday

SENTENCES = {
    language: [sentence for text in topics.values() for sentence in text.split(" / ")]
    for language, topics in yaml.safe_load(EVERYDAY.read_text(encoding="utf-8")).items()
}


def test_there_are_a_hundred_everyday_sentences_in_each_language() -> None:
    for language, sentences in SENTENCES.items():
        assert (len(sentences), len({*sentences})) == (100, 100)
        assert all(bool(re.search(f"[{KANA}]", sentence)) == (language == "ja") for sentence in sentences)


def test_no_everyday_sentence_is_among_the_phrases_that_were_learned_from() -> None:
    """The page is to show what was learned, not what was learned by heart."""
    for language, learned in zip(LANGUAGES, zip(*pairs_in(PHRASES, LANGUAGES), strict=True), strict=True):
        assert len({*learned}) == len(learned) > 300
        assert not {*SENTENCES[language]} & {*learned}


def test_everyday_sentences_are_printed_with_their_translations_and_what_is_to_be_said(
    command: Command, folder: Path
) -> None:
    ended = command("everyday tiny")
    assert ended.status == 0, ended.err
    translations = load_run(folder, CPU).translator().translate(SENTENCES["ja"])
    expected = [
        [f"- {sentence}", f"  - **{translation.text}**", *(f"  - {notice}" for notice in notices(translation).values())]
        for sentence, translation in zip(SENTENCES["ja"], translations, strict=True)
    ]
    assert [line for line in ended.out.split("\n") if line.lstrip().startswith("-")] == [*chain(*expected)]
    assert f"## `{folder.name}` (ja→en), weights {sha256((folder / WEIGHTS).read_bytes()).hexdigest()[:8]}" in ended.out


@pytest.mark.skipif(not (page := FIGURE / "everyday.md").exists(), reason="there is no page of everyday sentences")
def test_the_page_of_everyday_sentences_is_of_the_present_weights_and_sentences() -> None:
    said = page.read_text(encoding="utf-8")
    for run in SHIPPED:
        assert sha256((PICKLES / run / WEIGHTS).read_bytes()).hexdigest()[:8] in said, (
            f"{run} has other weights: renew it"
        )
    assert re.findall("^- (.+)", said, re.M) == [*chain(*SENTENCES.values())] * (len(SHIPPED) // 2)
