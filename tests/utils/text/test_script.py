"""Unspaced languages are told by their letters."""

import re

import pytest

from config.data import primary_language, require_language
from utils.text.language import LetterCounts, count_letters, unspaced_language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("京都は日本の古都である。", "ja"),
        ("ﾊﾝｶｸｶﾅ", "ja"),
        ("我是学生。", "zh"),
        ("日本動畫《となりのトトロ》" + "在臺灣上映之後大受歡迎" * 20, "zh"),
        ("The Tale of Genji (源氏物語) is old.", ""),
        ("Das Buch heißt Βίβλος.", ""),
        ("나는 학생입니다.", ""),
        ("123 ...", ""),
        ("", ""),
    ],
)
def test_language(text: str, language: str) -> None:
    assert unspaced_language(text.split("。")) == language


def test_many_lines_decide_together() -> None:
    assert unspaced_language(["Windows Vista", "京都の寺", "大和朝廷と飛鳥時代", "東京都知事"]) == "ja"


def test_letters_are_counted_by_script() -> None:
    assert count_letters("寺と橋・カフェ、나는 학생 (2) Kyō_to!") == LetterCounts(15, kana=4, han=2, hangul=4)


@pytest.mark.parametrize(
    ("code", "primary"),
    [("ja", "ja"), ("zh-CN", "zh"), ("ZH_Hant", "zh"), ("jpn", "ja"), ("cmn_Hans", "zh"), ("deu", "deu")],
)
def test_a_region_is_no_other_language(code: str, primary: str) -> None:
    assert primary_language(code) == primary


@pytest.mark.parametrize("code", ["ja", "zh-CN", "ZH_Hant", "jpn", "deu_Latn", "uk", "se"])
def test_a_code_of_iso_639_is_a_language(code: str) -> None:
    require_language(src_lang="en", tgt_lang=code)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("jp", "did you mean ja?"),
        ("JP-ja", "did you mean ja?"),
        ("cn", "did you mean zh?"),
        ("English", "did you mean en?"),
        ("klingon", "give one of ISO 639, such as ja, en or de"),
        ("", "give one of ISO 639, such as ja, en or de"),
        ("日本", "give one of ISO 639, such as ja, en or de"),
    ],
)
def test_what_is_no_language_code_is_refused(code: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=rf"^tgt_lang={code} is no language code: {re.escape(remedy)}$"):
        require_language(src_lang="en", tgt_lang=code)
