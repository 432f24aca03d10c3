"""Unspaced languages are told by their letters."""

import pytest

from utils.text.script import LetterCounts, count_letters, primary_language, unspaced_language


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
