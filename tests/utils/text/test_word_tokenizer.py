import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from const.token import EOS_ID, SPECIAL_TOKENS, UNK_ID
from utils.text.tokenizer import WordTokenizer

words = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=4).filter(
    lambda word: word not in SPECIAL_TOKENS
)
lines = st.lists(words, max_size=8).map(" ".join)


def vocabulary(tokenizer: WordTokenizer) -> list[str]:
    return tokenizer.tokens(range(len(tokenizer)))


def test_words_stand_by_frequency_behind_the_special_tokens() -> None:
    tokenizer = WordTokenizer.train(["b a c", "c a", "d c a d", "c e"], min_freq=2, lowercase=False)
    assert vocabulary(tokenizer) == ["<pad>", "<unk>", "<s>", "</s>", "c", "a", "d"]


def test_equally_frequent_words_stand_as_they_appeared() -> None:
    assert vocabulary(WordTokenizer.train(["z y", "x z y x"], 2, lowercase=False))[4:] == ["z", "y", "x"]


@pytest.mark.parametrize(("min_freq", "kept"), [(1, "abc"), (2, "ab"), (3, "a"), (4, "")])
def test_rarer_words_are_unknown(min_freq: int, kept: str) -> None:
    tokenizer = WordTokenizer.train(["a b c", "a b", "a"], min_freq, lowercase=False)
    assert vocabulary(tokenizer)[len(SPECIAL_TOKENS) :] == list(kept)
    (ids,) = tokenizer.encode(["c b a"])
    assert [i == UNK_ID for i in ids] == [word not in kept for word in "cba"]


def test_case_counts_unless_it_is_lowered() -> None:
    text = ["Kyoto KYOTO kyoto Nara"]
    assert vocabulary(WordTokenizer.train(text, 1, lowercase=False))[4:] == ["Kyoto", "KYOTO", "kyoto", "Nara"]
    lower = WordTokenizer.train(text, 2, lowercase=True)
    assert vocabulary(lower)[4:] == ["kyoto"]
    assert lower.encode(["kyoTO nara"]) == [[4, UNK_ID]]


@given(text=st.lists(lines, min_size=1, max_size=5))
def test_known_words_survive(text: list[str]) -> None:
    tokenizer = WordTokenizer.train(text, 1, lowercase=False)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == [" ".join(line.split()) for line in text]
    assert all(i >= len(SPECIAL_TOKENS) for sequence in ids for i in sequence)


@pytest.mark.parametrize("lowercase", [False, True])
@given(learned=st.lists(lines), text=lines)
def test_no_text_becomes_a_special_token_but_the_unknown_one(lowercase: bool, learned: list[str], text: str) -> None:
    tokenizer = WordTokenizer.train([*learned, "</s> <S> <pad>"], 1, lowercase)
    (ids,) = tokenizer.encode([f"{text} </s> <pad> <s> <unk> <PAD>"])
    assert {i for i in ids if i < len(SPECIAL_TOKENS)} <= {UNK_ID}


def test_special_tokens_take_no_second_place_in_the_vocabulary() -> None:
    tokenizer = WordTokenizer.train(["</s> </s> a a <PAD> <PAD>"], 2, lowercase=True)
    assert vocabulary(tokenizer) == [*SPECIAL_TOKENS, "a"]
    assert tokenizer.encode(["a </s> <PAD>"]) == [[4, UNK_ID, UNK_ID]]


def test_what_frames_a_sequence_is_not_text() -> None:
    tokenizer = WordTokenizer(["old", "capital"], lowercase=False)
    assert tokenizer.decode([[2, 4, 1, 5, EOS_ID, 0], []]) == ["old <unk> capital", ""]
    assert tokenizer.tokens([2, 4, EOS_ID, 0]) == ["<s>", "old", "</s>", "<pad>"]


@pytest.mark.parametrize("lowercase", [False, True])
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, lowercase: bool) -> None:
    text = ["The old 都 , \\ \" 'tis \u2028", "OLD 都 éa"]
    tokenizer = WordTokenizer.train(text, 1, lowercase)
    tokenizer.save(tmp_path / "run.1" / "tokenizer")
    loaded = WordTokenizer.load(tmp_path / "run.1" / "tokenizer.json")
    assert vocabulary(loaded) == vocabulary(tokenizer)
    assert loaded.encode([*text, "THE x"]) == tokenizer.encode([*text, "THE x"])


def test_a_person_can_read_the_saved_words(tmp_path: Path) -> None:
    WordTokenizer(["都", "橋"], lowercase=False).save(tmp_path / "tokenizer")
    written = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    assert json.loads(written) == {"lowercase": False, "words": ["都", "橋"]}
    assert '\n"都",\n' in written


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"words": ["都"]}', '{"lowercase": false}', '{"words": 3, "lowercase": 3}']
)
def test_a_damaged_vocabulary_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^{file} is damaged \(words or lowercase is missing\): copy it again$"):
        WordTokenizer.load(file)
