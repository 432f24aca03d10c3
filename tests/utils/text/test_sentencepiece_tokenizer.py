import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from const.path import ROOT
from const.token import PAD_ID, SPECIAL_TOKENS, UNK_ID
from utils.text import tokenizer as tokenizer_module
from utils.text.tokenizer import SentencePieceTokenizer

LINES = [
    "京都は日本の古都である。",
    "都の橋は１２３４年に架けられた。",
    "「ＡＢＣ」と書いてある。",
    "カタカナとｶﾀｶﾅ",
    "Kyoto is the old capital of Japan.",
    "The bridge was built in 1234, and again in 1342.",
    "It's an old one (older than 1,200 years)!",
    "unpacked: a < b > c / d = s",
] * 3
KNOWN = sorted(set("".join(LINES)))
KINDS = ("unigram", "bpe")
known_texts = st.text(KNOWN, max_size=40)


def learned(kind: str, normalization: str = "identity") -> SentencePieceTokenizer:
    assert kind in KINDS
    return SentencePieceTokenizer.train(LINES, kind, 170, 1.0, normalization)  # type: ignore[arg-type]


TOKENIZERS = {kind: learned(kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tokenizer(kind: str) -> SentencePieceTokenizer:
    return TOKENIZERS[kind]


def test_the_special_tokens_come_first(tokenizer: SentencePieceTokenizer) -> None:
    assert tokenizer.tokens(range(4)) == ["<pad>", "<unk>", "<s>", "</s>"]
    pieces = tokenizer.tokens(range(len(tokenizer)))
    assert len(set(pieces)) == len(pieces) <= 170


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(known_texts, max_size=4))
def test_known_characters_survive_and_spaces_become_single_ones(kind: str, texts: list[str]) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(texts)
    assert tokenizer.decode(ids) == [" ".join(text.split()) for text in texts]
    assert all(len(SPECIAL_TOKENS) <= i < len(tokenizer) for sequence in ids for i in sequence)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=30) | known_texts)
def test_no_text_becomes_a_special_token_but_the_unknown_one(kind: str, text: str) -> None:
    (ids,) = TOKENIZERS[kind].encode([text])
    assert {i for i in ids if i < len(SPECIAL_TOKENS)} <= {UNK_ID}


def test_nor_do_special_tokens_in_training_text_change_that(kind: str) -> None:
    lines = [*LINES, *(f"old {special} capital{special}" for special in SPECIAL_TOKENS)]
    tokenizer = SentencePieceTokenizer.train(lines, kind, 170, 1.0, "identity")  # type: ignore[arg-type]
    assert {i for ids in tokenizer.encode(lines) for i in ids if i < len(SPECIAL_TOKENS)} <= {UNK_ID}
    assert tokenizer.tokens(range(4)) == list(SPECIAL_TOKENS)


@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_special_tokens_in_a_text_are_its_characters(tokenizer: SentencePieceTokenizer, special: str) -> None:
    (ids,) = tokenizer.encode([f"old {special} capital"])
    assert min(ids) >= len(SPECIAL_TOKENS)
    assert tokenizer.decode([ids]) == [f"old {special} capital"]


def test_an_unknown_character_is_one_unknown_token(tokenizer: SentencePieceTokenizer) -> None:
    (known, unknown) = tokenizer.encode(["old", "old😀old"])
    assert UNK_ID not in known
    assert unknown.count(UNK_ID) == 1
    assert tokenizer.decode([unknown]) == ["old ⁇ old"]


def test_what_frames_a_sequence_is_not_text(tokenizer: SentencePieceTokenizer) -> None:
    (ids,) = tokenizer.encode(["old capital"])
    assert tokenizer.decode([[2, *ids, 3, PAD_ID, PAD_ID], [], [3]]) == ["old capital", "", ""]


def test_nothing_in_nothing_out(tokenizer: SentencePieceTokenizer) -> None:
    assert tokenizer.encode([]) == []
    assert tokenizer.decode([]) == []
    assert tokenizer.encode(["", "  "]) == [[], []]


def test_identity_keeps_the_full_width_that_nfkc_unifies(kind: str) -> None:
    text = "「ＡＢＣ」１２３４ｶﾀｶﾅ"
    for normalization, expected in ("identity", text), ("nfkc", "「ABC」1234カタカナ"):
        tokenizer = learned(kind, normalization)
        assert tokenizer.decode(tokenizer.encode([text])) == [expected], normalization


def test_the_same_lines_give_the_same_model(tmp_path: Path, kind: str) -> None:
    for name in "ab":
        learned(kind).save(tmp_path / name)
    assert (tmp_path / "a.model").read_bytes() == (tmp_path / "b.model").read_bytes()


def test_of_very_much_text_every_kth_line_is_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    padded = [line for kept in LINES for line in (kept, "Z" * len(kept), "Ｚ" * len(kept))]
    monkeypatch.setattr(tokenizer_module, "_MOST_TRAINING_CHARACTERS", sum(map(len, LINES)))
    SentencePieceTokenizer.train(padded, kind, 170, 1.0, "identity").save(tmp_path / "sampled")  # type: ignore[arg-type]
    TOKENIZERS[kind].save(tmp_path / "whole")
    assert (tmp_path / "sampled.model").read_bytes() == (tmp_path / "whole.model").read_bytes()


def test_saved_and_loaded_it_is_the_same(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    tokenizer.save(tmp_path / "run.1" / "tokenizer")
    loaded = SentencePieceTokenizer.load(tmp_path / "run.1" / "tokenizer.model")
    assert len(loaded) == len(tokenizer)
    assert loaded.tokens(range(len(loaded))) == tokenizer.tokens(range(len(tokenizer)))
    assert loaded.encode(LINES) == tokenizer.encode(LINES)
    assert loaded.decode(loaded.encode(LINES)) == LINES


@pytest.mark.parametrize("content", [b"", b"\x0a\xff"])
def test_a_damaged_model_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(ValueError, match=r"/tokenizer\.model is damaged: copy it again$"):
        SentencePieceTokenizer.load(tmp_path / "tokenizer.model")


def test_coverage_leaves_rare_characters_unknown() -> None:
    lines = ["abcd" * 50] * 10 + ["都"]
    all_of_it = SentencePieceTokenizer.train(lines, "bpe", 12, 1.0, "identity")
    most_of_it = SentencePieceTokenizer.train(lines, "bpe", 12, 0.999, "identity")
    assert UNK_ID not in all_of_it.encode(["都"])[0]
    assert UNK_ID in most_of_it.encode(["都"])[0]


def test_fewer_pieces_than_characters_are_refused_in_one_line(kind: str) -> None:
    with pytest.raises(ValueError, match=r"^tokenizer\.vocab_size=20 does not fit 24 lines of training text: .*20 vs"):
        SentencePieceTokenizer.train(LINES, kind, 20, 1.0, "identity")  # type: ignore[arg-type]


def test_more_pieces_than_there_are_are_refused_by_bpe_and_left_out_by_unigram() -> None:
    message = r"^tokenizer\.vocab_size=54321 does not fit 24 lines of training text: [^\n]*too high[^\n]*$"
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.train(LINES, "bpe", 54321, 1.0, "identity")
    unigram = SentencePieceTokenizer.train(LINES, "unigram", 54321, 1.0, "identity")
    assert len(SPECIAL_TOKENS) + len(KNOWN) < len(unigram) < 54321
    assert unigram.decode(unigram.encode(LINES)) == LINES


@pytest.mark.parametrize("lines", [[], [""]])
def test_no_text_is_refused_by_the_same_name(kind: str, lines: list[str]) -> None:
    with pytest.raises(
        ValueError, match=rf"^tokenizer\.vocab_size=50 does not fit {len(lines)} lines of training text: .+"
    ):
        SentencePieceTokenizer.train(lines, kind, 50, 1.0, "identity")  # type: ignore[arg-type]


# sampling


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.text(max_size=30) | known_texts, max_size=4), seed=st.integers(0, 99))
def test_a_sampled_text_is_the_same_text(kind: str, texts: list[str], seed: int) -> None:
    tokenizer = TOKENIZERS[kind]
    sampled = tokenizer.sample(texts, 0.3, seed)
    straight = tokenizer.encode(texts)
    assert tokenizer.decode(sampled) == tokenizer.decode(straight)
    assert [ids.count(UNK_ID) for ids in sampled] == [ids.count(UNK_ID) for ids in straight]
    assert not {i for ids in sampled for i in ids if i < len(SPECIAL_TOKENS)} - {UNK_ID}


def test_a_sample_is_a_function_of_text_rate_and_seed_in_every_process(kind: str, tmp_path: Path) -> None:
    TOKENIZERS[kind].save(tmp_path / "saved")
    code = f"""
from pathlib import Path
from utils.text.tokenizer import SentencePieceTokenizer
tokenizer = SentencePieceTokenizer.load(Path({str(tmp_path / "saved.model")!r}))
print([tokenizer.sample({LINES!r}, 0.3, seed) for seed in (7, 7, 8)])
"""
    runs = [subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    first, again, other = ast.literal_eval(runs[0].stdout.decode())
    assert first == again == TOKENIZERS[kind].sample(LINES, 0.3, 7)
    assert first != other


@pytest.mark.parametrize(("kind", "rate"), [("unigram", 1e9), ("bpe", 1e-9)])
def test_at_the_end_of_the_scale_a_sample_is_the_straight_cut(kind: str, rate: float) -> None:
    assert TOKENIZERS[kind].sample(LINES, rate, 1) == TOKENIZERS[kind].encode(LINES)


@pytest.mark.parametrize(("kind", "finer", "coarser"), [("unigram", 0.1, 0.9), ("bpe", 0.6, 0.1)])
def test_the_rate_says_how_fine_a_text_is_cut(kind: str, finer: float, coarser: float) -> None:
    fine, coarse = (sum(map(len, TOKENIZERS[kind].sample(LINES, rate, 1))) for rate in (finer, coarser))
    assert fine > coarse > sum(map(len, TOKENIZERS[kind].encode(LINES)))


@pytest.mark.parametrize(("kind", "rate"), [("unigram", 0.2), ("unigram", 0.7), ("bpe", 0.1), ("bpe", 0.5)])
def test_texts_are_cut_as_fine_as_sentencepiece_cuts_them(kind: str, rate: float) -> None:
    """Its own sampling, which no seed makes the same in two processes."""
    tokenizer, lines = TOKENIZERS[kind], LINES * 60
    theirs = tokenizer._processor.encode(lines, enable_sampling=True, nbest_size=-1, alpha=rate)
    ours = tokenizer.sample(lines, rate, 1)
    assert sum(map(len, ours)) == pytest.approx(sum(map(len, theirs)), rel=0.03)


def test_a_very_long_line_is_learned_from(kind: str) -> None:
    tokenizer = SentencePieceTokenizer.train([*LINES, "鵺" * 5000], kind, 170, 1.0, "identity")  # type: ignore[arg-type]
    assert UNK_ID not in tokenizer.encode(["鵺"])[0]
