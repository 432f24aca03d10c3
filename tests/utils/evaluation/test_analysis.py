"""Scores by length and by frequency, repetition and omission: by hand, and by what must hold of any text."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from utils.evaluation.analysis import analyse, repeats, under_translated, word_counts, word_cutter
from utils.evaluation.metric import Group

WORDS = st.sampled_from(["the", "temple", "is", "old", "very", ".", "Kyoto"])
SENTENCES = st.lists(WORDS, max_size=15).map(" ".join)
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=8)
TRAINING = ["the temple is old .", "the old temple", "the the the the the the the the", "is it ?"]


def words(text: Iterable[str], tokenizer: str = "13a") -> Counter[str]:
    return word_counts(text, word_cutter(tokenizer))


def sentence(n: int) -> str:
    return " ".join(f"w{i}" for i in range(n))


def labels(groups: list[Group]) -> list[tuple[str, int]]:
    return [(group.label, group.count) for group in groups]


def test_each_length_belongs_to_one_group_of_sources() -> None:
    lengths = [0, 1, 5, 6, 10, 11, 20, 21, 30, 31, 40, 41, 60, 61, 300]
    analysis = analyse([sentence(n) for n in lengths], ["a"] * 15, ["a"] * 15, "13a")
    assert labels(analysis.bleu_by_length) == [
        ("0-5 source tokens", 3),
        ("6-10 source tokens", 2),
        ("11-20 source tokens", 2),
        ("21-30 source tokens", 2),
        ("31-40 source tokens", 2),
        ("41-60 source tokens", 2),
        ("61+ source tokens", 2),
    ]


def test_without_sources_the_references_count_and_the_label_says_so() -> None:
    analysis = analyse([], ["a", "b"], [sentence(6), sentence(45)], "13a")
    assert labels(analysis.bleu_by_length) == [("6-10 reference tokens", 1), ("41-60 reference tokens", 1)]
    assert [shown.source for shown in analysis.best] == ["", ""]


@pytest.mark.parametrize(
    ("source", "pre_tokenized", "label"),
    [
        ("京都は日本の古い都である。", False, "6-10"),  # 京都 は 日本 の 古い 都 で ある 。
        ("京都 は 日本 の 古い 都", True, "6-10"),
        ("京都は日本の古い都である。", True, "0-5"),
        ("我是一个学生", False, "6-10"),  # sacreBLEU takes each character of Chinese for a word
        ("It's old, isn't it?", False, "6-10"),  # It's old , isn't it ?
        ("It's old, isn't it?", True, "0-5"),
    ],
)
def test_the_text_decides_what_a_source_token_is(source: str, pre_tokenized: bool, label: str) -> None:
    analysis = analyse([source], ["a"], ["a"], "none" if pre_tokenized else "13a")
    assert labels(analysis.bleu_by_length) == [(f"{label} source tokens", 1)]


def test_a_group_is_scored_as_a_text_of_its_own() -> None:
    translations = ["The old temple is in Kyoto, they say.", "It is a new and small house.", "The garden is very old."]
    references = ["The old temple is in Nara, they say.", "It is a new and large house.", "The garden is very old ."]
    sources = [sentence(20), sentence(12), sentence(7)]
    short, long = analyse(sources, translations, references, "13a").bleu_by_length
    assert short.score == pytest.approx(100)  # 13a cuts the full stop off
    assert long.score == pytest.approx(sacrebleu.corpus_bleu(translations[:2], [references[:2]]).score)
    assert 20 < long.score < 90
    as_they_are = analyse(sources, translations, references, "none").bleu_by_length[0]
    assert as_they_are.score < 90


def test_a_group_of_all_has_the_score_of_all_whatever_the_tokenizer() -> None:
    translations, references = ["古い寺が京都にある。", "庭は広くない。"], ["古い寺は京都にある。", "庭は広いです。"]
    (group,) = analyse([], translations, references, "char").bleu_by_length
    assert group.score == pytest.approx(sacrebleu.corpus_bleu(translations, [references], tokenize="char").score)


def test_short_sentences_can_be_perfect() -> None:
    (group,) = analyse(["はい。"], ["Yes."], ["Yes."], "13a").bleu_by_length
    assert group == Group("0-5 source tokens", 1, pytest.approx(100))  # type: ignore[arg-type]
    assert sacrebleu.corpus_bleu(["Yes."], [["Yes."]]).score == 0


def test_f1_by_hand() -> None:
    # the: 10 times in the training text, temple and is: 2, old: 2, Kyoto: never
    analysis = analyse(
        [],
        ["the the temple is", "Kyoto is old"],
        ["the temple is old", "the Kyoto temple"],
        "13a",
        training_words=words(TRAINING),
    )
    # never: Kyoto is in the one reference and its translation; 2-4 times: the references have temple, is, old, temple,
    # the translations temple, is, is, old, and temple and is of the first match; 10-99: the, the against the, the
    assert analysis.f1_by_frequency == [
        Group("never seen", 1, 100),
        Group("2-4 times", 4, pytest.approx(100 * 2 * 2 / (4 + 4))),  # type: ignore[arg-type]
        Group("10-99 times", 2, pytest.approx(100 * 2 * 1 / (2 + 2))),  # type: ignore[arg-type]
    ]


def test_each_frequency_belongs_to_one_group() -> None:
    occurrences = [0, 1, 2, 4, 5, 9, 10, 99, 100, 999, 1000, 2000]
    reference = " ".join(f"w{n}" for n in occurrences)
    text = [f"w{n}" for n in occurrences for _ in range(n)]
    analysis = analyse([], [reference], [reference], "13a", training_words=words(text))
    assert labels(analysis.f1_by_frequency) == [
        ("never seen", 1),
        ("1 time", 1),
        ("2-4 times", 2),
        ("5-9 times", 2),
        ("10-99 times", 2),
        ("100-999 times", 2),
        ("1000+ times", 2),
    ]


def test_a_match_is_clipped_by_each_reference() -> None:
    # a word that another sentence's reference has is no match, and a second one only if the reference has two
    translations, references = ["temple temple temple", "x Temple"], ["temple x", "temple y"]
    analysis = analyse([], translations, references, "13a", training_words=words(["temple"]))
    assert analysis.f1_by_frequency == [Group("never seen", 2, 0), Group("1 time", 2, 100 * 2 * 1 / (2 + 3))]


@pytest.mark.parametrize(
    ("text", "tokenizer", "n_words"),
    [
        ("古い寺だ。", "ja-mecab", 4),
        ("古い寺だ。", "char", 5),
        ("古い寺だ。", "none", 1),
        ("Old.", "none", 1),
        ("Old.", "13a", 2),
    ],
)
def test_words_are_those_of_the_tokenizer(text: str, tokenizer: str, n_words: int) -> None:
    analysis = analyse([], [text], [text], tokenizer, training_words=words([text], tokenizer))
    assert analysis.f1_by_frequency == [Group("1 time", n_words, 100)]


def test_the_training_text_is_read_once_and_no_line_before_it_is_needed() -> None:
    asked = []

    def lines() -> Iterator[str]:
        for number in range(3):
            asked.append(number)
            yield "a"

    analysis = analyse([], ["a"], ["a"], "13a", training_words=words(lines()))
    assert analysis.f1_by_frequency == [Group("2-4 times", 1, 100)]
    assert asked == [0, 1, 2]
    assert analyse([], ["a"], ["a"], "13a").f1_by_frequency == []


@pytest.mark.parametrize(
    ("translation", "reference", "expected"),
    [
        ("a b c d x a b c d y a b c d", "a b c d", True),
        ("a b c d x a b c d", "a b c d", False),  # twice may be right
        ("a b c d x a b c d y a b c d", "a b c d z a b c d", False),  # the reference says it twice
        ("a b c d x a b c d y a b c d", "", True),
        ("no no no", "no", True),
        ("no no", "no", False),
        ("no no x no no", "no", False),
        ("no , no , no", "no", True),  # punctuation hides nothing
        ("no no no", "ha ha ha", False),
        ("no no no no", "ha ha ha", True),
        ("of the of the of the temple", "of the temple", True),
        ("of the of the temple", "of the temple", False),
        ("a b c a b c a b c", "a b c", True),
        ("a b c a b c a b", "a b c", False),
        (". . .", "", False),
        ("well . . . . .", "well", False),
        ("「 」 「 」 「 」 「 」 「 」", "", True),  # a loop, if not of words
        ("the old the new the small", "the", False),
        ("JNRRRRR", "JNR", True),
        ("任任任任任", "任", True),
        ("aaaa bbbb", "a", False),
        ("aaaaa", "bbbbb", False),
        ("aaaaaa", "bbbbb", True),
        ("1000000 _____", "1", False),
        ("", "", False),
        ("", "no no no", False),
    ],
)
def test_what_a_repetition_is(translation: str, reference: str, expected: bool) -> None:
    assert repeats(translation.split(), reference.split()) is expected


@pytest.mark.parametrize(
    ("n_words", "n_reference", "expected"),
    [
        (0, 1, True),
        (0, 0, False),
        (1, 0, False),
        (1, 5, False),
        (1, 6, True),
        (3, 8, True),
        (4, 8, False),
        (4, 9, True),
        (9, 20, True),
        (10, 20, False),
        (40, 20, False),
    ],
)
def test_what_an_under_translation_is(n_words: int, n_reference: int, expected: bool) -> None:
    assert under_translated(n_words, n_reference) is expected


def test_rates_are_shares_of_the_sentences() -> None:
    references = [sentence(10)] * 8
    translations = [sentence(10), "w0 w0 w0 w0 w0 w0", "w1 w2 w1 w2 w1 w2", *[sentence(10)] * 4, sentence(4)]
    analysis = analyse([], translations, references, "13a")
    assert (analysis.repetition_rate, analysis.under_translation_rate) == (25.0, 12.5)
    assert analysis.length_ratio == (5 * 10 + 6 + 6 + 4) / 80


def test_best_and_worst_have_their_lines() -> None:
    references = ["a temple", "a temple", "a garden", "the house", "a bridge"]
    translations = ["a temple", "xyz", "a garden", "the hut", "qqq"]
    sources = ["寺", "寺", "庭", "家", "橋"]
    analysis = analyse(sources, translations, references, "13a", n_shown=3)
    assert [shown.line for shown in analysis.best] == [1, 3, 4]
    assert [shown.line for shown in analysis.worst] == [2, 5, 4]
    shown = analysis.worst[2]
    assert (shown.source, shown.translation, shown.reference) == ("家", "the hut", "the house")
    assert shown.chrf == sacrebleu.sentence_chrf("the hut", ["the house"]).score
    assert analyse(sources, translations, references, "13a", n_shown=0).best == []


@given(PAIRS)
def test_a_perfect_translation(pairs: list[tuple[str, str]]) -> None:
    references = [reference for _, reference in pairs]
    analysis = analyse([], references, references, "13a", training_words=words(TRAINING))
    assert all(group.score == pytest.approx(100) for group in analysis.f1_by_frequency)
    assert analysis.repetition_rate == analysis.under_translation_rate == 0
    said = any(references)
    assert analysis.length_ratio == float(said)
    if all(references):
        assert all(group.score == pytest.approx(100) for group in analysis.bleu_by_length)


@given(PAIRS, st.randoms())
def test_the_order_of_the_sentences_does_not_matter(pairs: list[tuple[str, str]], random: Random) -> None:
    shuffled = random.sample(pairs, len(pairs))
    one, other = (
        analyse(theirs, ours, theirs, "13a", training_words=words(TRAINING))
        for ours, theirs in (map(list, zip(*order, strict=True)) for order in (pairs, shuffled))
    )
    assert replace(one, best=[], worst=[]) == replace(other, best=[], worst=[])
    assert [shown.chrf for shown in one.worst] == [shown.chrf for shown in other.worst]


@given(PAIRS)
def test_counts_are_those_of_the_text(pairs: list[tuple[str, str]]) -> None:
    translations, references = ([pair[side] for pair in pairs] for side in (0, 1))
    analysis = analyse([], translations, references, "13a", training_words=words(TRAINING))
    assert sum(group.count for group in analysis.bleu_by_length) == len(pairs)
    assert sum(group.count for group in analysis.f1_by_frequency) == sum(len(line.split()) for line in references)
    scores = [group.score for group in [*analysis.bleu_by_length, *analysis.f1_by_frequency]]
    assert all(0 <= score <= 100.001 for score in scores)


@pytest.mark.parametrize(("n_sources", "n_translations", "n_references"), [(1, 1, 2), (0, 2, 1), (1, 2, 2), (0, 0, 0)])
def test_there_must_be_one_of_each(n_sources: int, n_translations: int, n_references: int) -> None:
    with pytest.raises(ValueError, match=f"^{n_sources} sources and {n_translations} translations against"):
        analyse(["a"] * n_sources, ["a"] * n_translations, ["a"] * n_references, "13a")
