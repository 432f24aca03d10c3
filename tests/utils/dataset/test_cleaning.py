from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from utils.dataset import text as text_module
from utils.dataset.text import CleanConfig, CleanReport, ParallelFiles, ParallelText
from utils.dataset.text import clean as clean_files

OFF = CleanConfig(max_chars=None, max_length_ratio=None, drop_duplicates=False)
sides = st.text("都京 a\u3000", max_size=12)
texts = st.lists(st.tuples(sides, sides), min_size=1, max_size=40).map(lambda p: [*p, ("都", "the capital")])
configs = st.builds(
    CleanConfig,
    max_chars=st.none() | st.integers(11, 20),
    max_length_ratio=st.none() | st.floats(1, 20),
    drop_duplicates=st.booleans(),
)


def text_of(*pairs: tuple[str, str]) -> ParallelText:
    return ParallelText([src for src, _ in pairs], [tgt for _, tgt in pairs])


def clean(text: ParallelText, config: CleanConfig, n_more: int = 0) -> tuple[ParallelText, CleanReport]:
    with TemporaryDirectory() as folder:
        files = ParallelFiles(Path(folder) / "src", Path(folder) / "tgt")
        for path, lines in zip(files, (text.src, text.tgt), strict=True):
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
        kept, report = clean_files(files, config, n_more)
        return ParallelText(list(kept.src), list(kept.tgt)), report


def pairs_of(text: ParallelText) -> list[tuple[str, str]]:
    return list(zip(text.src, text.tgt, strict=True))


@given(pairs=texts, config=configs)
def test_what_is_kept_are_pairs_of_the_text_in_its_order_and_clean(
    pairs: list[tuple[str, str]], config: CleanConfig
) -> None:
    try:
        kept, report = clean(text_of(*pairs), config)
    except ValueError as error:
        assert "leaves none" in str(error)  # noqa: PT017
        return
    left = iter(pairs)
    assert all(pair in left for pair in pairs_of(kept))  # a subsequence: pairs and order are kept
    assert report.kept == len(kept)
    assert report.total == len(pairs)
    assert all(src.strip() and tgt.strip() for src, tgt in pairs_of(kept))
    assert config.max_chars is None or max(map(len, kept.src + kept.tgt)) <= config.max_chars
    assert not config.drop_duplicates or len(set(pairs_of(kept))) == len(kept)


@given(pairs=texts, config=configs)
@example(pairs=[("aaa", "a"), ("aaa", "a"), ("a" * 12, "a" * 9), ("都", "the capital")], config=CleanConfig(None, 1.5))
def test_both_directions_keep_the_same_pairs(pairs: list[tuple[str, str]], config: CleanConfig) -> None:
    def kept(text: ParallelText) -> list[tuple[str, str]]:
        try:
            return pairs_of(clean(text, config)[0])
        except ValueError:
            return []

    there, back = kept(text_of(*pairs)), kept(text_of(*((tgt, src) for src, tgt in pairs)))
    assert [(tgt, src) for src, tgt in back] == there


def test_each_rule_drops_what_it_names() -> None:
    good = [("京の都である", "it is the capital Kyo"), ("古い橋がある", "there is an old bridge")] * 3
    bad = [("", "nothing"), ("都", " \t"), ("都" * 40, "capital " * 20), ("京の都である橋がある", "OK")]
    text = text_of(*good, *bad)
    kept, report = clean(text, CleanConfig(max_chars=100, max_length_ratio=4.0))
    assert pairs_of(kept) == good[:2]
    assert report.dropped == {"empty": 2, "too long": 1, "length ratio": 1, "duplicate": 4}
    assert pairs_of(clean(text, OFF)[0]) == [*good, *bad[2:]]


def test_the_ratio_is_measured_against_the_usual_one() -> None:
    usual = [("都" * 10, "x" * 35)] * 6 + [("都" * 10, "x" * 139)] * 3  # an average would lie above
    kept, _ = clean(
        text_of(*usual, ("橋" * 10, "x" * 8), ("橋" * 10, "y" * 9), ("橋" * 10, "y" * 139), ("橋" * 10, "z" * 141)),
        CleanConfig(max_length_ratio=4.0, drop_duplicates=False),
    )
    assert [len(tgt) for tgt in kept.tgt[9:]] == [9, 139]  # within 35 / 4 .. 35 * 4


def test_what_was_dropped_before_does_not_count_for_the_usual_ratio() -> None:
    text = text_of(*[("都" * 10, "x" * 20)] * 2, *[("都" * 10, "y" * 90)] * 3)
    kept, report = clean(text, CleanConfig(max_chars=50, max_length_ratio=2.0, drop_duplicates=False))
    assert report.dropped == {"empty": 0, "too long": 3, "length ratio": 0}
    assert len(kept) == 2


def test_the_report_is_a_line_for_each_rule() -> None:
    _, report = clean(text_of(("都", "capital"), ("都", "capital"), ("", ""), ("橋", "bridge")), CleanConfig())
    assert str(report) == (
        "empty                  1   25.00%\n"
        "too long               0    0.00%\n"
        "length ratio           0    0.00%\n"
        "duplicate              1   25.00%\n"
        "kept                   2   50.00% of 4"
    )


def test_a_text_of_which_nothing_is_left_is_refused_in_one_line() -> None:
    with pytest.raises(
        ValueError, match=r"^cleaning leaves none of 2 pairs \(empty 1, too long 1\): loosen --data\.clean$"
    ):
        clean(text_of(("", "capital"), ("古い都", "an old capital")), CleanConfig(5, None, drop_duplicates=False))


@pytest.mark.parametrize("ratio", [0.5, -1.0, float("nan")])
def test_a_ratio_that_no_pair_meets_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match=rf"^max_length_ratio={ratio} drops every pair"):
        CleanConfig(max_length_ratio=ratio)


def test_a_length_that_no_pair_meets_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^max_chars=0 drops every pair"):
        CleanConfig(max_chars=0)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{n % 17} {'x' * (n % 10)}" for n in range(200)]
    text = ParallelText(lines, [line.replace("x", "yy") for line in lines])
    whole = clean(text, CleanConfig(18, 1.3))
    monkeypatch.setattr(text_module, "BLOCK", 7)
    assert clean(text, CleanConfig(18, 1.3)) == whole
    assert all(whole[1].dropped[rule] for rule in ("too long", "length ratio", "duplicate"))


def test_of_what_is_left_the_first_pairs_can_be_kept_alone() -> None:
    text = text_of(("", "capital"), *((f"都{i}", f"capital {i}") for i in range(5)))
    kept, report = clean(text, CleanConfig(max_pairs=2))
    assert kept.tgt == ["capital 0", "capital 1"]
    assert report.dropped["empty"] == 1
    assert report.dropped["over max_pairs"] == 3
    kept, report = clean(text, CleanConfig(max_pairs=2), n_more=1)
    assert kept.tgt == ["capital 0", "capital 1", "capital 4"]
    assert report.dropped["over max_pairs"] == 2
    with pytest.raises(ValueError, match=r"^max_pairs=0 drops every pair"):
        CleanConfig(max_pairs=0)


def test_a_sentence_of_just_so_many_characters_is_kept() -> None:
    text = text_of(("都" * 5, "x" * 9), ("都" * 5, "y" * 10))
    assert clean(text, CleanConfig(9, None))[0].tgt == ["x" * 9]
