"""Text: tokenizers of pieces and words, random segmentation, languages by their letters, sentences, spacing."""

import hashlib
import math
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from config.data import TokenizerConfig, primary_language, require_language
from const.token import EOS_ID, PAD_ID, SPECIAL_TOKENS, UNK_ID
from utils.search.markup import Markup, Tag, TaggedText
from utils.text import tokenizer as tokenizer_module
from utils.text.form import known_characters, known_form
from utils.text.language import (
    count_letters,
    detect,
    looks_tokenized,
    looks_untokenized,
    unspaced_language,
)
from utils.text.sampling import BpeSampler, ScoredPiece, UnigramSampler
from utils.text.sentence import split_long, split_sentences
from utils.text.structure import split_cells
from utils.text.tokenizer import (
    SentencePieceTokenizer,
    Tokenizer,
    WordTokenizer,
    every_token,
    id_of_each,
    load_tokenizers,
    train_tokenizer,
    train_tokenizers,
)
from utils.text.words import WORDS as WORDS_FILE
from utils.text.words import WordPair, Words, plain_text

Patch = pytest.MonkeyPatch
# SentencePiece

LINES = [
    "京都は日本の古都である。",
    "都の橋は１２３４年に架けられた。",
    "「ＡＢＣ」と書いてある。",
    "カタカナとｶﾀｶﾅと０５６７８９",
    "Kyoto is the old capital of Japan.",
    "The bridge was built in 1234, and again in 1342.",
    "It's an old one (older than 1,200 years)!",
    "unpacked: a < b > c / d = s",
] * 3
KNOWN = sorted(set("".join(LINES)))
KINDS = ("unigram", "bpe")
known_texts = st.text(KNOWN, max_size=40)
any_texts = st.text(max_size=30) | known_texts


def learned(kind: Any, normalization: str = "identity", lines: list[str] = LINES, size: int = 170) -> Any:
    config = TokenizerConfig(kind, size, character_coverage=1.0, normalization=normalization)  # type: ignore[arg-type]
    return SentencePieceTokenizer.train(config, [lines])


TOKENIZERS: dict[str, SentencePieceTokenizer] = {kind: learned(kind) for kind in KINDS}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@given(texts=st.lists(known_texts, max_size=4), odd=any_texts)
def test_known_characters_survive_and_only_the_unknown_token_is_text(kind: str, texts: list[str], odd: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(texts)
    assert tokenizer.decode(ids) == [" ".join(text.split()) for text in texts]
    assert all(len(SPECIAL_TOKENS) <= i < len(tokenizer) for sequence in ids for i in sequence)
    assert {i for i in tokenizer.encode([odd])[0] if i < len(SPECIAL_TOKENS)} <= {UNK_ID}


@each_kind
@pytest.mark.parametrize("space", ["", " "])
def test_a_document_on_one_line_is_learned_from_whole(kind: str, space: str) -> None:
    rare = "京都の古い寺"
    document = space.join("abcdefgh" * 3000) + space + rare  # the end is what a limit would leave out
    tokenizer = learned(kind, lines=[document], size=36)
    assert UNK_ID not in tokenizer.encode([rare])[0]


def test_learning_pieces_ends_at_a_signal_not_after_it(monkeypatch: Patch) -> None:
    ended: list[bool] = []

    def long(**_options: object) -> None:
        try:  # as SentencePiece: a second in C, without Python's lock
            hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)
        finally:
            ended.append(True)

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", long)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            SentencePieceTokenizer.train(TokenizerConfig(vocab_size=40), [LINES])
        assert not ended
    finally:
        signal.signal(signal.SIGALRM, before)


@each_kind
def test_special_tokens_come_first_and_are_no_text(kind: str) -> None:
    special = [f"old {token} capital" for token in SPECIAL_TOKENS]
    for tokenizer in TOKENIZERS[kind], learned(kind, lines=[*LINES, *special]):
        assert every_token(tokenizer)[:4] == list(SPECIAL_TOKENS)
        assert len(set(every_token(tokenizer))) == len(tokenizer) <= 170
        ids, known, unknown, *nothing = tokenizer.encode(["old capital", "old", "old😀old", "", "  "])
        assert [id_of_each(tokenizer)[token] for token in tokenizer.tokens(ids)] == ids
        assert tokenizer.decode([[2, *ids, 3, PAD_ID, PAD_ID], [], [3]]) == ["old capital", "", ""]
        assert tokenizer.decode(tokenizer.encode(special)) == special
        assert (UNK_ID in known, unknown.count(UNK_ID), nothing) == (False, 1, [[], []])
        assert tokenizer.decode([unknown]) == ["old ⁇ old"]
        assert tokenizer.encode([]) == tokenizer.decode([]) == []


def test_identity_keeps_the_full_width_that_nfkc_unifies() -> None:
    text = "「ＡＢＣ」１２３４ｶﾀｶﾅ"
    for normalization, expected in ("identity", text), ("nfkc", "「ABC」1234カタカナ"):
        tokenizer = learned("unigram", normalization)
        assert tokenizer.decode(tokenizer.encode([text])) == [expected]


@each_kind
def test_the_same_lines_give_the_same_model(kind: str, tmp_path: Path, monkeypatch: Patch) -> None:
    TOKENIZERS[kind].save(tmp_path / "run.1" / "tokenizer")
    whole = (tmp_path / "run.1" / "tokenizer.model").read_bytes()
    loaded = SentencePieceTokenizer.load(tmp_path / "run.1" / "tokenizer.model")
    assert every_token(loaded) == every_token(TOKENIZERS[kind])
    assert loaded.decode(loaded.encode(LINES)) == LINES
    assert UNK_ID not in learned(kind, lines=[*LINES, "鵺" * 5000]).encode(["鵺"])[0]  # a very long line, too
    monkeypatch.setattr(tokenizer_module, "_MAX_TRAINING_CHARACTERS", sum(map(len, LINES)))
    padded = [line for kept in LINES for line in (kept, "Z" * len(kept), "Ｚ" * len(kept))]
    for lines in LINES, padded:
        learned(kind, lines=lines).save(tmp_path / "other")
        assert (tmp_path / "other.model").read_bytes() == whole


def test_surrogates_are_refused_and_many_texts_are_encoded_as_few_are() -> None:
    tokenizer, text = TOKENIZERS["unigram"], [f"the old capital of {n} and the capitals" for n in range(1500)]
    assert tokenizer.encode(text) == [tokenizer.encode([line])[0] for line in text]  # by threads, and without
    with pytest.raises(ValueError, match="is not UTF-8"):
        tokenizer.encode(["old", "\udcff"])


@pytest.mark.parametrize(
    ("kind", "size", "lines", "words"),
    [
        *((kind, 20, LINES, "20 does not fit 24 lines") for kind in KINDS),
        ("unigram", 50, [], "50 does not fit 0 lines"),
        ("bpe", 54321, LINES, "too high"),
    ],
)
def test_a_size_that_does_not_fit_is_refused(kind: str, size: int, lines: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^tokenizer\.vocab_size=[^\n]*{words}[^\n]*$"):
        learned(kind, lines=lines, size=size)


def test_a_unigram_model_has_as_many_pieces_as_there_are() -> None:
    assert len(SPECIAL_TOKENS) + len(KNOWN) < len(learned("unigram", size=54321)) < 54321


# random segmentation


@each_kind
@given(texts=st.lists(any_texts, max_size=4), seed=st.integers(0, 99))
def test_a_sampled_text_is_the_same_text(kind: str, texts: list[str], seed: int) -> None:
    tokenizer = TOKENIZERS[kind]
    sampled, straight = tokenizer.sample(texts, 0.3, seed), tokenizer.encode(texts)
    assert tokenizer.decode(sampled) == tokenizer.decode(straight)
    assert [ids.count(UNK_ID) for ids in sampled] == [ids.count(UNK_ID) for ids in straight]
    assert not {i for ids in sampled for i in ids if i < len(SPECIAL_TOKENS)} - {UNK_ID}


@pytest.mark.parametrize(("kind", "straight"), [("unigram", 1e9), ("bpe", 1e-9)])
def test_a_sample_is_a_function_of_text_rate_and_seed(kind: str, straight: float) -> None:
    first, again = learned(kind).sample(LINES, 0.3, 7), TOKENIZERS[kind].sample(LINES, 0.3, 7)
    assert first == again != TOKENIZERS[kind].sample(LINES, 0.3, 8)
    assert TOKENIZERS[kind].sample(LINES, straight, 1) == TOKENIZERS[kind].encode(LINES)


@pytest.mark.parametrize(("kind", "rate"), [("unigram", 0.2), ("unigram", 0.7), ("bpe", 0.1), ("bpe", 0.5)])
def test_texts_are_split_as_fine_as_sentencepiece_splits_them(kind: str, rate: float) -> None:
    """Its own sampling, which no seed makes the same in two processes."""
    tokenizer, lines = TOKENIZERS[kind], LINES * 60
    theirs = tokenizer._processor.encode(lines, enable_sampling=True, nbest_size=-1, alpha=rate)
    assert sum(map(len, tokenizer.sample(lines, rate, 1))) == pytest.approx(sum(map(len, theirs)), rel=0.03)


TEXTS = ["a", "b", "c", "ab", "bc", "abc", "▁", "▁a", "qa"]  # no q by itself
UNIGRAM = {text: ScoredPiece(4 + i, -1.5 - 0.37 * i) for i, text in enumerate(TEXTS)}
UNKNOWN = min(piece.score for piece in UNIGRAM.values()) - 10
# the merges of BPE in their order; characters come behind them
MERGES = ["bc", "ab", "abc", "▁a", "▁abc", "cc", "bcbc"]
BPE = {text: ScoredPiece(4 + i, float(-i)) for i, text in enumerate([*MERGES, "a", "b", "c", "▁"])}


def segmentations(word: str) -> Iterator[tuple[list[int], float]]:
    """All segmentations of a word with their log probability, by trying each."""
    if not word:
        yield [], 0.0
    for n in range(1, len(word) + 1):
        first = UNIGRAM.get(word[:n]) or (ScoredPiece(UNK_ID, UNKNOWN) if n == 1 else None)
        if first is not None:
            for ids, score in segmentations(word[n:]):
                yield [first.id, *ids], first.score + score


@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize("word", ["▁abcab", "aXbc", "▁abcabcabc", "qab"])
def test_a_unigram_segmentation_comes_as_often_as_its_probability_to_the_rate_says(word: str, rate: float) -> None:
    weights = {tuple(ids): math.exp(rate * score) for ids, score in segmentations(word)}
    draw, sampler, n = random.Random(0).random, UnigramSampler(UNIGRAM, rate), 10_000
    counts = Counter(tuple(sampler(word, draw)) for _ in range(n))
    assert set(counts) <= set(weights)
    for ids, weight in weights.items():
        p = weight / sum(weights.values())
        if n * p > 5 or ids in counts:
            assert counts[ids] == pytest.approx(n * p, abs=5 * math.sqrt(n * p * (1 - p)) + 4)


def test_a_very_long_word_has_no_underflow() -> None:
    ids = UnigramSampler(UNIGRAM, 1.0)("abc" * 1000, random.Random(0).random)
    lengths = {piece.id: len(text) for text, piece in UNIGRAM.items()}
    assert sum(lengths[i] for i in ids) == 3000
    assert len(set(ids)) > 3


def bpe(word: str, rate: float, seed: int = 0) -> list[int]:
    return BpeSampler(BPE, rate)(word, random.Random(seed).random)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("abc", "abc"),  # a bc, though ab would go as well
        ("▁ab", "▁ ab"),
        ("aab", "a ab"),
        ("bcbc", "bcbc"),  # the second grows and meets the first
        ("ccc", "cc c"),
        ("aXX", "a X X"),
    ],
)
def test_bpe_merges_in_its_order_and_from_the_left(word: str, parts: str) -> None:
    assert bpe(word, 0.0) == [BPE[part].id if part in BPE else UNK_ID for part in parts.split()]
    assert bpe(word, 1.0) == [BPE[c].id if c in BPE else UNK_ID for c in word]


def test_a_merge_is_left_out_at_the_rate() -> None:
    """`abc` can be made of `a bc` and, where `bc` was left out, of `ab c`."""
    n, rate = 8000, 0.3
    counts = Counter(tuple(bpe("abc", rate, seed)) for seed in range(n))
    for parts, share in (("a b c", rate**2), ("a bc", (1 - rate) * rate), ("ab c", rate * (1 - rate) * rate)):
        assert counts[tuple(BPE[part].id for part in parts.split())] == pytest.approx(n * share, rel=0.15)
    # in a long word, such as a Japanese sentence, as often as in short ones
    assert len(bpe("bcX" * 4000, rate)) / 8000 == pytest.approx(1 + rate / 2, rel=0.02)


# words


@pytest.mark.parametrize(
    ("text", "min_freq", "lowercase", "kept"),
    [
        (["b a c", "c a", "d c a d", "c e"], 2, False, "c a d"),
        (["z y", "x z y x"], 2, False, "z y x"),  # equally frequent: as they appeared
        (["Kyoto KYOTO kyoto Nara"], 1, False, "Kyoto KYOTO kyoto Nara"),
        (["Kyoto KYOTO kyoto Nara"], 2, True, "kyoto"),
        (["</s> </s> a a <PAD> <PAD>"], 2, True, "a"),  # special tokens have their place already
    ],
)
def test_words_stand_by_frequency(text: list[str], min_freq: int, lowercase: bool, kept: str, tmp_path: Path) -> None:
    WordTokenizer.train(text, min_freq, lowercase).save(tmp_path / "run.1" / "tokenizer")
    loaded = WordTokenizer.load(tmp_path / "run.1" / "tokenizer.json")
    assert every_token(loaded) == [*SPECIAL_TOKENS, *kept.split()]
    for line in (*text, "kyoTO x"):
        known = [word.lower() if lowercase else word for word in line.split()]
        expected = [kept.split().index(word) + 4 if word in kept.split() else UNK_ID for word in known]
        assert loaded.encode([line]) == [expected]


def test_what_frames_a_sequence_is_not_text() -> None:
    tokenizer = WordTokenizer(["old", "capital"], lowercase=True)
    assert tokenizer.decode([[2, 4, 1, 5, EOS_ID, 0], *tokenizer.encode([" old\u3000 capital", ""])]) == [
        "old <unk> capital",
        "old capital",
        "",
    ]
    assert {i for ids in tokenizer.encode(["</s> <pad> <s>", "<unk> <PAD>"]) for i in ids} == {UNK_ID}
    assert tokenizer.tokens([2, 4, EOS_ID, 0]) == ["<s>", "old", "</s>", "<pad>"]


@pytest.mark.parametrize(
    ("load", "name", "content"),
    [
        *((WordTokenizer.load, "a.json", text) for text in ("{", "[]", '{"words": ["都"]}')),
        *((SentencePieceTokenizer.load, "a.model", text) for text in ("", "\x0a\xff")),
        *((WordPair.load, WORDS_FILE, text) for text in ("[]", "{}", '[{"language": "ja"}, {}]', "x")),
    ],
)
def test_a_damaged_vocabulary_is_named(load: Callable[[Path], Any], name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{name} is damaged"):
        load(tmp_path if name == WORDS_FILE else tmp_path / name)


# tokenizers of one text or two

JA = ["京都 は 日本 の 古都 で ある 。", "古い 橋 が 1234 年 に 川 に 架けられた 。", "古い 寺 が 京都 に ある 。"] * 5
EN = ["Kyoto is an old capital of Japan .", "The old Bridge was built in 1234 .", "There is an old temple ."] * 5
SUBWORDS = TokenizerConfig("unigram", vocab_size=80, character_coverage=1.0)
WORDS = TokenizerConfig("word", min_freq=1)
CONFIGS = {"unigram": SUBWORDS, "bpe": replace(SUBWORDS, kind="bpe"), "word": WORDS}


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_vocabulary_is_of_both_sides_or_of_each(config: TokenizerConfig, joint: bool, tmp_path: Path) -> None:
    pair = train_tokenizers(replace(config, joint=joint, vocab_size=80 if joint else 50), JA, EN)
    assert not any(UNK_ID in ids for ids in [*pair.src.encode(JA), *pair.tgt.encode(EN)])
    assert (UNK_ID in pair.src.encode(["Kyoto"])[0], UNK_ID in pair.tgt.encode(["京都"])[0]) == (not joint, not joint)
    pair.save(tmp_path)
    suffix = "json" if config.kind == "word" else "model"
    names = ["tokenizer"] if joint else ["tokenizer_src", "tokenizer_tgt"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{name}.{suffix}" for name in names]
    loaded = load_tokenizers(tmp_path)
    assert (loaded.src is loaded.tgt) is (pair.src is pair.tgt) is joint
    for ours, theirs in zip(loaded, pair, strict=True):
        assert every_token(ours) == every_token(theirs)
        assert ours.encode([*JA, *EN]) == theirs.encode([*JA, *EN])
    lost = names[0] if config.kind == "word" else names[-1]
    (tmp_path / f"{lost}.{suffix}").unlink()
    with pytest.raises(ValueError, match=rf"^no tokenizer in {tmp_path}"):
        load_tokenizers(tmp_path)


def test_each_setting_arrives() -> None:
    def trained(**changes: Any) -> Tokenizer:
        return train_tokenizers(replace(SUBWORDS, **changes), JA, EN).src

    plain = trained()
    assert len(plain) > len(trained(vocab_size=60)) == 60
    assert every_token(plain) != every_token(trained(kind="bpe"))
    folded = trained(normalization="nfkc_cf")
    assert folded.decode(folded.encode(["Bridge"])) == ["bridge"] != plain.decode(plain.encode(["Bridge"]))
    assert any(UNK_ID in ids for ids in trained(character_coverage=0.98).encode([*JA, *EN]))
    lower, frequent = trained(kind="word", min_freq=1, lowercase=True), trained(kind="word", min_freq=15)
    assert lower.encode(["BRIDGE"]) == lower.encode(["bridge"]) != [[UNK_ID]]
    assert frequent.encode(["Bridge"]) == [[UNK_ID]] != frequent.encode(["old"])


def test_a_tag_begins_each_source_and_no_text_is_encoded_to_it(tmp_path: Path) -> None:
    pair = train_tokenizers(replace(SUBWORDS, tag=True, joint=True, vocab_size=100), JA, EN, ("ja", "en"))
    pair.save(tmp_path)
    src: Any
    tgt: Any
    for src, tgt in (pair, load_tokenizers(tmp_path)):
        ids = src.encode([EN[0], "", "<2en>"])
        assert [src.tokens(row)[:1] for row in ids] == [["<2en>"], [], ["<2en>"]]
        assert ids[0][1:] == tgt.encode([EN[0]])[0]
        assert ids[2].count(ids[0][0]) == 1
        assert tgt.decode([ids[0]]) == [EN[0]]
        assert [row[0] for row in src.sample([EN[0]], 0.5, 1)] == [ids[0][0]]
        assert all(ids[0][0] not in row for row in tgt.sample([EN[0], "<2en>"], 0.5, 1))
    assert pair.into("ja").src.tokens(pair.into("ja").src.encode([JA[0]])[0])[0] == "<2ja>"
    with pytest.raises(ValueError, match="no <2de>"):
        pair.into("de")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("joint", [True, False])
def test_a_kind_of_text_has_a_tag_beside_that_of_the_language(kind: Any, joint: bool, tmp_path: Path) -> None:
    config = replace(SUBWORDS, kind=kind, joint=joint, tag=joint, vocab_size=70)
    # a text that often says "<bt>" gets other pieces for it
    pair = train_tokenizers(config, [*JA, *["橋<bt>"] * 30], EN, ("ja", "en"), ["bt", "law"])
    language = ["<2en>"] * joint
    assert (pair.text_tags, [*pair.tags]) == (["bt", "law"], language)
    law = pair.with_tag("law")
    law.with_tag("bt").save(tmp_path)
    for tagged in (law.with_tag("bt"), load_tokenizers(tmp_path), load_tokenizers(tmp_path, "law").with_tag("bt")):
        src: Any = tagged.src
        tags = [*language, "<bt>"]
        assert ([*tagged.tags], tagged.is_joint) == (tags, joint)
        texts = [JA[0], "<bt>", "<law>橋<bt>"]
        known = {id_of_each(src)[tag] for tag in ("<bt>", "<law>")}
        for row in (*src.encode(texts), *src.sample(texts, 0.5, 1)):
            assert src.tokens(row)[: len(tags)] == tags
            assert not known & {*row[len(tags) :]}
        assert src.decode(src.encode(texts))[0] == JA[0]
        assert [[*tagged.with_tag(none).tags] for none in ("", None)] == [language] * 2
        with pytest.raises(ValueError, match=r"^tag=it, but the vocabulary knows bt, law: give one that it knows"):
            tagged.with_tag("it")
    assert not joint or [*law.into("ja").tags] == ["<2ja>", "<law>"]
    words = train_tokenizers(replace(SUBWORDS, kind="word"), JA, EN)
    assert words.with_tag(None) is words
    with pytest.raises(ValueError, match=r"^tag=2en, but the vocabulary knows no tag"):
        words.with_tag("2en")


# languages


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("京都は日本の古都である。", "ja"),
        ("ﾊﾝｶｸｶﾅ", "ja"),
        ("Windows Vista。京都の寺。大和朝廷と飛鳥時代。東京都知事", "ja"),
        ("我是学生。", "zh"),
        ("日本動畫《となりのトトロ》" + "在臺灣上映之後大受歡迎" * 20, "zh"),
        ("The Tale of Genji (源氏物語) is old.", ""),
        ("Das Buch heißt Βίβλος.", ""),
        ("나는 학생입니다.", ""),
        ("123 ...", ""),
        ("", ""),
    ],
)
def test_unspaced_languages_are_told_by_their_letters(text: str, language: str) -> None:
    assert unspaced_language(text.split("。")) == language


def test_letters_are_counted_by_script() -> None:
    n, counts = count_letters("寺と橋・カフェ、나는 학생 (2) Kyō_to!")
    kana = counts["ja"] - counts["zh"]
    assert (n, kana, counts["zh"], counts["ko"]) == (15, 4, 2, 4)


@pytest.mark.parametrize(
    ("code", "primary"),
    [("ja", "ja"), ("zh-CN", "zh"), ("ZH_Hant", "zh"), ("jpn", "ja"), ("cmn_Hans", "zh"), ("deu_Latn", "deu")],
)
def test_a_region_is_no_other_language(code: str, primary: str) -> None:
    require_language(tgt_lang=code)
    assert primary_language(code) == primary


@pytest.mark.parametrize(
    ("code", "remedy"), [("jp", "mean ja"), ("JP-ja", "mean ja"), ("English", "mean en"), ("klingon", "639")]
)
def test_what_is_no_language_code_is_refused(code: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=rf"^tgt_lang={code} is no language code: .*{remedy}"):
        require_language(src_lang="en", tgt_lang=code)


# the same text, as keyboards, PDF files and old systems write it
WRITTEN = {
    "composed": "がギ é",
    "decomposed": "か\u3099キ\u3099 e\u0301",
    "half-width": "がｷﾞ é",
    "invisible": "\ufeffが\u200bギ\ufe00 \u200eé\u00ad",
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_one_text_is_read_alike_however_it_is_written(text: str) -> None:
    for config in TokenizerConfig(kind="bpe", vocab_size=16), TokenizerConfig(kind="word", min_freq=1):
        tokenizer = train_tokenizer(config, [WRITTEN["composed"], "Ａ(株)"] * 9)
        assert tokenizer.encode([text]) == tokenizer.encode([WRITTEN["composed"]])
        assert UNK_ID not in tokenizer.encode([text])[0]
        decomposed = train_tokenizer(config, [WRITTEN["decomposed"], "Ａ(株)"] * 9)
        assert every_token(decomposed) == every_token(tokenizer)


def test_the_width_is_kept_where_it_is_known_and_folded_where_that_helps() -> None:
    known = {*"Ａ(株)が "}
    assert known_form("Ａ(株)", known) == "Ａ(株)"
    assert known_form("㈱Ａ が", known) == "(株)Ａ が"
    assert known_form("Ｂ㎏", known) == "Ｂ㎏"  # nor is the plain form known
    old = known | {"\u200b", "か", "\u3099"}  # as a vocabulary of earlier texts may have them
    assert known_form("か\u3099\u200b", old) == "か\u3099\u200b"


def test_numbers_in_full_width_are_read_as_the_usual_ones_unless_each_digit_is_known() -> None:
    some, all_ten = [*"寺がある年。0123456789", *"１２３４７"], [*"寺がある年。", *"０１２３４５６７８９"]
    for kind in (
        WordTokenizer(some, lowercase=False),
        learned("unigram", lines=["寺がある年。 0123456789 １２３４７"] * 9, size=40),
    ):
        for year in ("１３９７", "１１１２"):
            assert kind.encode([f"寺がある{year}年。"]) == kind.encode([f"寺がある{normalize('NFKC', year)}年。"])
    assert known_form("１３９７年", known_characters(all_ten)) == "１３９７年"
    assert known_form("a\tb\u2028c\x0bd", {*"abcd "}) == "a b c d"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("NHK WORLD-JAPANを見た。", "ja"),
        ("PythonとPyTorchを使う。", "ja"),
        ("Kinkaku-ji Templeへ行きました。", "ja"),
        ("iPhone 15 Proの価格", "ja"),
        ("詳しくはこちらをご覧ください：https://www.example.com/kyoto/temple/index.html", "ja"),
        ("田中さんへ連絡してください。 taro.tanaka@mail.example.co.jp", "ja"),
        ("Visual Studio Code Remote Development を使う (Microsoft)", "ja"),
        ("EC2 Auto Scaling Group について AWS Solutions Architect", "ja"),
        ("MyApp は、npm install foo で実行します。\n\n    npm install temple node && npx tsc\n", "ja"),
        ("Google、Amazon、Facebook、Apple（いわゆるGAFA）", "ja"),
        (
            '# 使い方\n\n寺を描く。\n```\n<div class="temple">temple</div>\n```\n<div align="center">\n</div>\n---\n',
            "ja",
        ),
        ("寺を見る。\n" + "<b>" * 99 + "\n```\nimport " + "temple " * 99, "ja"),
        ("手順を読んでください。 Install and run.", "ja"),
        ("The word 寺 means temple.", "en"),
        ('"ありがとう" means thank you in Japanese, and is heard everywhere.', "en"),
        ("The word はし means bridge, chopsticks, or edge.", "en"),
        ("The temple is old, and the garden is new. " * 9 + "A Tシャツ is a shirt.", "en"),
        ("https://www.example.com/kyoto", "en"),
        ("The word こんにちは means hello.", "en"),
        ("Kyoto", "en"),
        ("한국어", None),
        ("ภาษาไทย", None),
        ("Привет, как дела? Hi!", None),
        ("שלום", None),
        ("α + β", None),
        ("Kyōto ¼ µm Ｈｅ", "en"),
        ("1869", "en"),
    ],
)
def test_the_language_is_that_of_the_sentence_not_of_the_names_in_it(text: str, language: str | None) -> None:
    guess = detect(text, ["en", "ja"])
    assert (guess and guess.language) == language
    assert detect("한국어", ["en", "ko", "ja"]) == ("ko", 100.0)
    assert detect("Hello", ["ko", "ru", "hi", "en"]) == ("en", 100.0)
    assert detect("Привет", ["en", "ko", "ru"]) == ("ru", 100.0)
    assert detect("Привет", ["en", "tg", "sah", "bg"]) == ("tg", 33.3)


# a text, its sentences between |
SENTENCES = """
It was made by Kawasaki Mfg. Co., Ltd. in 1940. |It was new.
Kawasaki Rolling-Stock Mfg. Co., Ltd. made it. |It is from Kobe Ltd. |It was new.
姉は来ました。|弟は見ました。
本当ですか？|はい！|そうです
「行くよ。」|「来てね。」|彼は去った。
「寺は古い。」と父が言った。|母は笑った。
彼は「行く。すぐ行く。」と言った。
（雨だった。）|翌日は晴れた。
あの…それは違います。|違うんです。
寺です。|（そう聞いた。）|次へ行く。
これは3.14です。|小数です。
Yahoo!ニュースを読む。|次を見る。
京都．|大阪｡|奈良！
Mr. Smith met Dr. Jones. |They talked.
He lives in the U.S. with us. |The house is old.
"Go." |"Come." |He left.
He said "go." and left.
It costs 3.50 dollars. |See example.com for more.
Is it (really?) so? |Yes.
Am 3. Oktober war es kalt. |Dann kam z.B. Schnee.
On p. 12, see Fig. 3. |Then go on.
No. |I go. |J. S. Bach wrote it.
The temple was built ca. 1600 by monks.
The gate is from c. 1350 and the hall is new.
It takes approx. 30 minutes on foot.
See vol. XII of the chronicle.
The story is in Vol. I, chapter three.
Mori et al. (1998) measured the pillars.
Rep. Sato and Sen. Jones visited the shrine.
Pres. Adams met Maj. Brown near Ft. Worth.
He played Op. 27 on the piano.
She lives in Apt. 5 by the river.
The wall is 30 ft. 6 inches high.
The hall holds max. 40 guests.
Stay min. 3 nights in the inn.
The ticket costs Rs. 500 per person.
Fr. Brown wrote to Messrs. Hill and Wood.
It was sold for Fr. 80 in Geneva.
He was born on Feb. 3 and died on Sept. 9.
The poet (b. 1644, d. 1694) lived here.
Write to Bldg. 4 or call Tel. 1234.
Prof. Ito has a Ph.D. in history.
Smith vs. Jones was decided.
Some fruit, e.g. Apples and pears, is sold.
The shop, i.e. Kato Bros. Store, is old.
Meet Adm. Togo and Cpl. Hicks.
She works for Kato Mfg. Co., Ltd. (Osaka).
He lives on Park Ave. South.
Es war z. B. Schnee, d. h. Eis.
Am 3. Mai kam er ca. 1900 an.
Die Firma zahlte 3 Mio. Euro in der Hauptstr. 5.
John F. Kennedy met J. R. A. Lee in vol. V of No. III.
He studied art. |He was good.
No. |It is new.
He came in 1590. |The castle fell.
They left Kyoto. |12 monks stayed.
He is a sales rep. |She is not.
The lamp was lit. |It was warm.
It costs 50 sen. |That is cheap.
She ate the fig. |It was sweet.
He took the min. |He added it.
The wall is 30 ft. |It is old.
We met at 5 p.m. |The shop was closed.
He lives in the U.S. |He likes it.
He works for Kato Ltd. |It is new.
Smith et al. |The book is old.
He left the inn. |(He came back.)
They sell apples, pears, etc. |The shop is new.
The temple is old. |1600 people live there.
It is a max. |We know it.
It was I. |He knows.
This is vitamin C and D. |We need it.
He has a Ph.D. |He is proud.
I met them in May. |They were well.
Er kam im Jahr 1900. |Dann ging er.
Das Haus ist alt. |Es ist groß.
Yes! |The temple is old.
Well? |He went to Kyoto.
There are many. |In 1600 he died.
She sat. |5 men stood.
"""


@pytest.mark.parametrize("line", SENTENCES.strip().splitlines())
def test_a_text_is_split_where_its_sentences_end(line: str) -> None:
    text, expected = line.replace("|", ""), line.split("|")
    sentences = split_sentences(text)
    assert [sentence + gap for sentence, gap in sentences] == expected
    assert all(sentence == sentence.strip() for sentence, _ in sentences)


@given(st.text(st.sampled_from('寺a。.!?！「」“”"( )（）、\n\r\u2028\t3'), max_size=30))
def test_sentences_and_gaps_are_the_text(text: str) -> None:
    assert "".join(map("".join, split_sentences(text))) == text.lstrip()


# what is to be translated stands between braces
CELLS = """
・{はじめに}
{・・・それから}
- [x] {done}
{-5 degrees}
- {5 temples}
{−5℃まで下がる}
> > 1. {He said so.}
{>= 5 m}
### (iv) {See a|b.}\u3000
{#kyoto is a tag}
{1.5 million}
2.1. {Fares}
３．{料金}
{3. Oktober 1990}
{2019. It was cold.}
{A. Smith wrote it.}
{1、2年前}
1、{奈良}
{①と②の間}
①{宇治（1,200）}
{○○市の人}
※2 {要予約}
\u3000\u3000{むかし} ♪
| {Uji} | 12 % | {a \\| b} |{川}|
|:--|--:|
{p(x | y) and `a | b`} | {Uji}
9:00\t\t{Uji (old)} \t-\t{b}\t
*** 12 ±½ ***
**{京都}**
- *{Kyoto is old.}*\u3000
‘{京都}’ | ~~{Uji}~~ | {‘Nara’}
〜{京都}〜 | __{Uji}__ | {~ 5 km} | {〜京都へ}
<p class="a">{It is old.}<br/>{So is <b>Uji</b>.}</p>
{**a** and **b**}
"""


@pytest.mark.parametrize("line", CELLS.strip("\n").splitlines())
def test_what_stands_around_the_texts_of_a_line_is_told_apart(line: str) -> None:
    cells = split_cells(re.sub("[{}]", "", line))
    assert "".join(f"{{{text}}}{gap}" if text else gap for text, gap in cells) == line


@given(st.text(st.sampled_from("寺a|｜\t\n\r\u2028 ・-#>1.)（(`♪\\*‘’"), max_size=30))
def test_cells_and_gaps_are_the_text(text: str) -> None:
    cells = split_cells(text)
    assert "".join(map("".join, cells)) == text
    assert all(cell == cell.strip() and (cell or not place) for place, (cell, _) in enumerate(cells))
    assert not {*"寺a"} & {*"".join(gap for _, gap in cells)}


@pytest.mark.parametrize(
    ("sentence", "max_length", "expected"),
    [
        ("寺は古い、橋は長い、川は広い", 7, ["寺は古い、", "橋は長い、", "川は広い"]),
        ("one two three four", 9, ["one two", "three", "four"]),
        ("あいうえおかきく", 4, ["あいうえ", "おかきく"]),
        ("1,000,000 birds", 9, ["1,000,000", "birds"]),
        ("short", 9, ["short"]),
    ],
)
def test_what_is_too_long_is_split_at_the_best_place(sentence: str, max_length: int, expected: list[str]) -> None:
    parts = split_long(sentence, lambda part: len(part) <= max_length)
    assert parts == expected
    assert "".join(parts).replace(" ", "") == sentence.replace(" ", "")


def test_text_is_tokenized_where_spaces_separate_marks() -> None:
    plain = [line.replace(" .", ".") for line in EN]
    for text, is_tokenized, is_untokenized in (
        (EN, True, False),
        ([*EN, *plain[:4], *["no stop"] * 20], True, False),
        (plain, False, True),
        ([*plain, "odd . "], False, True),
        ([line.replace(" ", "") for line in JA], False, True),
        (["京都" * 11], False, True),
        *((text, False, False) for text in (["3.5 kg"], ["京都"], [], [""])),
    ):
        assert looks_tokenized(text) == is_tokenized, text
        assert looks_untokenized(text) == is_untokenized, text


# words of plain text

TOKENIZED = ["彼 は 京都 に い る 。", "京都 は 古 い 。", "彼 は １２３４ 年 に 京都 に 来 た 。"] * 2
BY_MOSES = ["a man 's dog runs .", "he said : &quot; it &apos;s a dog ! &quot; the dog didn &apos;t ."]


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ("彼は京都に来た。", "彼 は 京都 に 来 た 。"),
        ("京都は　古い。", "京都 は 古 い 。"),
        ("ペテルブルグは古い。", "ペテルブルグ は 古 い 。"),  # unknown characters are one word
        ("", ""),
    ],
)
def test_plain_japanese_is_split_into_the_likeliest_words_of_the_training_text(plain: str, words: str) -> None:
    learned = Words.learn("ja", TOKENIZED)
    assert learned.split(plain) == words
    assert learned.split(words) == words  # what is separated already stays
    assert learned.join(words) == plain.replace("\u3000", "")
    assert learned.join("彼 は New York に い る 。") == "彼はNew Yorkにいる。"


@pytest.mark.parametrize(
    ("lines", "plain", "words"),
    [
        (BY_MOSES, "He said: “It's a dog.” A dog!", "he said : &quot; it &apos;s a dog . &quot; a dog !"),
        (["A dog 's “ life ” ."], "It's a “dog” & Co.", "It 's a “ dog ” & Co ."),
    ],
    ids=["as Moses writes it", "as it is written"],
)
def test_plain_text_is_split_like_the_training_text(lines: list[str], plain: str, words: str) -> None:
    assert Words.learn("en", lines).split(plain) == words


def test_plain_text_comes_back_from_words_with_capitals_where_sentences_begin() -> None:
    learned = Words.learn("en-GB", BY_MOSES)
    assert learned.join("he didn &apos;t see it . the &quot; dog &quot; did !") == 'He didn\'t see it. The "dog" did!'
    assert Words.learn("de", ["Der Hund ."]).join("der Hund .") == "der Hund."


def test_a_pair_of_tokenizers_takes_plain_text_where_its_run_knows_words(tmp_path: Path) -> None:
    pair = train_tokenizers(replace(WORDS, joint=False), TOKENIZED, BY_MOSES)
    assert plain_text(pair, tmp_path) is pair
    WordPair(Words.learn("ja", TOKENIZED), Words.learn("en", BY_MOSES)).save(tmp_path)
    plain = plain_text(pair, tmp_path)
    sources = [line.replace(" ", "") for line in TOKENIZED]
    assert plain.src.encode(sources) == pair.src.encode(TOKENIZED)
    assert plain.src.split(sources) == pair.src.split(TOKENIZED)
    assert plain.tgt.decode(pair.tgt.encode(BY_MOSES)) == [
        "A man's dog runs.",
        "He said: \"it's a dog!\" the dog didn't.",
    ]
    assert [*map(len, plain)] == [*map(len, pair)]
    assert every_token(plain.tgt) == every_token(pair.tgt)


# Tags, put back around what the words have become that they were around.


def marked(html: str, translation: str, numbers: str) -> tuple[str, str]:
    """The HTML of a translation, and the tags lost, where each of its letters is linked to the one of this number."""
    markup = Markup(html)
    (text,) = markup.texts
    source, target = ([word.span() for word in re.finditer(r"\w", side)] for side in (text.text, translation))
    links = [(source[int(number)], span) for number, span in zip(numbers, target, strict=True) if number != "."]
    return markup.filled([(translation, links)]), " ".join(sorted(markup.lost))


@pytest.mark.parametrize(
    ("html", "translation", "numbers", "expected", "lost"),
    [
        ("<b>A</b> B", "X Y", "01", "<b>X</b> Y", ""),
        ("A <b>B</b>.", "X don't.", "0...1", "X <b>don't</b>.", ""),  # not the full stop
        ("A <b>B</b> C", "Z Y X", "210", "Z <b>Y</b> X", ""),
        ("<a href='?a&amp;b'>A</a> &lt; B", "Y < X", "10", "Y &lt; <a href='?a&amp;b'>X</a>", ""),
        ("<i>A <b>B</b></i> C", "Y X Z", "102", "<i><b>Y</b> X</i> Z", ""),
        ("<i>A <b>B</b></i> C", "Z X Y", "201", "Z <i>X <b>Y</b></i>", ""),
        ("<b>A</b><i>B</i> C", "V Z Y X", ".210", "V Z <i>Y</i> <b>X</b>", ""),
        ("<b>A B</b> C D", "X Y W Z Q", "01.12", "<b>X Y W Z</b> Q", ""),  # what is linked to nothing goes along
        ("<b>A B</b> C D", "X Q R Y Z", "02310", "X Q R <b>Y Z</b>", ""),  # not all between the first and the last
        ("<b>A</b> <i>B</i> C", "X Y Z Q", "0102", "<b>X</b> <i>Y</i> Z Q", ""),  # a neighbour's word parts it
        ("A <img src=x>B C", "Z Y X", "210", "Z <img src=x>Y X", ""),
        ("A <img src=x/>B C", "Z Y X", "2.0", "<img src=x/>Z Y X", ""),
        ("<b>A <wbr>B</b> C", "Z X.", "20", "Z <b>X<wbr></b>.", ""),
        ("A <a id=x></a>B C", "Y X", "10", "<a id=x></a>Y X", ""),
        ("<p> <b>A B</b> </p>", "X", "0", "<p> <b>X</b> </p>", ""),  # around all of it: kept without links
        ("A <b>B <i>C</i><wbr></b> D", "X Y", "03", "X Y", "b i wbr"),
        ("A <b>B C", "X Y", "01", "X Y", "b"),
        ("A</b> B <i>C</i>", "X Y", "02", "X <i>Y</i>", "b"),
        ("A <b>B <i>C</b> D</i>", "X Y Z", "013", "X <b>Y</b> Z", "i"),
        ("A <b>B</b>", "京都のバスだ", "000.1.", "京都の<b>バス</b>だ", ""),
        ("京都<!-- 注 -->は古い。", "Kyo old", "00.33.", "Kyo <!-- 注 -->old", ""),
        ("<!-- x -->A <!-- y -->B<!-- z -->", "Y X", "10", "<!-- x --><!-- y -->Y X<!-- z -->", ""),
        ("A <!-- y -->B", "X", ".", "X", "!--"),
        ("A <i translate=no>B &lt; <u>C</u></i>.", "X y z w.", "0122", "X <i translate=no>B &lt; <u>C</u></i>.", ""),
        ("<b><i class='x notranslate'>A</i> B</b>", "X Z Y", "001", "<b><i class='x notranslate'>A</i> Y</b>", ""),
        ("<i translate=no>A <i>B</i></i> C", "Z X, X", "201", "Z <i translate=no>A <i>B</i></i>", ""),
        (
            "<b translate=yes>A</b> B <i translate=no>C</i> D",
            "X Y",
            "03",
            "<b translate=yes>X</b> <i translate=no>C</i>Y",
            "i",
        ),
        ("<i translate=no>A</i> B", "X", ".", "X", "i"),
        ("A <code>B &lt;</code> C", "X Z Y", "021", "X Z <code>B &lt;</code>", ""),
        (
            "A <math><mi>B</mi><mo>&lt;</mo><mi>C</mi></math> D",
            "X C.",
            "01",
            "X <math><mi>B</mi><mo>&lt;</mo><mi>C</mi></math>.",
            "",
        ),
        ("A <a href=x><b></b><img src=y></a> B", "Y X", "10", "<a href=x><b></b><img src=y></a>Y X", ""),
        ("A <a href=x><img src=y></a> B", "X", ".", "X", "a img"),
        ("<dfn>A</dfn> <x-b>B</x-b> <nobr>C</nobr>", "Z X Y", "201", "<nobr>Z</nobr> <dfn>X</dfn> <x-b>Y</x-b>", ""),
        ("<ruby>京<rp>(<rt>き<b>ょ</b>う<rp>)<rb>都<rt>と</ruby>の<b>寺</b>", "A B", "03", "A <b>B</b>", ""),
        (
            "<i translate=no><ruby>京<rt>&lt;</rt></ruby></i>の寺",
            "B A",
            "20",
            "B <i translate=no><ruby>京<rt>&lt;</rt></ruby></i>",
            "",
        ),
    ],
)
def test_tags_go_with_their_words(html: str, translation: str, numbers: str, expected: str, lost: str) -> None:
    assert marked(html, translation, numbers) == (expected, lost)


@pytest.mark.parametrize(
    "html",
    [
        "<![CDATA[A < B]]>",
        '<?xml version="1.0"?><p>A</p>',
        "<p>A<?php echo 1 ?></p>",
        "<p>A</p><![if !IE]><p>B</p><![endif]>",
        "<!DOCTYPE html><p>A</p>",
        "<style>a > b { }</style><p>A</p><textarea>B &lt; C</textarea>",
        "<p translate='NO'>A<br>B &amp; <b>C</b><p>D</p><span>E</span></p>",
        "<p><b> <i class=notranslate>A &lt; B</i> </b></p>",
        "<i translate=no>A<p>B</p><script>a < b</script>C</i>",
        "<td>→</td><td>... &amp; <b>)</b></td><td>__</td>",
        "<p translate=no title=A><img alt='B'></p><img alt='→'><img alt data-title='A' alt-x=A>",
        "<ruby translate=no>京<rt>きょう</rt></ruby>",
    ],
)
def test_what_is_no_text_stays_as_it_is(html: str) -> None:
    markup = Markup(html)
    assert markup.filled([(text.text, []) for text in markup.texts]) == html
    assert markup.lost == set()


def test_what_is_marked_as_not_to_be_translated_is_no_text() -> None:
    html = "<p translate='no'>A<p>B</p>C</p>D<br translate=no>E<b translate=no>F<p>G</p><script>H</script></b><p>I</p>"
    assert [text.text for text in Markup(html).texts] == ["D", "EF", "I"]


def test_attributes_with_texts_are_translated() -> None:
    html = """<img src="alt='x'" ALT = 'A "&amp;" B'/> <a title=C class="D">E</a><textarea label="F\0">G</textarea>"""
    markup = Markup(html)
    assert [text.text for text in markup.texts] == ['A "&" B', "C", "F", "E"]
    assert markup.filled([("1 \"'&<", []), ("2", []), ("3", []), ("4", [])]) == (
        """<img src="alt='x'" ALT = "1 &quot;&#x27;&amp;&lt;"/> <a title="2" class="D">4</a>"""
        """<textarea label="3">G</textarea>"""
    )


def test_what_has_a_text_of_its_own_parts_sentences() -> None:
    html = "<rt>A<p>B<button>C</button>D<br/>E<svg><text>F</text></svg>"
    assert [text.text for text in Markup(html).texts] == ["B", "C", "D", "E", "F"]


def test_what_is_escaped_inside_an_element_stays_escaped_whatever_the_parser_takes_it_for() -> None:
    class Later(Markup):  # as in Python 3.13.6, which has read the escapes by then
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            super().handle_starttag(tag, attrs)
            self.cdata_elem = "textarea"
            self.handle_data("</textarea><img>")

    assert Later("<textarea>").filled([]) == "<textarea>&lt;/textarea&gt;&lt;img&gt;"


def test_html_that_the_parser_gives_up_is_refused() -> None:
    with pytest.raises(ValueError, match="the HTML cannot be read"):
        Markup("<![ A ]>")


def test_no_tag_begins_before_a_closing_mark() -> None:
    links = [((2, 3), (1, 2)), ((2, 3), (3, 4))]  # of B with both the comma and Y
    text = TaggedText(["A ", Tag("<b>", "b"), "B", Tag("</b>", "b", is_end=True)])
    assert text.filled("X, Y", [((0, 1), (0, 1)), *links]) == "X, <b>Y</b>"


TAGS = ["<b>", "</b>", "<i>", "</i>", "<wbr>", "<a href=x>", "</a>"]
SPAN = st.integers(0, 12).flatmap(lambda begin: st.tuples(st.just(begin), st.integers(begin + 1, 14)))


@given(st.lists(st.sampled_from(["A ", "B", "京都は", *TAGS])), st.lists(st.tuples(SPAN, SPAN)))
def test_any_tags_are_well_nested(parts: list[str], links: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    names = {tag: tag.strip("<>/").split()[0] for tag in TAGS}
    tags = {tag: Tag(tag, name, is_end="/" in tag, is_point=name == "wbr") for tag, name in names.items()}
    text, translation = TaggedText([tags.get(part, part) for part in ["A", *parts, "B"]]), "X & Y, 古いZ."
    filled = text.filled(translation, links)
    assert re.sub("<.*?>", "", filled) == translation
    opened: list[str] = []
    for end, name in re.findall(r"<(/?)(\w+)", filled.replace("<wbr>", "")):
        if not end:
            opened.append(name)
            continue
        assert opened.pop() == name
    assert not opened
    assert {names[part] for part in parts if part in tags and names[part] not in filled} <= text.lost


def test_elements_in_one_another_have_a_limit() -> None:
    html, lost = marked(f"A {'<b>' * 70}B{'</b>' * 70} C", "X Y", "01")
    assert re.fullmatch("X (<b>)+Y(</b>)+", html)
    assert (html.count("<b>"), html.count("</b>"), lost) == (64, 64, "b")
