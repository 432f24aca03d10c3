from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from utils.dataset.monolingual import MonolingualConfig, prepare_monolingual
from utils.text.tokenizer import TokenizerConfig

Files = dict[str, bytes]
Write = Callable[[Path, Files], Path]


def quiet(_: str) -> None: ...


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Twenty sentences of your own."""
    path = tmp_path / "own.ja"
    path.write_text("".join(f"都 {i}\n" for i in range(20)))
    return path


def documents(tmp_path: Path, *sizes: int) -> Path:
    path = tmp_path / "own.docs"
    path.write_text("".join(f"D{i} {size}\n" for i, size in enumerate(sizes)))
    return path


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.usefixtures("toy")
def test_a_published_corpus_has_the_side_of_the_language(
    tmp_path: Path, root: Path, toy_files: Files, write_tar: Write
) -> None:
    config = MonolingualConfig("tanaka", archive=write_tar(tmp_path / "toy.tar.gz", toy_files))
    ja, en = (prepare_monolingual(replace(config, language=language), root) for language in ("ja", "en"))
    assert lines(ja.train) == ["都", "京の都", "古い都"]
    assert lines(en.train) == ["capital", "the capital Kyo", "an old capital"]
    assert (lines(en.dev), lines(en.test)) == (["temple"], ["bridge", "river"])
    assert [(corpus.name, corpus.language, corpus.pre_tokenized) for corpus in (ja, en)] == [
        ("toy", "ja", False),
        ("toy", "en", False),
    ]
    assert ja.documents == en.documents == (("all", 3),)
    assert ja.fingerprint(root) != en.fingerprint(root)


@pytest.mark.parametrize("corpus", ["kftt", "embedded"])
def test_a_language_that_a_corpus_lacks_is_refused(corpus: Literal["kftt", "embedded"], root: Path) -> None:
    with pytest.raises(ValueError, match=rf"^corpus={corpus} has ja and en, not language=de$"):
        prepare_monolingual(MonolingualConfig(corpus, "de"), root)


def test_a_language_is_named_by_its_code() -> None:
    with pytest.raises(ValueError, match=r"^language=jp is no language code: did you mean ja\?$"):
        MonolingualConfig("files", "jp")


def test_the_embedded_corpus_needs_nothing(root: Path) -> None:
    corpus = prepare_monolingual(MonolingualConfig("embedded", "en"), root)
    assert all(line.isascii() for path in (corpus.train, corpus.dev, corpus.test) for line in lines(path))


def test_documents_must_be_those_of_the_text(tmp_path: Path, own: Path, root: Path) -> None:
    path = documents(tmp_path, 12, 7)
    message = (
        rf"^documents={path} counts 19 lines, but {own} has 20: "
        "give the file that belongs to this text, or leave it out$"
    )
    for dev in (None, own):
        with pytest.raises(ValueError, match=message):
            prepare_monolingual(MonolingualConfig(text=own, dev_text=dev, test_text=dev, documents=path), root)


def test_texts_that_are_all_given_are_taken_as_they_are(tmp_path: Path, own: Path, root: Path) -> None:
    config = MonolingualConfig(
        text=own, dev_text=tmp_path / "dev", test_text=tmp_path / "test", documents=documents(tmp_path, 13, 7)
    )
    for name in ("dev", "test"):
        (tmp_path / name).write_text("x\n")
    corpus = prepare_monolingual(config, root)
    assert (corpus.train, corpus.dev, corpus.test) == (own, tmp_path / "dev", tmp_path / "test")
    assert corpus.documents == (("D0", 13), ("D1", 7))
    assert (corpus.name, corpus.language) == ("files", "ja")


def test_the_end_of_ones_own_text_is_held_out(tmp_path: Path, own: Path, root: Path) -> None:
    whole = lines(own)
    config = MonolingualConfig(text=own, held_out=3)
    corpus = prepare_monolingual(config, root)
    assert [lines(path) for path in (corpus.train, corpus.dev, corpus.test)] == [whole[:14], whole[14:17], whole[17:]]
    assert corpus.documents == (("all", 14),)
    again = prepare_monolingual(config, root)
    assert again == corpus
    (tmp_path / "dev").write_text("x\n")
    corpus = prepare_monolingual(replace(config, dev_text=tmp_path / "dev"), root)
    assert corpus.dev == tmp_path / "dev"
    assert [lines(path) for path in (corpus.train, corpus.test)] == [whole[:17], whole[17:]]


def test_of_a_text_with_documents_whole_ones_are_held_out(tmp_path: Path, own: Path, root: Path) -> None:
    whole = lines(own)
    config = MonolingualConfig(text=own, held_out=3, documents=documents(tmp_path, 6, 5, 2, 2, 5))
    corpus = prepare_monolingual(config, root)
    assert [lines(path) for path in (corpus.train, corpus.dev, corpus.test)] == [whole[:11], whole[11:15], whole[15:]]
    assert corpus.documents == (("D0", 6), ("D1", 5))


def test_dev_that_was_held_out_is_not_taken_for_test(tmp_path: Path, own: Path, root: Path) -> None:
    """The same text, cut in the same places, for another purpose."""
    given = tmp_path / "given.txt"
    given.write_text("a line\n")
    test = prepare_monolingual(MonolingualConfig(text=own, held_out=3, dev_text=given), root).test
    dev = prepare_monolingual(MonolingualConfig(text=own, held_out=3, test_text=given), root).dev
    assert lines(dev) == lines(test)
    assert dev.name == "dev"


@pytest.mark.parametrize(("held_out", "sizes"), [(6, (20,)), (3, (8, 6, 6)), (50, (10, 10))])
def test_more_than_half_is_not_held_out(
    tmp_path: Path, own: Path, root: Path, held_out: int, sizes: tuple[int]
) -> None:
    config = MonolingualConfig(text=own, held_out=held_out, documents=documents(tmp_path, *sizes))
    with pytest.raises(ValueError, match=rf"^held_out={held_out} is too many of 20 lines in {len(sizes)} documents"):
        prepare_monolingual(config, root)
    with pytest.raises(ValueError, match=r"^held_out=0 leaves no dev and no test text: give at least 1$"):
        prepare_monolingual(replace(config, held_out=0), root)


def test_what_is_not_there_or_makes_no_sense_is_refused(tmp_path: Path, own: Path, root: Path) -> None:
    for config, message in (
        (MonolingualConfig("files"), r"^corpus=files needs a training text: give text=FILE$"),
        (MonolingualConfig(dev_text=own), r"^corpus=files needs a training text"),
        (MonolingualConfig(test_text=own), r"^corpus=files needs a training text"),
        (MonolingualConfig(text=tmp_path / "x"), rf"^text={tmp_path}/x: no such file$"),
        (MonolingualConfig(text=own, test_text=tmp_path / "x"), rf"^test_text={tmp_path}/x: no such file$"),
        (MonolingualConfig(text=own, archive=own), r"^archive=.* is for published corpora \(kftt, .*\): leave it out$"),
        (MonolingualConfig(text=own, documents=tmp_path / "x"), rf"^no such file: {tmp_path}/x$"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare_monolingual(config, root)


def test_the_fingerprint_is_of_texts_and_documents(tmp_path: Path, own: Path, root: Path) -> None:
    config = MonolingualConfig(text=own, dev_text=own, test_text=own)
    prints = {prepare_monolingual(config, root).fingerprint(root)}
    assert prepare_monolingual(config, root).fingerprint(root) in prints
    for sizes in ((10, 10), (9, 11)):
        changed = prepare_monolingual(replace(config, documents=documents(tmp_path, *sizes)), root)
        prints.add(changed.fingerprint(root))
    for part in ("text", "dev_text", "test_text"):
        (tmp_path / part).write_text("".join(lines(own)))
        prints.add(prepare_monolingual(replace(config, **{part: tmp_path / part}), root).fingerprint(root))  # type: ignore[arg-type]
    assert len(prints) == 6


def test_tokens_are_of_the_split_and_its_documents(tmp_path: Path, own: Path, root: Path) -> None:
    own.write_text("都 1\n\n都 2\n都 3\n" + "\n" + 5 * "都 4\n")
    corpus = prepare_monolingual(
        MonolingualConfig(text=own, documents=documents(tmp_path, 3, 1, 1, 5), dev_text=own, test_text=own), root
    )
    tokenizer = corpus.tokenizer(TokenizerConfig("word", min_freq=2), quiet, root)
    assert tokenizer.tokens(range(4, len(tokenizer))) == ["都", "4"]
    train, dev = (corpus.tokens(split, tokenizer, quiet, root) for split in ("train", "dev"))
    assert train.bounds.tolist() == [0, 2, 3, 8]
    assert dev.bounds.tolist() == [0, 8]
    assert train.lines[int(train.rows[1])].tolist() == [4, 1]
    assert tokenizer.decode([train.lines[int(train.rows[7])].tolist()]) == ["都 4"]


def test_half_may_be_held_out(own: Path, root: Path) -> None:
    assert lines(prepare_monolingual(MonolingualConfig(text=own, held_out=5), root).train) == lines(own)[:10]


def test_documents_of_just_so_many_lines_are_enough(tmp_path: Path, own: Path, root: Path) -> None:
    config = MonolingualConfig(text=own, held_out=3, documents=documents(tmp_path, 10, 4, 3, 3))
    corpus = prepare_monolingual(config, root)
    assert [len(lines(path)) for path in (corpus.train, corpus.dev, corpus.test)] == [14, 3, 3]
