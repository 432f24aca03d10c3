"""Texts from arguments or from standard input."""

import io
import os
import sys

import pytest

from utils.terminal.given_text import given_texts


def test_arguments_go_before_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeff京都\r\n\n奈良".encode())))
    assert list(given_texts(["一", "二"])) == ["一", "二"]
    assert list(given_texts([])) == ["京都", "", "奈良"]


def test_a_line_is_there_before_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as pen:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(source))
        lines = given_texts([])
        for line in ("京都", "奈良"):
            pen.write(f"{line}\n".encode())
            assert next(lines) == line
