from tests.samples import ENGLISH, JAPANESE, TOKENIZED
from utils.text.language import looks_tokenized, looks_untokenized


def test_text_is_tokenized_where_most_full_stops_stand_alone() -> None:
    assert looks_tokenized(TOKENIZED.references)
    assert looks_tokenized([*TOKENIZED.references, *ENGLISH.references[:20], *["no stop"] * 100])
    assert not looks_tokenized(ENGLISH.references)
    assert not looks_tokenized([*ENGLISH.references, "odd . "])
    assert not looks_tokenized(JAPANESE.references)


def test_text_is_not_tokenized_where_marks_touch_letters_or_spaces_are_missing() -> None:
    for raw in (
        ENGLISH.references,
        JAPANESE.references,
        ["A man rides a bike."],
        ["雨が降っています。"],
        ["京都" * 11],
    ):
        assert looks_untokenized(raw)
    for tokenized in (TOKENIZED.references, ["a man rides a bike ."], ["3.5 kg"], ["京都"], ["temple"], [], [""]):
        assert not looks_untokenized(tokenized)
