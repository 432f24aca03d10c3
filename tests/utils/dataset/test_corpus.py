from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from const.corpora import CORPORA
from utils.dataset.corpus import DataConfig, prepare_corpus, prepare_to_score
from utils.dataset.text import ParallelFiles, ParallelText, read_parallel

Files = dict[str, bytes]
Write = Callable[[Path, Files], Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


@pytest.fixture
def own(tmp_path: Path) -> ParallelFiles:
    """Twenty sentences of your own."""
    files = ParallelFiles(tmp_path / "own.ja", tmp_path / "own.en")
    files.src.write_text("".join(f"都{i}\u2028\r\n" for i in range(20)), newline="")
    files.tgt.write_text("".join(f"capital {i}\n" for i in range(20)))
    return files


def lines(*texts: ParallelText) -> list[str]:
    return [line for text in texts for line in text.src]


@pytest.mark.usefixtures("toy")
def test_a_published_corpus_is_installed_and_read_in_either_direction(
    tmp_path: Path, root: Path, toy_files: Files, write_tar: Write
) -> None:
    config = DataConfig(corpus="tanaka", archive=write_tar(tmp_path / "toy.tar.gz", toy_files))
    corpus = prepare_corpus(config, root)
    assert read_parallel(corpus.test) == ParallelText(["橋", "川"], ["bridge", "river"])
    assert read_parallel(corpus.dev) == ParallelText(["寺"], ["temple"])
    back = prepare_corpus(replace(config, src_lang="en", tgt_lang="ja"), root)
    assert back.train == ParallelFiles(corpus.train.tgt, corpus.train.src)
    assert (back.src_lang, back.tgt_lang) == ("en", "ja")


def test_the_embedded_corpus_needs_nothing(root: Path) -> None:
    corpus = prepare_corpus(DataConfig(corpus="embedded", src_lang="en", tgt_lang="ja"), root)
    train, dev, test = (read_parallel(files) for files in (corpus.train, corpus.dev, corpus.test))
    assert len(train) > len(dev) > 0
    assert len(test) > 0
    assert all(line.isascii() for line in test.src)
    assert not any(line.isascii() for line in test.tgt)


@pytest.mark.parametrize(("corpus", "first", "second"), [("multi30k", "de", "en"), ("kftt", "ja", "en")])
@pytest.mark.parametrize(("src", "tgt"), [("ja", "de"), ("en", "en"), ("fr", "en")])
def test_a_direction_that_a_corpus_lacks_is_refused(
    corpus: Literal["multi30k", "kftt"], first: str, second: str, src: str, tgt: str, root: Path
) -> None:
    message = (
        f"corpus={corpus} has {first} and {second}, not src_lang={src} to tgt_lang={tgt}: "
        f"give --data.src_lang {first} --data.tgt_lang {second}, or the other way round"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        prepare_corpus(DataConfig(corpus=corpus, src_lang=src, tgt_lang=tgt), root)


def test_own_files_are_enough_and_leave_some_lines_for_dev_and_test(own: ParallelFiles, root: Path) -> None:
    config = DataConfig(src=own.src, tgt=own.tgt, held_out=3)
    corpus = prepare_corpus(config, root)
    train, dev, test = (read_parallel(files) for files in (corpus.train, corpus.dev, corpus.test))
    assert corpus.name == "files"
    assert [len(train), len(dev), len(test)] == [14, 3, 3]
    assert sorted(lines(train, dev, test)) == sorted(read_parallel(own).src)
    for text in (train, dev, test):
        assert [src.strip("都\u2028") for src in text.src] == [tgt.removeprefix("capital ") for tgt in text.tgt]
    assert b"\r" not in corpus.train.src.read_bytes()
    assert prepare_corpus(config, root) == corpus
    assert len(list(root.iterdir())) == 1


def test_own_dev_and_test_files_are_used_where_they_lie(own: ParallelFiles, root: Path) -> None:
    both = DataConfig(src=own.src, tgt=own.tgt, dev_src=own.src, dev_tgt=own.tgt, test_src=own.src, test_tgt=own.tgt)
    assert {*prepare_corpus(both, root).train, *prepare_corpus(both, root).test} == set(own)
    assert not root.exists()
    corpus = prepare_corpus(replace(both, test_src=None, test_tgt=None, held_out=5), root)
    assert corpus.dev == own
    assert [len(read_parallel(files)) for files in (corpus.train, corpus.test)] == [15, 5]


def test_scoring_needs_no_more_than_the_text_that_is_scored_on(own: ParallelFiles, root: Path, tmp_path: Path) -> None:
    gone = ParallelFiles(tmp_path / "gone.ja", tmp_path / "gone.en")
    config = DataConfig(src=gone.src, tgt=gone.tgt, more_src=gone.src, more_tgt=gone.tgt)
    scored = replace(config, dev_src=own.src, dev_tgt=own.tgt, test_src=own.tgt, test_tgt=own.src)
    corpus = prepare_to_score(scored, root)
    assert (corpus.dev, corpus.test) == (own, ParallelFiles(own.tgt, own.src))
    embedded = DataConfig(corpus="embedded", more_src=gone.src, more_tgt=gone.tgt)
    assert prepare_to_score(embedded, root) == prepare_corpus(DataConfig(corpus="embedded"), root)
    with pytest.raises(ValueError, match=r"^more_src=.*gone\.ja: no such file$"):
        prepare_corpus(scored, root)
    held_out_of_it = replace(scored, test_src=None, test_tgt=None)
    with pytest.raises(ValueError, match=r"^src=.*gone\.ja: no such file$"):
        prepare_to_score(held_out_of_it, root)


def test_each_way_to_split_a_text_has_a_folder_of_its_own(own: ParallelFiles, root: Path) -> None:
    config = DataConfig(src=own.src, tgt=own.tgt, held_out=3)
    prepare_corpus(config, root)
    others = replace(config, held_out=4), replace(config, dev_src=own.src, dev_tgt=own.tgt)
    for other, sizes in zip(others, ([12, 4, 4], [17, 20, 3]), strict=True):
        corpus = prepare_corpus(other, root)
        assert [len(read_parallel(files)) for files in (corpus.train, corpus.dev, corpus.test)] == sizes


def test_edited_files_are_split_anew(own: ParallelFiles, root: Path) -> None:
    config = DataConfig(src=own.src, tgt=own.tgt, held_out=3)
    before = prepare_corpus(config, root)
    fingerprint = before.fingerprint()
    own.tgt.write_text(own.tgt.read_text().replace("capital", "city"))
    after = prepare_corpus(config, root)
    assert fingerprint == before.fingerprint() != after.fingerprint()
    assert all("city" in line for line in read_parallel(after.test).tgt)


def test_the_fingerprint_is_of_content_and_direction(own: ParallelFiles, root: Path, tmp_path: Path) -> None:
    corpus = prepare_corpus(DataConfig(src=own.src, tgt=own.tgt, held_out=3), root)
    elsewhere = prepare_corpus(DataConfig(src=own.src, tgt=own.tgt, held_out=3), tmp_path / "elsewhere")
    assert elsewhere.fingerprint() == corpus.fingerprint()
    back = replace(corpus, **{split: getattr(corpus, split)[::-1] for split in ("train", "dev", "test")})
    assert back.fingerprint() != corpus.fingerprint()
    for files in (corpus.train, corpus.dev, corpus.test):
        for path in files:
            content = path.read_bytes()
            path.write_bytes(content.replace(b"1", b"2", 1) if b"1" in content else content + b"1")
            assert corpus.fingerprint() != elsewhere.fingerprint()
            path.write_bytes(content)
    assert elsewhere.fingerprint() == corpus.fingerprint()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tgt": None}, r"^src=.*own\.ja is missing its counterpart: also give --data\.tgt FILE$"),
        ({"src": None}, r"^tgt=.*own\.en is missing its counterpart: also give --data\.src FILE$"),
        ({"dev_tgt": Path("x")}, r"^dev_tgt=x is missing its counterpart: also give --data\.dev_src FILE$"),
        ({"src": Path("nowhere.ja")}, r"^src=nowhere\.ja: no such file$"),
        ({"src": None, "tgt": None}, r"^your own texts need both sides .*: give --data\.src FILE --data\.tgt FILE$"),
        ({"archive": Path("a.tar")}, r"^archive=a\.tar is for published corpora \(kftt, .*\): leave it out$"),
        ({"held_out": 0}, r"^held_out=0 leaves no dev and no test text: give at least 1$"),
        ({"held_out": 5}, r"^held_out=5 is too many of 20 distinct pairs, .*: lower --data\.held_out or give --data"),
    ],
)
def test_own_files_that_do_not_do_are_refused(
    changes: dict[str, Path | int | None], message: str, own: ParallelFiles, root: Path
) -> None:
    config = replace(DataConfig(corpus="files", src=own.src, tgt=own.tgt), **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        prepare_corpus(config, root)
    assert not root.exists()


@pytest.fixture
def more(tmp_path: Path, own: ParallelFiles) -> ParallelFiles:
    """All of your own sentences, the other way round, and one more, without a line feed at its end."""
    files = ParallelFiles(tmp_path / "more.ja", tmp_path / "more.en")
    for path, line, original in zip(files, ("橋", "bridge"), (own.tgt, own.src), strict=True):
        path.write_text(original.read_text(encoding="utf-8") + line, encoding="utf-8")
    return files


def test_more_text_joins_any_training_text_but_not_what_is_scored_on(
    own: ParallelFiles, more: ParallelFiles, root: Path
) -> None:
    for config in (DataConfig(corpus="embedded"), DataConfig(src=own.src, tgt=own.tgt, held_out=3)):
        without = prepare_corpus(config, root)
        config = replace(config, more_src=more.src, more_tgt=more.tgt)
        corpus = prepare_corpus(config, root)
        assert (corpus.name, corpus.dev, corpus.test) == (without.name, without.dev, without.test)
        scored = lines(*map(read_parallel, (without.dev, without.test)))
        train, further = read_parallel(without.train), read_parallel(more)
        added = [src for src, tgt in zip(further.src, further.tgt, strict=True) if tgt not in scored]
        assert read_parallel(corpus.train).src == train.src + added
        assert len(added) == (21 if config.corpus == "embedded" else 15)
        assert corpus.more == (len(added), 21 - len(added))
        assert corpus.fingerprint() != without.fingerprint()
        assert prepare_corpus(config, root) == corpus


@pytest.mark.parametrize("side", ["more_src", "more_tgt"])
def test_more_text_needs_both_sides(side: str, own: ParallelFiles, root: Path) -> None:
    config = replace(DataConfig(corpus="embedded"), **{side: own.src})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"^{side}=.* is missing its counterpart: also give --data.more_"):
        prepare_corpus(config, root)
    assert not root.exists()


@pytest.mark.parametrize("side", ["dev_src", "dev_tgt", "test_src", "test_tgt"])
def test_an_own_file_of_any_kind_is_of_an_own_text(side: str, own: ParallelFiles, root: Path) -> None:
    config = replace(DataConfig(), **{side: own.src})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^your own texts need both sides of the training text"):
        prepare_corpus(config, root)


def test_own_files_that_do_not_match_leave_nothing(own: ParallelFiles, root: Path) -> None:
    own.tgt.write_text("capital\n")
    with pytest.raises(ValueError, match=r"own\.ja has 20 lines but .*own\.en has 1: "):
        prepare_corpus(DataConfig(src=own.src, tgt=own.tgt), root)
    assert not root.exists()


@pytest.mark.parametrize(
    ("name", "archive", "src"),
    [
        ("kftt", "kftt-data-1.0.tar.xz", "ja"),
        ("tanaka", "small_parallel_enja.tar.xz", "ja"),
        ("multi30k", "multi30k.tar.xz", "de"),
        ("multi30k_tok", "multi30k.tar.xz", "de"),
    ],
)
def test_the_real_archives_are_the_published_corpora(
    name: Literal["kftt", "tanaka", "multi30k", "multi30k_tok"], archive: str, src: str, root: Path, shared_data: Path
) -> None:
    config = DataConfig(corpus=name, src_lang=src, archive=shared_data / archive)
    corpus = prepare_corpus(config, root)
    spec = CORPORA[name]
    for split, files in zip(spec.splits, (corpus.train, corpus.dev, corpus.test), strict=True):
        assert len(read_parallel(files)) == split.lines
    assert all((root / name / split.path(src)).is_file() for split in spec.extra)
    assert prepare_corpus(replace(config, archive=None), root) == corpus
