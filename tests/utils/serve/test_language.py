import pytest

from utils.text.language import detect, language_name


@pytest.mark.parametrize(
    ("text", "languages", "expected"),
    [
        ("駅はどこですか。", ["en", "ja"], ("ja", 100.0)),
        ("京都", ["en", "ja"], ("ja", 100.0)),  # might be Chinese, which is not available
        ("京都", ["ja", "zh"], ("zh", 100.0)),
        ("Where is it?", ["ja", "en"], ("en", 100.0)),
        ("Wo ist der Bahnhof?", ["en", "de"], ("en", 50.0)),  # letters cannot tell
        ("Wo ist der Bahnhof?", ["ja", "de"], ("de", 100.0)),
        ("寺はtemple", ["en", "ja"], ("en", 75.0)),
        ("寺はzen", ["en", "ja"], ("en", 60.0)),
        ("寺は庭zen", ["en", "ja"], ("en", 50.0)),
        ("寺は庭だzen", ["en", "ja"], ("ja", 57.1)),
        ("トム・クルーズ", ["en", "ja"], ("ja", 100.0)),  # the dot is not a letter
        ("・・・ abc", ["ja", "en"], ("en", 100.0)),
        ("1603 – 1868", ["de", "en"], ("de", 0.0)),
        ("我是学生。", ["zh-CN", "en"], ("zh-CN", 100.0)),
        ("Where?", ["zh_CN", "en-GB"], ("en-GB", 100.0)),
        ("", ["ja"], ("ja", 0.0)),
    ],
)
def test_letters_tell_the_language(text: str, languages: list[str], expected: tuple[str, float]) -> None:
    assert detect(text, languages) == expected


@pytest.mark.parametrize(("text", "languages"), [("Where?", ["ja"]), ("Where?", ["ja", "zh"]), ("どこ", ["en", "de"])])
def test_a_foreign_script_is_no_language_at_hand(text: str, languages: list[str]) -> None:
    assert detect(text, languages) is None


def test_a_language_without_a_name_is_called_by_its_code() -> None:
    assert (language_name("ja"), language_name("tlh")) == ("Japanese", "tlh")
