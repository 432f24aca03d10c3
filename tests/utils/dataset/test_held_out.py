from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.dataset.text import ParallelFiles, count_shared, hold_out, read_lines, write_joined, write_split

sides = st.text("都京 ", max_size=3)
pairs = st.lists(st.tuples(sides, sides), max_size=60).map(lambda drawn: [*drawn, ("都", "京")])
Pairs = list[tuple[str, str]]


def text(folder: Path, pairs: Pairs) -> ParallelFiles:
    files = ParallelFiles(folder / "src", folder / "tgt")
    for path, lines in zip(files, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return files


def pairs_of(files: ParallelFiles) -> Pairs:
    src, tgt = (path.read_text(encoding="utf-8").split("\n")[:-1] for path in files)
    return [(src.strip(), tgt.strip()) for src, tgt in zip(src, tgt, strict=True)]


@given(pairs=pairs, n_dev=st.integers(0, 3), n_test=st.integers(0, 3))
def test_no_held_out_pair_is_trained_on_and_none_is_lost(
    pairs: Pairs, n_dev: int, n_test: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("text")
    files = text(folder, pairs)
    distinct = {frozenset(pair) for pair in pairs_of(files) if all(pair)}
    if len(distinct) <= 2 * (n_dev + n_test):
        message = f"^held_out={max(n_dev, n_test)} is too many of {len(distinct)} distinct pairs"
        with pytest.raises(ValueError, match=message):
            hold_out(files, n_dev, n_test)
        return
    into = [ParallelFiles(folder / f"{i}.src", folder / f"{i}.tgt") for i in range(3)]
    chosen, *lines = hold_out(files, n_dev, n_test)
    write_split(files, chosen, lines, into)
    rest, *held = map(pairs_of, into)
    held_pairs = [pair for one in held for pair in one]
    assert [len(one) for one in held] == [n_dev, n_test]
    held_sets = set(map(frozenset, held_pairs))
    assert len(held_sets) == n_dev + n_test  # neither twice nor in dev and test both, nor the other way round
    assert all(src and tgt for src, tgt in held_pairs)
    assert rest == [pair for pair in pairs_of(files) if frozenset(pair) not in held_sets]


def test_the_choice_is_as_good_as_random_and_always_the_same(tmp_path: Path) -> None:
    files = text(tmp_path, [(f"都{i}", f"capital {i}") for i in range(100)])
    rest, dev, test = hold_out(files, 20, 20)
    assert hold_out(files, 20, 20)[1:] == (dev, test)
    rows = dev + test
    assert len(set(rows)) == 40
    assert min(rows) < 20
    assert max(rows) > 80
    assert rows != sorted(rows)
    assert rest.sum() == 60
    assert hold_out(files, 20, 0)[1:] == (dev, [])
    assert hold_out(files, 0, 20)[1:] == ([], test)


@given(old=pairs, new=pairs, n=st.integers(1, 3))
def test_what_was_trained_on_is_never_held_out_when_the_text_grows(
    old: Pairs, new: Pairs, n: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A run is resumed, or fine-tuned, after lines were added anywhere."""
    old = [*old, *((f"都 {i}", f"京 {i}") for i in range(13))]
    splits = []
    for pairs in (old, new[: len(new) // 2] + old + new[len(new) // 2 :]):
        files = text(tmp_path_factory.mktemp("text"), pairs)
        stripped = pairs_of(files)
        rest, *held = hold_out(files, n, n)
        splits.append([{stripped[i] for i in rows} for rows in ([*map(int, rest.nonzero()[0])], *held)])
    (trained, dev, test), (_, later_dev, later_test) = splits
    assert not trained & (later_dev | later_test)
    assert not dev & later_test
    assert not test & later_dev


def test_held_out_lines_are_as_they_were_and_those_that_were_always_held_out(tmp_path: Path) -> None:
    """Runs from before are compared on these sentences."""
    files = text(tmp_path, [(f" 都{i}", f"capital {i} ") for i in range(12)])
    dev = ParallelFiles(tmp_path / "dev.src", tmp_path / "dev.tgt")
    rest, lines, _ = hold_out(files, 3, 0)
    write_split(files, rest, [lines], [ParallelFiles(tmp_path / "a", tmp_path / "b"), dev])
    assert read_lines(dev.src) == [" 都10", " 都7", " 都9"]
    assert read_lines(dev.tgt) == ["capital 10 ", "capital 7 ", "capital 9 "]


def test_both_directions_hold_out_the_same_pairs(tmp_path: Path) -> None:
    files = text(tmp_path, [(f"都{i}", f"capital {i}") for i in range(100)])
    _, *held = hold_out(files, 20, 20)
    _, *other_way = hold_out(ParallelFiles(files.tgt, files.src), 20, 20)
    assert held == other_way


@given(train=pairs, more=pairs, dev=pairs, test=pairs)
def test_more_text_is_added_without_what_is_scored_on(
    train: Pairs, more: Pairs, dev: Pairs, test: Pairs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files, further, *held = (text(tmp_path_factory.mktemp("text"), one) for one in (train, more, dev, test))
    folder = tmp_path_factory.mktemp("joined")
    into = ParallelFiles(folder / "src", folder / "tgt")
    found = write_joined(files, further, held, into)
    scored = {line for one in held for pair in pairs_of(one) for line in pair if line}
    added = [pair for pair in pairs_of(further) if not scored & {*pair}]
    assert pairs_of(into) == pairs_of(files) + added
    assert found == (len(added), len(more) - len(added))


@given(pairs=pairs, held=pairs)
def test_shared_pairs_are_counted_as_often_as_they_are_scored(
    pairs: Pairs, held: Pairs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("text")
    for name in ("train", "dev"):
        (folder / name).mkdir()
    train, dev = text(folder / "train", pairs), text(folder / "dev", held)
    learned = set(pairs_of(train))
    assert count_shared(train, dev) == sum(pair in learned for pair in pairs_of(dev))
