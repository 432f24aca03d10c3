from pathlib import Path

import pytest

from utils.visualize.run_title import distinct_names, titles


def test_a_run_is_called_what_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert distinct_names([Path("wide/"), Path("/runs/deep"), Path()]) == ["wide", "deep", tmp_path.name]


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^two runs are named xl: give one of them, or rename"):
        distinct_names([Path("one/xl"), Path("vanilla"), Path("other/xl")])


def test_runs_are_named_by_their_time_only_where_nothing_else_tells_them_apart() -> None:
    assert titles(["xl-20260102-030405", "vanilla-20260102-030405-2", "mine"]) == ["xl", "vanilla", "mine"]
    same = ["xl-20260102-030405", "xl-20260102-030405-2"]
    assert titles([*same, "no-20260102"]) == [*same, "no-20260102"]
