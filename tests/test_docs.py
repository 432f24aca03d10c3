"""The pages hold: their code runs, their commands are understood, links lead somewhere, both languages say the same."""

import io
import posixpath
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest
import torch

from bench.results import TABLES, with_table
from const.path import ROOT
from tests.test_floors import tracked
from tests.test_surface import prose, spoken, understand

_NUMBERED = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("[0-9]-*.md"))
GUIDE = ["docs/README.md", *_NUMBERED, "docs/nlp100.md"]
ENGLISH = {"README.ja.md": "README.md"} | {
    f"docs/ja/{page.name}": f"docs/{page.name}"
    for page in sorted((ROOT / "docs").glob("*.md"))
    if f"docs/{page.name}" not in GUIDE
}
PAGES = [*ENGLISH, *ENGLISH.values(), *GUIDE, "bench/README.md", "corpus/README.md", "pickles/README.md"]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


class Block(NamedTuple):
    line: int  # of its fence, from 1
    language: str
    body: str
    follows: bool  # nothing but an empty line parts it from the block before


def blocks(text: str) -> Iterator[Block]:
    """All fenced blocks of a page."""
    end = 0
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M):
        follows = end > 0 and not text[end : found.start()].strip()
        yield Block(text[: found.start()].count("\n") + 1, found[1], found[2], follows)
        end = found.end()


@pytest.mark.parametrize("page", GUIDE)
def test_the_code_of_a_page_runs_and_prints_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks share their names; what one prints stands in the block of text behind it."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    shown = list(blocks(text_of(page)))
    for block, behind in zip(shown, [*shown[1:], None], strict=True):
        if block.language != "python":
            continue
        # error messages name the page and its line
        code = compile("\n" * block.line + block.body, str(ROOT / page), "exec")
        with redirect_stdout(io.StringIO()) as printed, torch.random.fork_rng(devices=[]):
            exec(code, namespace)
        expected = behind.body if behind and behind.follows and behind.language == "text" else ""
        assert printed.getvalue() == expected, f"{page}, line {block.line}"


@pytest.mark.parametrize("page", _NUMBERED)
def test_each_page_of_the_guide_has_code_a_formula_and_a_picture(page: str) -> None:
    text = text_of(page)
    assert "```python\n" in text
    assert text.count("$$") >= 2
    assert re.search(r"^!\[[^]]+\]\(\.\./figure/\w+\.png\)$", text, re.M)
    assert "\n**日本語** — " in text
    assert re.search(r"^## Exercises\n\n1\. ", text, re.M)
    python = [block.body for block in blocks(text) if block.language == "python"]
    assert max(len(line) for body in python for line in body.split("\n")) < 121


def unrolled(text: str) -> str:
    """A loop on one line as the commands that it makes."""

    def unroll(loop: re.Match[str]) -> str:
        name, values, body = loop.groups()
        return "\n".join(re.sub(rf"\${name}\b", value, body) for value in values.split())

    return re.sub(r"^for (\w+) in ([^;]+); do (.+); done$", unroll, text, flags=re.M)


SPOKEN = sorted({tuple(words) for page in PAGES for words in spoken(unrolled(text_of(page)))})


@pytest.mark.parametrize("words", SPOKEN, ids=" ".join)
def test_a_command_of_the_pages_is_understood(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    understand(words)


def test_commands_are_found() -> None:
    assert len(SPOKEN) > 80
    assert {("make", "demo"), ("python", "train.py"), ("python", "translate.py")} <= set(SPOKEN)


def headings(page: str) -> set[str]:
    """What a link may name after #, as GitHub writes it."""
    titles = re.findall(r"^#+ (.+)$", prose(text_of(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_or_names_is_in_the_repository(page: str) -> None:
    files, text = tracked(), prose(text_of(page))
    known = {*files, *(str(folder) for file in files for folder in PurePosixPath(file).parents)}
    for target, _, heading in (link.partition("#") for link in re.findall(r"\]\((?!\w+:)([^)\s]+)", text)):
        found = posixpath.normpath(posixpath.join(PurePosixPath(page).parent, target)) if target else page
        assert found in known, target
        assert not heading or not found.endswith(".md") or heading in headings(found), f"{target}#{heading}"
    named = re.findall(r"`((?:bench|const|docs|figure|layers|models|tests|utils)/[\w./-]*)`", text)
    assert {name for name in named if name.rstrip("/") not in known} == set()


def test_pages_lead_from_one_to_the_next() -> None:
    """The first, the index, lists all others in order; the last line of each links to its neighbours."""
    names = [PurePosixPath(page).name for page in GUIDE]
    listed = re.findall(r"\[[^]]+\]\(([\w-]+\.md)\)", text_of(GUIDE[0]).split("Next: ")[0])
    assert [name for name in listed if name in names] == names[1:]
    for i, page in enumerate(GUIDE):
        neighbours = [*names[:1][:i], *names[1:i][-1:], *names[i + 1 : i + 2]]
        assert re.findall(r"\]\(([^)]+)\)", text_of(page).rstrip().splitlines()[-1]) == neighbours, page


def skeleton(text: str) -> dict[str, list[str]]:
    """What two languages of a page have in common."""
    shell = [line for block in blocks(text) if block.language == "sh" for line in block.body.splitlines()]
    return {
        "commands": [line.split(" #")[0].rstrip() for line in shell],
        "pictures": [PurePosixPath(picture).name for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)],
        "decimals": sorted(set(re.findall(r"\d+\.\d+", prose(text)))),
    }


@pytest.mark.parametrize("page", ENGLISH)
def test_both_languages_have_the_same_commands_pictures_and_figures(page: str) -> None:
    assert skeleton(text_of(page)) == skeleton(text_of(ENGLISH[page]))


@pytest.mark.parametrize("page", ENGLISH)
def test_each_language_links_to_the_other(page: str) -> None:
    for here, there in ((page, ENGLISH[page]), (ENGLISH[page], page)):
        assert f"]({posixpath.relpath(there, PurePosixPath(here).parent)})" in text_of(here)


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").encode()) <= 15_000


@pytest.mark.parametrize("name", TABLES)
def test_pages_show_what_was_measured(name: str) -> None:
    make, pages = TABLES[name]
    for page in pages:
        assert with_table(text_of(page), make(), name) == text_of(page)
