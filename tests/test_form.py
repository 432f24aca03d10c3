"""Tests that characters are read as what they mean, or stay unknown."""

import re
from unicodedata import digit, name, normalize

import pytest

from const.path import PICKLES
from const.token import UNK_ID
from utils.text.form import composed, known_characters, known_form
from utils.text.tokenizer import WordTokenizer, every_token, load_tokenizers

PLAIN = {*map(chr, range(0x20, 0x7F)), *"・〜○株日高崎浜辺徳国"}
# how a reader of PLAIN reads signs: each one as this, or one after the other as these
READ = {
    "'‘’‚‛′‵‹›´": "'",
    '"“”„‟«»″‶〝〞〟': '"',
    "-‐‑‒–—―−": "-",
    "·•‣⁃●": "・",
    "～⁓〰": "〜",
    "〇◯": "○",
    "×": "x",
    "÷⁄∕": "/",
    "¼⅐½": "1/4 1/7 1/2",
    "①⑩❶": "1 10 1",
    "±©®": "+/- (C) (R)",
    "™": "(TM)",
    "ÀÅāŁøŠ": "A A a L o S",
    "ÆßÐþŒ": "AE ss D th OE",
    "㈱㎏℡№㏠": "(株) kg TEL No 1日",
    "髙﨑濵邉德國": "高 崎 浜 辺 徳 国",
    "٣५": "3 5",
    "£€¥§¶¿¬♪★↑〒º°": "£ € ¥ § ¶ ¿ ¬ ♪ ★ ↑ 〒 º °",  # no spelling says the same in every language
}
# Latin, punctuation, small digits, currencies, letterlike and number forms, arrows, enclosed numbers, Japanese marks,
# squared words, both widths
BLOCKS = [(0xA0, 0x180), (0x2010, 0x2200), (0x2460, 0x2500), (0x3000, 0x3040), (0x3200, 0x3400), (0xFF00, 0xFFF0)]
CHARACTERS = [composed(chr(code)) for block in BLOCKS for code in range(*block) if composed(chr(code))]
NAMES = ["kftt_ja_en", "kftt_en_ja"]
SHIPPED = [known_characters(every_token(load_tokenizers(PICKLES / name).src)) for name in NAMES]


EXPECTED = {
    sign: usual
    for signs, spellings in READ.items()
    for sign, usual in zip(signs, spellings.split() if " " in spellings else [spellings] * len(signs), strict=True)
}


def test_signs_are_read_as_what_they_mean_or_stay_unknown() -> None:
    assert {sign: known_form(sign, PLAIN) for sign in EXPECTED} == EXPECTED


@pytest.mark.parametrize("known", [PLAIN, *SHIPPED], ids=["plain", *NAMES])
def test_no_character_gets_another_meaning(known: set[str]) -> None:
    for character in {*CHARACTERS} - known:
        form, between = known_form(character, known), known_form(f"1{character}1", known)
        assert character.isdecimal() or re.fullmatch(r"1(?:\D.*\D|\D)1", between)  # no digit of another number
        if form != character and character not in EXPECTED and "LATIN" not in name(character):
            same = known_form(normalize("NFKC", character), PLAIN)
            assert known_form(form, PLAIN) in (same, str(digit(character, "")))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("10² 10¹⁰ 10⁻³ m² km²5", "10^2 10^10 10^-3 m2 km2 5"),
        ("(a)² note¹ ¹See", "(a)^2 note1 1See"),
        ("CO₂ (NH₄)₂ 10₂", "CO2 (NH4)2 10_2"),
        ("5①6 ①② ①京都 ３⑩", "5(1)6 (1)(2) 1京都 3(10)"),
        ("5½ 5½6 ½杯 5⒈", "5(1/2) 5(1/2)6 1/2杯 5(1.)"),
        ("2−1=1 3×4÷6 5′10″", "2-1=1 3x4/6 5'10\""),
        ("couldn’t “go” — ‘now’", "couldn't \"go\" - 'now'"),
        ("Kyōto, Ōsaka, Škoda, m̄", "Kyoto, Osaka, Skoda, m"),
        ("か゚ ｶﾞ ﾊﾟ", "か゚ ガ パ"),
    ],
)
def test_numbers_stay_apart_and_words_whole(text: str, read: str) -> None:
    known = PLAIN | {*"京都杯かガパ"}
    assert known_form(text, known) == read
    assert known_form(text, known | {*text}) == text


def test_a_number_stays_unknown_where_it_cannot_be_kept_apart() -> None:
    assert known_form("10² 10₂ 5① m²", PLAIN - {*"^_("}) == "10² 10₂ 5① m2"
    assert known_form("髙 ” ～", {*" 高’′"}) == "高 ” ～"  # nor is another sign of the same kind known
    words = WordTokenizer(["m2", "5", "temples"], lowercase=False)
    assert words.split(["m²5 temples☃"]) == [["m2", "5", "temples☃"]]
    assert words.encode(["m²5 temples☃"]) == [[*words.encode(["m2 5"])[0], UNK_ID]]
