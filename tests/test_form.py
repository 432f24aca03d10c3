"""Tests that characters are read as what they mean, or stay unknown."""

import re
from pathlib import Path
from unicodedata import normalize

import pytest

from const.path import PICKLES
from const.token import UNK_ID
from utils.text.form import composed, known_characters, known_form
from utils.text.tokenizer import WordTokenizer, every_token, load_tokenizers

SHIPPED = sorted(file.parent for file in PICKLES.glob("*/tokenizer.model"))
PLAIN = {*map(chr, range(0x20, 0x7F)), *"・〜ヺパアハ株日高崎浜辺徳国"}
# how a reader of PLAIN reads signs: each one as this, or one after the other as these
READ = {
    "'‘’‚‛′‵‹›´": "'",
    '"“”„‟«»″‶〝〞〟': '"',
    "-‐‑‒–—―−": "-",
    "·•‣⁃●": "・",
    "～⁓〰": "〜",
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
# Latin, punctuation, letterlike and number forms, arrows, enclosed numbers, Japanese punctuation, both widths
BLOCKS = [(0xA0, 0x180), (0x2010, 0x2070), (0x2100, 0x2200), (0x2460, 0x2500), (0x3000, 0x3040), (0xFF00, 0xFFF0)]


def test_signs_are_read_as_what_they_mean_or_stay_unknown() -> None:
    expected = {}
    for signs, usual in READ.items():
        expected |= dict(zip(signs, usual.split() if " " in usual else [usual] * len(signs), strict=True))
    assert {sign: known_form(sign, PLAIN) for sign in expected} == expected
    for character in (composed(chr(code)) for block in BLOCKS for code in range(*block)):
        form = known_form(character, PLAIN)
        if character not in expected and form != character:  # it is the same to Unicode, but for its width, or its mark
            same = normalize("NFKC", character).replace("⁄", "/").replace("ʼ", "'").replace("·", "・")
            assert form == same or "LATIN" in __import__("unicodedata").name(character)
