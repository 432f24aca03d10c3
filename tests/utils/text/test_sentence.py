import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.text.language import join_sentences, split_sentences

texts = st.text('都a1。！？.!?」』）「 \n\u3000"', max_size=30)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("京都は都である。橋がある。", ["京都は都である。", "橋がある。"]),
        ("本当！何？", ["本当！", "何？"]),
        ("何！？本当。。", ["何！？", "本当。。"]),
        ("「都である。」と言った。次。", ["「都である。」と言った。", "次。"]),
        ("『何？』（本当！）次。", ["『何？』（本当！）次。"]),
        ("It is old. It is a capital! Is it? Yes", ["It is old.", "It is a capital!", "Is it?", "Yes"]),
        ("Pi is 3.14. See http://a.example/b.c now.", ["Pi is 3.14.", "See http://a.example/b.c now."]),
        ("Temples, e.g. Toji", ["Temples, e.g.", "Toji"]),
        ('He said "Yes." and left. Then', ['He said "Yes." and left.', "Then"]),
        ("What?! No...  Yes.\tOh.\nAh", ["What?!", "No...", "Yes.", "Oh.", "Ah"]),
        ("京都は都。 Kyoto is old. 橋。", ["京都は都。", "Kyoto is old.", "橋。"]),
        ("no end", ["no end"]),
        ("。", ["。"]),
        (" 　 ", []),
        ("", []),
    ],
)
def test_sentences_end_where_they_should(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(text=texts)
def test_nothing_is_lost_but_spaces(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@given(text=texts)
def test_a_sentence_is_not_cut_again(text: str) -> None:
    for sentence in split_sentences(text):
        assert split_sentences(sentence) == [sentence]


@pytest.mark.parametrize(
    ("language", "joined"),
    [("ja", "都。橋。"), ("zh", "都。橋。"), ("ja-JP", "都。橋。"), ("en", "都。 橋。"), ("de", "都。 橋。")],
)
def test_sentences_are_joined_as_the_language_writes(language: str, joined: str) -> None:
    assert join_sentences(["都。", "橋。"], language) == joined


def test_joining_one_or_none_adds_nothing() -> None:
    for language in "ja", "en":
        assert join_sentences([], language) == ""
        assert join_sentences(["都。"], language) == "都。"
