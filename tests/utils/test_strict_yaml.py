"""A file is read as it stands there, or refused in a line that says where."""

from pathlib import Path

import pytest

from utils.config import read_yaml


def test_it_reads_what_yaml_means(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(
        "a: &a {'2': [1, 2.5], 'off': null}\nb: {<<: *a, 'off': 日本}\n", encoding="utf-8"
    )
    assert read_yaml(tmp_path / "my.yaml") == {
        "a": {"2": [1, 2.5], "off": None}, "b": {"2": [1, 2.5], "off": "日本"}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {x: 1}\nb: 2\na: {y: 1}\n", "line 3: the key a appears twice"),
        ("a:\n  - x: 1\n    x: 1\n", "line 3: the key x appears twice"),
        ("heads:\n  2: {}\n", "line 2: the key 2 is not a string: quote it"),
        ("dropout: {off: {}}\n", "line 1: the key off is not a string: quote it"),
        ("~: 1\n", "line 1: the key ~ is not a string: quote it"),
        ("[1, 2]: 1\n", "line 1: the key that is a list or a group is not a string"),
        ("a: 1\nb: [1\nc: 2\n", "line 3: while parsing a flow sequence, expected"),
        ("a: 1\n\tb: 2\n", "line 2: .*cannot start any token"),
        ("a: !!python/name:os.system\n", "line 1: could not determine a constructor"),
        ("a: \x00\n", ".*special characters are not allowed"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^\S+/my\.yaml: {message}") as caught:
        read_yaml(tmp_path / "my.yaml")
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_bytes("名: 都".encode("shift_jis"))
    with pytest.raises(ValueError, match=r"my\.yaml is not UTF-8"):
        read_yaml(tmp_path / "my.yaml")
