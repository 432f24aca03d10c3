"""Spans that translations keep: what is found, how it is written, and what a translator makes of it."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from config.data import TokenizerConfig
from config.search import Hypothesis, SearchConfig
from tests.tiny import tokenizers
from utils.dataset.protect import masked_pair
from utils.search.searcher import Request
from utils.search.translator import Translator
from utils.text.protected import (
    LEARNED,
    NAMES,
    NUMBERS,
    WORDS,
    StandIns,
    lost,
    masked,
    spans,
    written,
)
from utils.text.tokenizer import train_tokenizers

JA, EN = [
    ("人口は350万人である。", "3.5 million"),
    ("１億2000万円", "120 million"),
    ("147万5183人", "1,475,183"),
    ("4万1000石", "41,000"),
    ("5兆円を", "5 trillion"),
    ("三百五十万人", "3.5 million"),
    ("一万二千石", "12,000"),
    ("56億7千万年", "5.67 billion"),
    ("1億2345万6789人", "123,456,789"),
    ("7千人", "7,000"),
    ("１２３４５番", "12345"),
    ("3.5キロ", "3.5"),
    ("百四十七人", "147"),
    ("千百三十八個", "1,138"),
    ("午後3時30分に", "3:30 p.m."),
    ("午前10時、", "10 a.m."),
], [
    ("The population is 1.2 million.", "120万"),
    ("350 million yen", "3億5000万"),
    ("ten thousand yen", "1万"),
    ("two hundred and fifty thousand men", "25万"),
    ("1,475,183 people", "147万5183"),
    ("twenty-five million", "2500万"),
    ("20,000", "2万"),
    ("3.5 km", "3.5"),
    ("12345", "12345"),
    ("1.5 trillion", "1兆5000億"),
    ("at 2:26 p.m.", "午後2時26分"),
    ("At 10 AM, we", "午前10時"),
    ("after 4 p.m. on weekdays", "午後4時"),
    ("ISBN 458653012X", "458653012X"),
    ("0.00 km", "0.00"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [*JA, *EN])
def test_numbers_are_written_as_the_other_language_does(text: str, expected: str) -> None:
    source, target = ("ja", "en") if (text, expected) in JA else ("en", "ja")
    number = max(spans(text, source), key=lambda span: span.end)
    assert number.is_hard
    assert written(number, target) == expected
    assert lost(text, f"x {expected}!", (source, target)) == []
    assert lost(text, "x 99", (source, target)) == [number]


@pytest.mark.parametrize(
    "span",
    ["😀", "https://a.org/b?c=1", "www.kyoto.jp/en", "a.b@c.co.jp", "`git add .`", "{name}", "{{ user }}", "${HOME}",
     "%s", "%(count)d", "%1$s", "<b>", "</b>", "@tanaka_kyoto", "#京都旅行", ":smile:", "README.md", "~/a/b.txt",
     "/usr/bin/env", "♪", "👨‍👩‍👧", "$20", "€1,200.50", "−5°C", "10²", "2½", "5①", "17:00", "~/.datrc", "src/title.py",
     "https://ja.example.net/wiki/東京", "2026-11-29",
     "%1", "%L2", "v1.2.3", "075-123-4567", "606-8501"],
)  # fmt: skip
def test_what_stays_as_it_is_is_found_in_both_languages(span: str) -> None:
    for before, behind, language in (("詳しくは ", " を見て。", "ja"), ("See ", ", please.", "en")):
        assert [found.text for found in spans(before + span + behind, language)] == [span]
        (found,) = spans(before + span + behind, language)
        assert written(found, "ja") == written(found, "en") == span


@pytest.mark.parametrize(
    "text",
    ["八百屋と三千院、万葉集、百人一首、三十三間堂、昭和二十三年", "two and three",
     "one of them, at 3", "数千人が千本通へ", "He has two hundred books.", "the thousand-armed statue",
     "and/or", "C# e.g. this.", "100%", "50 % of it", "a - b", "A（794年-1185年）"],
)  # fmt: skip
def test_what_a_model_translates_itself_is_left_to_it(text: str) -> None:
    for language in ("ja", "en"):
        assert masked(text, language, WORDS).text == text


def test_a_minus_is_no_hyphen() -> None:
    for text, number in (
        ("気温は−5だ", "−5"),
        ("気温は-5だ", "-5"),
        ("京都-5号", "5"),
        ("1950−60年", "60"),
        ("50%2", "2"),
    ):
        assert spans(text, "ja")[-1].text == number


def test_numbers_that_models_copy_are_masked_only_where_asked_for() -> None:
    assert masked("1910年に25人", "ja", WORDS).text == "1910年に25人"
    assert masked("1910年に25人、3人", "ja", WORDS, everything=True).text == "572年に683人、3人"
    assert masked("明治43年に", "ja", WORDS, everything=True).text == "明治43年に"  # may be 1910
    assert [span.text for span in lost("1910年に25人が20歳で", "In 1910, 25 men", ("ja", "en"))] == ["20"]
    assert lost("25 men in 1910", "1910年に二十五人", ("en", "ja")) == []
    assert lost("25人", "twenty-five men", ("ja", "en")) == []
    assert lost("two hundred men, twelve women", "二百人の男", ("en", "ja")) == []
    for text in ("two hundred men, twelve women", "7% of it"):
        assert len(lost(text, "人", ("en", "ja"))) == 1


def test_signs_at_the_ends_stay_there_and_each_span_is_to_come_back_once() -> None:
    text = masked("😀 今日は300万円を@a_bへ送る ♪ ", "ja", LEARNED)
    assert text.text == f"今日は{NUMBERS[0]}円を{NAMES[0]}へ送る"
    assert text.unmasked(f"I send {NUMBERS[0]} yen to {NAMES[0]}", "en") == (
        "😀 I send 3 million yen to @a_b ♪ ")  # fmt: skip
    assert [span.text for span in lost("😀 3万と@a_b", "😀 40,000", ("ja", "en"))] == ["3万", "@a_b"]
    words = masked("572人と300万円", "ja", WORDS)
    assert words.text == "572人と683円"  # not a number that the text has
    hour = masked("寺は午後3時30分に閉まる。", "ja", WORDS)
    assert hour.unmasked("It closes at X.", "en") == "It closes at 3:30 p.m."
    assert words.unmasked("1683 and 683 yen", "en") == "1683 and 3 million yen"
    beside = masked("v{a}{b}と5{c}f", "ja", WORDS)
    assert (beside.text, beside.unmasked("v X Y and 5Z", "en")) == ("v X Yと5Z f", "v {a} {b} and 5{c}")
    many = "、".join(f"{i}万円" for i in range(1, 12))
    assert len(masked(many, "ja", WORDS).spans) == len(WORDS.numbers)
    assert masked("", "ja", WORDS).text == ""
    assert masked("🙂", "ja", WORDS).text == ""


def test_emphasis_is_read_without_their_signs_which_is_said() -> None:
    for text, plain, bold in (
        ("It is a **very old** city.", "It is a very old city.", ["**very old**"]),
        ("***京都***は**都**である。", "京都は都である。", ["***京都***", "**都**"]),
        ("*It* is a __very old__ ~~town~~ _city_.", "It is a very old town city.",
         ["*It*", "__very old__", "~~town~~", "_city_"]),
        ("京都は*古い*都", "京都は古い都", ["*古い*"]),
        ("a*b*c of a_b_c, Price* and tax*, 2 * 3 * 4, ****", "a*b*c of a_b_c, Price* and tax*, 2 * 3 * 4, ****", []),
        ("2**3**4 and `a**b**c` and ** a ** b", "2**3**4 and X and ** a ** b", []),
    ):  # fmt: skip
        assert masked(text, "en", WORDS).text == plain
        assert [span.text for span in lost(text, "`a**b**c`", ("en", "ja"))] == bold


def test_training_pairs_share_stand_ins() -> None:
    pair = "人口は350万人、NHKと1910年。", "NHK in 1910 had 3.5 million people; 1910."
    both = masked_pair(pair, ("ja", "en"), 1.0, Random(1))
    assert "350万" not in both[0]
    assert "3.5 million" not in both[1]
    assert "1910" in both[0], "the other side has it twice"
    marks = [[char for char in side if char in {*NUMBERS, *NAMES}] for side in both]
    assert sorted(marks[0]) == sorted(marks[1])
    assert len(marks[0]) == 2
    assert masked_pair(pair, ("ja", "en"), 0.0, Random(1)) == pair
    assert masked_pair(pair, ("ja", "en"), 1.0, Random(1)) == both


class Copier:
    """Finds the source as its own translation, but for ids that it drops at first."""

    tokens_per_batch = 4096

    def __init__(self, drops: Sequence[int] = ()) -> None:
        self.drops, self.sources = drops, list[list[int]]()

    def __call__(self, requests: Sequence[Request], _: SearchConfig, __: int | None) -> list[list[Hypothesis]]:
        self.sources += [[*request.source] for request in requests]
        drops, self.drops = self.drops, ()
        return [[Hypothesis([i for i in request.source if i not in drops], -1.0)] for request in requests]


class Stubborn(Copier):
    """Says always the same."""

    def __call__(self, requests: Sequence[Request], *_: object) -> list[list[Hypothesis]]:
        return [[Hypothesis([], -1.0)] for _ in requests]


def translator(searcher: Any, symbols: Sequence[str] = ()) -> Translator:
    """With a vocabulary that has the characters of the tests, and symbols."""
    text = [" ".join("京都は年に人と円を、。572683794XYZ Kyoto yen")] * 9
    config = TokenizerConfig(vocab_size=70, joint=True)
    pair = train_tokenizers(replace(config, vocab_size=60 + len(symbols)), text, text, symbols=symbols)
    return Translator(searcher, pair, "en", SearchConfig(by_sentence=False), 64, 64, src_lang="ja")


@pytest.mark.parametrize("stand_ins", [WORDS, LEARNED])
def test_a_translator_puts_spans_back_and_searches_again_where_one_is_lost(stand_ins: StandIns) -> None:
    symbols = [*LEARNED.numbers, *LEARNED.names] if stand_ins is LEARNED else []
    kyoto = translator(copier := Copier(), symbols)
    (found,) = kyoto.translate(["350万円と@kyotoと京都。"])
    assert (found.text, found.dropped) == ("3.5 million円と@kyotoと京都。", [])
    assert len(copier.sources) == 1
    (piece,) = found.pieces
    assert "350万" in kyoto.source_tokens(piece)
    assert "3.5 million" in piece.best.tokens
    assert len(piece.best.tokens) == len(piece.best.ids)
    ids = kyoto.tokenizers.src.encode([stand_ins.names[0]])[0]
    (found,) = translator(copier := Copier(ids[-1:]), symbols).translate(["350万円と@kyotoと京都。"])
    assert (found.text, found.dropped) == ("3.5 million円と@kyotoと京都。", [])
    assert len(copier.sources) == 2
    never = translator(Stubborn(), symbols)
    (found,) = never.translate(["350万円と@kyotoと京都。"])
    assert found.dropped == ["350万", "@kyoto"]
    plain = translator(Copier())
    plain.src_lang = ""
    assert plain.translate(["572円"])[0].text == "572円"


def test_a_number_that_is_lost_is_masked_then_and_what_has_no_such_span_is_read_as_it_is() -> None:
    digit = translator(Copier()).tokenizers.src.encode(["7"])[0][-1:]
    for text, sources in (("京都は572年に", 2), ("京都は5年に", 1), ("京都は年に", 1)):
        kyoto = translator(copier := Copier(digit))
        (found,) = kyoto.translate([text])
        assert (found.text, found.dropped) == (text, [])
        assert len(copier.sources) == sources
        assert copier.sources[0] == kyoto.tokenizers.src.encode([text])[0]


def test_words_that_a_vocabulary_lacks_stand_for_nothing() -> None:
    bare = Translator(Copier(), tokenizers(), "en", SearchConfig(), 64, 64, src_lang="ja")
    (found,) = bare.translate(["寺は350万人"])
    assert found.pieces[0].masked.text == "寺は350万人"
