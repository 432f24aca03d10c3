import pytest

from tests.utils.evaluation.texts import ENGLISH, JAPANESE
from utils.text.language import refuse_other_language, refuse_same

KOREAN = ["교토에 오래된 절이 있다.", "다리가 있다."]
CHINESE = ["京都有一座古老的寺庙。", "那里有一座桥。"]


@pytest.mark.parametrize(
    ("lines", "language"),
    [
        (ENGLISH.references, "ja"),
        (ENGLISH.references, "ja-JP"),
        (ENGLISH.references, "zh"),
        (ENGLISH.references, "ko"),
        (JAPANESE.references, "en"),
        (JAPANESE.references, "jp"),  # not a language code: Japanese is `ja`
        (JAPANESE.references, "ko"),
        (CHINESE, "de"),
        (KOREAN, "en"),
        (KOREAN, "ja"),
    ],
)
def test_another_script_is_refused(lines: list[str], language: str) -> None:
    with pytest.raises(ValueError, match=f"^FILE is not in {language}: .* of its letters are .*; look again$"):
        refuse_other_language(lines, language, "FILE", "look again")


@pytest.mark.parametrize(
    ("lines", "language"),
    [
        (ENGLISH.references, "en"),
        (ENGLISH.references, "de"),
        (JAPANESE.references, "ja"),
        (JAPANESE.references, "ja_JP"),
        ([" ".join(line) for line in JAPANESE.references], "ja"),
        (CHINESE, "zh"),
        (KOREAN, "ko"),
        (["The Kinkaku-ji (金閣寺) is in Kyoto.", *ENGLISH.references], "en"),
        (["Kinkaku-ji is 金閣寺 and Ginkaku-ji is 銀閣寺"], "en"),
        (["Wikipedia の API と HTTP/2 について", *JAPANESE.references], "ja"),
        (["Это храм.", "Θα έρθω."], "ru"),
        (["1603", "2, 3 ...", ""], "en"),
        (["1603"], "ja"),
        (["・ a", "・ b", "・・・ yes"], "en"),  # list bullets are not letters
    ],
)
def test_what_may_be_in_the_language_is_let_pass(lines: list[str], language: str) -> None:
    refuse_other_language(lines, language, "FILE", "look again")


def test_two_texts_that_are_the_same_are_refused_with_their_names() -> None:
    with pytest.raises(ValueError, match=r"^A x and C z have the same 2 lines: "):
        refuse_same({"A x": ["a", "b"], "B y": ["a", "c"], "C z": ["a", "b"]})
    refuse_same({"A x": ["a", "b"], "B y": ["b", "a"], "C z": ["a"]})
