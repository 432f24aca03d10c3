"""Word pieces against Hugging Face's BertTokenizer."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertTokenizer

from utils.export.hugging_face import WordPieceTokenizer
from utils.text.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# not in the usual order, and with pieces that begin like each other
PIECES = ["the", "[MASK]", "un", "##aff", "##able", "##affable", "[PAD]", "una", "a", "##a", "ab", "##ab", "##abc", "c"]
PIECES += [
    "[UNK]",
    "[SEP]",
    "[CLS]",
    *".,!$^`|~'-[]",
    "##-",
    "京",
    "都",
    "と",
    "##う",
    "##と",
    "e",
    "é",
    "E",
    "É",
    "##e",
]
PIECES += ["##́", "ｱ", "한", "##ᆫ", "ᄒ", "##ᅡ", "UN", "##ABLE", "##f", "##able.", "1", "##1", "☃", "##☃", "mask", "σ"]
PIECES += ["##ς", "##σ", "i", "##i", "̇", "ß", "ǆ", "a" * 99, "##" + "a" * 30]


def ours(lowercase: bool) -> WordPieceTokenizer:
    return WordPieceTokenizer(PIECES, lowercase)


ORACLE = {
    lowercase: BertTokenizer({piece: i for i, piece in enumerate(PIECES)}, do_lower_case=lowercase)
    for lowercase in (True, False)
}


def theirs(text: str, lowercase: bool) -> list[int]:
    return ORACLE[lowercase](text, add_special_tokens=False)["input_ids"]


# characters whose kind no later version of Unicode changed: the two may be of different ones
steady = st.characters(exclude_categories=["Cs", "Cn"]).filter(
    lambda c: unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)
)
known = st.sampled_from(sorted({char for piece in PIECES for char in piece.removeprefix("##")}))
odd = st.sampled_from("\t\n\r\x00\x0b\x85\xa0\u200b\u2028\u3000\ufffdÀÅİıſßΣÜąŁǅ〜「」（）々〇〆ー゙が가\u0301")
texts = st.text(known | known | odd | steady | st.just(" "), max_size=30).filter(
    lambda text: not any(special in text for special in SPECIAL)  # they read these as special tokens, we as text
)


@pytest.mark.parametrize("lowercase", [True, False])
@given(text=texts)
def test_ids_are_those_of_hugging_face(lowercase: bool, text: str) -> None:
    assert ours(lowercase).encode([text]) == [theirs(text, lowercase)]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "",
        " \t\n",
        "unaffable",
        "UNAFFABLE unABLE unable. un-able",
        "unaffables",  # the rest is not known, so nothing is
        "the thea ab abab abc aabc cab",
        "École, é é ÉE",
        "ΑΣ σς ΣΣ",  # no letter knows that it is the last
        "京都と京都とうと",
        "한 하 가",
        "𠀀𫝀a𪜀京",
        "a㐀a 䶵a 一a 龥a 豈a 丽a ꀀa ㆠa ⺀a 가a",  # the first and last of the blocks, and their neighbours
        "a$1^a`a|a~a 'a'",
        "a\u200ba\u00adb\ufeffun",
        "a\u3000a\u00a0a\u2028a\x1ca\x85a\x0ba",
        "a" * 99,
        "a" * 100,
        "a" * 101,
        "a" * 99 + "á" + " a",
        "İi ı ǅ ﬁ K",
        "( ͡° ͜ʖ ͡°) ☃☃️",
        "[mask] [MASK ] ##a [unk]",
    ],
)
def test_hand_picked_texts_are_cut_as_by_hugging_face(lowercase: bool, text: str) -> None:
    assert ours(lowercase).encode([text]) == [theirs(text, lowercase)]


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_alone_and_inside_a_word_is_as_by_hugging_face(lowercase: bool) -> None:
    """By their own splitting, which no vocabulary hides."""
    splitting = ORACLE[lowercase].backend_tokenizer
    tokenizer = ours(lowercase)
    chars = [chr(i) for i in range(0x3100) if unicodedata.ucd_3_2_0.category(chr(i)) == unicodedata.category(chr(i))]
    for char in chars:
        if unicodedata.category(char) != "Cn":
            text = f"{char} a{char}b"
            words = splitting.pre_tokenizer.pre_tokenize_str(splitting.normalizer.normalize_str(text))
            assert tokenizer.words(text) == [word for word, _ in words], hex(ord(char))


def test_the_longest_piece_wins_even_where_a_shorter_one_would_lead_on() -> None:
    vocabulary = [*SPECIAL, "a", "aa", "##ab", "##b"]
    tokenizer = WordPieceTokenizer(vocabulary, lowercase=False)
    assert [tokenizer.tokens(ids) for ids in tokenizer.encode(["aab", "aaab"])] == [["aa", "##b"], ["aa", "##ab"]]
    assert tokenizer.encode(["aaa"]) == [[tokenizer.unk_id]]  # though a, a, a begins it


@given(text=texts.map(lambda text: f"[CLS] {text} [MASK][SEP] [PAD]"), lowercase=st.booleans())
def test_no_text_becomes_a_special_token_but_the_unknown_one(text: str, lowercase: bool) -> None:
    tokenizer = ours(lowercase)
    special = {tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    assert special.isdisjoint(tokenizer.encode([text])[0])


def test_special_tokens_are_where_the_vocabulary_has_them() -> None:
    t = ours(lowercase=True)
    assert t.tokens([t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id]) == SPECIAL
    assert (t.pad_id, t.mask_id) == (6, 1)


@pytest.mark.parametrize("special", SPECIAL)
def test_a_vocabulary_without_one_of_them_is_refused(special: str) -> None:
    pieces = [piece for piece in PIECES if piece != special]
    with pytest.raises(ValueError, match=rf"\{special[:-1]}\] is not among the {len(pieces)} pieces"):
        WordPieceTokenizer(pieces, lowercase=True)


def test_decoding_joins_pieces_and_leaves_out_what_frames() -> None:
    t: Tokenizer = ours(lowercase=True)
    unaffable = [2, 5]
    mask, unk, cls, sep, pad = 1, PIECES.index("[UNK]"), PIECES.index("[CLS]"), PIECES.index("[SEP]"), 6
    assert t.decode([[cls, 0, *unaffable, mask, unk, sep, pad], []]) == ["the unaffable [MASK] [UNK]", ""]
    assert t.tokens([cls, 2, 5]) == ["[CLS]", "un", "##affable"]


@given(words=st.lists(st.sampled_from(["the", "unaffable", "ab", "aabc", "e", "un1"]), max_size=6))
def test_known_words_survive(words: list[str]) -> None:
    t = ours(lowercase=True)
    assert t.decode(t.encode([" ".join(words)])) == [" ".join(words)]


def test_a_vocabulary_is_a_piece_a_line(tmp_path: Path) -> None:
    pieces = [*PIECES, "\u2028", "\x85", "a b", "", "##"]
    tokenizer = WordPieceTokenizer(pieces, lowercase=False)
    tokenizer.save(tmp_path / "run.1" / "vocab")
    path = tmp_path / "run.1" / "vocab.txt"
    loaded = WordPieceTokenizer.load(path, lowercase=False)
    assert loaded.tokens(range(len(loaded))) == pieces
    path.write_bytes(path.read_bytes().removesuffix(b"\n").replace(b"\n", b"\r\n"))  # as other systems end lines
    loaded = WordPieceTokenizer.load(path, lowercase=False)
    assert loaded.tokens(range(len(loaded))) == pieces


def test_a_vocabulary_that_is_no_text_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(ValueError, match=r"vocab\.txt is not UTF-8 text"):
        WordPieceTokenizer.load(tmp_path / "vocab.txt", lowercase=True)


def test_there_is_one_way_to_cut() -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.sampling=0\.1 .*: set it to 0"):
        ours(lowercase=True).sample(["the"], 0.1, 1)
