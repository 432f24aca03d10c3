from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from config.data import TokenizerConfig
from const.token import UNK_ID
from utils.text.tokenizer import (
    SentencePieceTokenizer,
    Tokenizer,
    TokenizerPair,
    WordTokenizer,
    load_tokenizer,
    load_tokenizers,
    train_tokenizer,
    train_tokenizers,
)

JA = ["京都 は 日本 の 古都 で ある 。", "古い 橋 が 1234 年 に 川 に 架けられた 。", "古い 寺 が 京都 に ある 。"] * 5
EN = ["Kyoto is an old capital of Japan .", "The old Bridge was built in 1234 .", "There is an old temple ."] * 5
SUBWORDS = TokenizerConfig("unigram", vocab_size=80, character_coverage=1.0)
WORDS = TokenizerConfig("word", min_freq=1)
CONFIGS = {"unigram": SUBWORDS, "bpe": replace(SUBWORDS, kind="bpe"), "word": WORDS}


def pieces(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.tokens(range(len(tokenizer)))


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> TokenizerConfig:
    return CONFIGS[request.param]


def test_a_joint_vocabulary_is_one_object_that_knows_both_sides(config: TokenizerConfig) -> None:
    src, tgt = train_tokenizers(config, JA, EN)
    assert src is tgt
    assert not any(UNK_ID in ids for ids in src.encode([*JA, *EN]))


def test_separate_vocabularies_know_their_own_side_alone(config: TokenizerConfig) -> None:
    small = replace(config, joint=False, vocab_size=50)
    src, tgt = train_tokenizers(small, JA, EN)
    assert src is not tgt
    assert not any(UNK_ID in ids for ids in [*src.encode(JA), *tgt.encode(EN)])
    assert UNK_ID in src.encode(["Kyoto"])[0]
    assert UNK_ID in tgt.encode(["京都"])[0]
    other_src, same_tgt = train_tokenizers(small, EN, EN)
    assert pieces(other_src) == pieces(same_tgt) == pieces(tgt)


@pytest.mark.parametrize("joint", [True, False])
def test_saved_and_loaded_they_are_the_same(tmp_path: Path, config: TokenizerConfig, joint: bool) -> None:
    pair = train_tokenizers(replace(config, joint=joint, vocab_size=80 if joint else 50), JA, EN)
    pair.save(tmp_path)
    loaded = load_tokenizers(tmp_path)
    assert (loaded.src is loaded.tgt) is joint
    for ours, theirs in zip(loaded, pair, strict=True):
        assert type(ours) is type(theirs)
        assert pieces(ours) == pieces(theirs)
        assert ours.encode([*JA, *EN]) == theirs.encode([*JA, *EN])
    suffix = "json" if config.kind == "word" else "model"
    names = ["tokenizer"] if joint else ["tokenizer_src", "tokenizer_tgt"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{name}.{suffix}" for name in names]


def test_each_setting_arrives() -> None:
    def differs(**changes: object) -> tuple[Tokenizer, Tokenizer]:
        return train_tokenizers(SUBWORDS, JA, EN).src, train_tokenizers(replace(SUBWORDS, **changes), JA, EN).src  # type: ignore[arg-type]

    before, after = differs(vocab_size=60)
    assert len(before) > len(after) == 60
    before, after = differs(kind="bpe")
    assert pieces(before) != pieces(after)
    before, after = differs(normalization="nfkc_cf")
    assert after.decode(after.encode(["Bridge"])) == ["bridge"] != before.decode(before.encode(["Bridge"]))
    before, after = differs(character_coverage=0.98)
    assert not any(UNK_ID in ids for ids in before.encode([*JA, *EN]))
    assert any(UNK_ID in ids for ids in after.encode([*JA, *EN]))


def test_each_setting_of_words_arrives() -> None:
    lower = train_tokenizers(replace(WORDS, lowercase=True), JA, EN).tgt
    assert lower.encode(["BRIDGE"]) == lower.encode(["bridge"]) != [[UNK_ID]]
    frequent = train_tokenizers(replace(WORDS, min_freq=15), JA, EN).tgt
    assert frequent.encode(["Bridge"]) == [[UNK_ID]] != frequent.encode(["old"])


def test_a_vocabulary_that_the_text_cannot_give_is_refused_with_its_number() -> None:
    with pytest.raises(ValueError, match=r"^tokenizer\.vocab_size=9876 does not fit 30 lines[^\n]*$"):
        train_tokenizers(TokenizerConfig("bpe", 9876), JA, EN)
    with pytest.raises(ValueError, match=r"^tokenizer\.vocab_size=9876 does not fit 15 lines[^\n]*$"):
        train_tokenizers(TokenizerConfig("bpe", 9876, joint=False), JA, EN)


@pytest.mark.parametrize("coverage", [0.97, 1.01, float("nan")])
def test_a_coverage_that_sentencepiece_does_not_take_is_refused(coverage: float) -> None:
    with pytest.raises(ValueError, match=rf"^character_coverage={coverage}: SentencePiece takes 0\.98 to 1$"):
        TokenizerConfig(character_coverage=coverage)


@pytest.mark.parametrize("present", [[], ["tokenizer_src.json"], ["tokenizer_tgt.json"], ["tokenizer.txt"]])
def test_a_folder_without_both_is_refused(tmp_path: Path, present: list[str]) -> None:
    words = WordTokenizer(["a"], lowercase=False)
    words.save(tmp_path / "saved")
    for name in present:
        (tmp_path / name).write_bytes((tmp_path / "saved.json").read_bytes())
    with pytest.raises(ValueError, match=rf"^no tokenizer in {tmp_path}: give the folder of a training run$"):
        load_tokenizers(tmp_path)


def test_the_two_sides_may_be_of_different_kinds(tmp_path: Path) -> None:
    subwords = SentencePieceTokenizer.train(JA, "bpe", 50, 1.0, "identity")
    TokenizerPair(subwords, WordTokenizer(["a"], lowercase=False)).save(tmp_path)
    src, tgt = load_tokenizers(tmp_path)
    assert pieces(src) == pieces(subwords)
    assert pieces(tgt)[4:] == ["a"]


def test_a_single_tokenizer_knows_its_lines_alone_and_is_found_again(tmp_path: Path, config: TokenizerConfig) -> None:
    config = replace(config, vocab_size=50)
    tokenizer = train_tokenizer(config, EN)
    assert pieces(tokenizer) == pieces(train_tokenizers(replace(config, joint=False), JA, EN).tgt)
    tokenizer.save(tmp_path / "tokenizer")
    assert pieces(load_tokenizer(tmp_path)) == pieces(tokenizer)
    assert pieces(load_tokenizers(tmp_path).src) == pieces(tokenizer)


def test_of_two_tokenizers_none_is_the_single_one(tmp_path: Path) -> None:
    message = rf"^no single tokenizer in {tmp_path}: give the folder of a run that learned from one language$"
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)
    train_tokenizers(TokenizerConfig("word", joint=False), JA, EN).save(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("sampling", [-0.1, 1.1, float("nan")])
def test_a_sampling_that_is_no_share_is_refused(sampling: float) -> None:
    with pytest.raises(ValueError, match=rf"^sampling={sampling} is not a share: give 0 \(no sampling\) to 1"):
        TokenizerConfig(sampling=sampling)


def test_words_are_not_sampled() -> None:
    message = (
        r"^sampling=0\.1 splits words into pieces, kind=word keeps them whole: set it to 0, or kind to unigram or bpe$"
    )
    with pytest.raises(ValueError, match=message):
        TokenizerConfig("word", sampling=0.1)
    with pytest.raises(ValueError, match=r"^tokenizer\.sampling=0\.1 splits words into pieces"):
        WordTokenizer(["a"], lowercase=False).sample(["a"], 0.1, 1)


def test_lines_need_not_be_a_list(config: TokenizerConfig) -> None:
    class Twice:
        def __len__(self) -> int:
            return len(JA)

        def __iter__(self) -> Iterator[str]:
            return iter(JA)

    assert pieces(train_tokenizers(config, Twice(), EN).src) == pieces(train_tokenizers(config, JA, EN).src)


def test_only_whole_words_are_lower_cased() -> None:
    with pytest.raises(ValueError, match=r"^lowercase=true needs kind=word: with kind=bpe give normalization nfkc_cf"):
        TokenizerConfig("bpe", lowercase=True)


def test_a_tag_begins_each_source_and_no_text_is_encoded_to_it(tmp_path: Path) -> None:
    pair = train_tokenizers(replace(SUBWORDS, tag=True, joint=True, vocab_size=100), JA, EN, ("ja", "en"))
    pair.save(tmp_path)
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
    with pytest.raises(ValueError, match="tag=true"):
        TokenizerConfig(tag=True, joint=False)
