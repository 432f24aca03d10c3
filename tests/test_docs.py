"""The guide holds: its code runs and prints what it says, its commands are understood, its links lead somewhere."""

import io
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest
import torch

from const.path import ROOT
from tests.checkout import tracked
from tests.test_surface import spoken, understand

_NUMBERED = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("[0-9]-*.md"))
GUIDE = ["docs/README.md", *_NUMBERED, "docs/nlp100.md"]
PAGES = [*sorted(page.name for page in ROOT.glob("README*.md")), *GUIDE]


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


def run_page(text: str, page: str) -> None:
    """Run the blocks of Python, one after the other; what one prints must stand in the block of text behind it."""
    namespace: dict[str, Any] = {"__name__": "page"}
    shown = list(blocks(text))
    for block, behind in zip(shown, [*shown[1:], None], strict=True):
        if block.language != "python":
            continue
        # error messages name the page and its line
        code = compile("\n" * block.line + block.body, str(ROOT / page), "exec")
        with redirect_stdout(io.StringIO()) as printed, torch.random.fork_rng(devices=[]):
            exec(code, namespace)
        expected = behind.body if behind and behind.follows and behind.language == "text" else ""
        assert printed.getvalue() == expected, f"{page}, line {block.line}"


def unrolled(text: str) -> str:
    """A loop on one line as the commands that it makes."""

    def unroll(loop: re.Match[str]) -> str:
        name, values, body = loop.groups()
        return "\n".join(re.sub(rf"\${name}\b", value, body) for value in values.split())

    return re.sub(r"^for (\w+) in ([^;]+); do (.+); done$", unroll, text, flags=re.M)


def targets(text: str, page: str) -> list[str]:
    """Files of the project that a page links to or shows, from the project's folder."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    found = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", prose)
    return [posixpath.normpath(posixpath.join(PurePosixPath(page).parent, target)) for target in found]


def dead(text: str, page: str, files: Collection[str]) -> list[str]:
    """Those that are not there."""
    folders = {str(folder) for file in files for folder in PurePosixPath(file).parents}
    return [target for target in targets(text, page) if target not in files and target not in folders]


def unchained(texts: Sequence[str], names: Sequence[str]) -> list[str]:
    """Pages whose last line does not lead to their neighbours; the first, the index, lists all others in order."""
    wrong = []
    listed = [name for name in re.findall(r"\[[^]]+\]\(([\w-]+\.md)\)", texts[0].split("Next: ")[0]) if name in names]
    if listed != list(names[1:]):
        wrong.append(names[0])
    for i, (text, name) in enumerate(zip(texts, names, strict=True)):
        *_, last = text.rstrip().splitlines()
        before = names[i - 1] if i > 1 else None  # the first page has the index above it
        after = names[i + 1] if i + 1 < len(names) else None
        expected = [*([names[0]] if i else []), *([before] if before else []), *([after] if after else [])]
        if re.findall(r"\]\(([^)]+)\)", last) != expected and name not in wrong:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_and_prints_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(text_of(page), page)


@pytest.mark.parametrize("page", _NUMBERED)
def test_each_page_of_the_guide_has_code_a_formula_and_a_picture(page: str) -> None:
    text = text_of(page)
    assert "```python\n" in text
    assert text.count("$$") >= 2
    assert re.search(r"^!\[[^]]+\]\(\.\./figure/\w+\.png\)$", text, re.M)
    assert "\n**日本語** — " in text
    assert re.search(r"^## Exercises\n\n1\. ", text, re.M)
    assert (
        max(len(line) for block in blocks(text) if block.language == "python" for line in block.body.split("\n")) < 121
    )


# those of README.md are in test_surface.py
@pytest.mark.parametrize(
    "words", [words for page in PAGES if page != "README.md" for words in spoken(unrolled(text_of(page)))], ids=" ".join
)
def test_a_command_of_the_guide_is_understood(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    understand(words)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_is_in_the_repository(page: str) -> None:
    assert dead(text_of(page), page, tracked()) == []
    assert targets(text_of(page), page)


def test_pages_lead_from_one_to_the_next() -> None:
    assert unchained([text_of(page) for page in GUIDE], [PurePosixPath(page).name for page in GUIDE]) == []


# what the tests above would find


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert 1 == 2\n```\n",
        "```python\nprint(1)\n```\n",
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nprint(1)\n```\n\nIt prints:\n\n```text\n1\n```\n",
        "```python\nx = 1\n```\n\n```text\n1\n```\n",
    ],
    ids=["fails", "prints", "prints something else", "prints far away", "prints nothing"],
)
def test_code_that_does_not_do_what_it_says_is_found(text: str) -> None:
    with pytest.raises(AssertionError):
        run_page(text, "page.md")


def test_blocks_of_a_page_share_their_names() -> None:
    run_page("```python\nx = 1\n```\n\nand\n\n```python\nprint(x)\n```\n\n```text\n1\n```\n", "page.md")


def test_an_error_names_the_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_page("# Page\n\n```python\nx = 0\n1 / x\n```\n", "page.md")
    assert caught.traceback[-1].lineno == 4  # from 0


def test_a_loop_is_as_many_commands() -> None:
    text = "```sh\nfor x in 1 2; do make $x; python train.py --name a_$x; done\nmake test\n```\n"
    found = spoken(unrolled(text))
    assert [" ".join(words) for words in found] == [
        "make 1", "python train.py --name a_1", "make 2", "python train.py --name a_2", "make test"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see [a](../layers/mask.py#L3), ![b](x.png) and [c](https://example.org/no.md)", ["docs/x.png"]),
        ("[folder](../layers), [gone](../layers/gone.py), [here](#title)", ["layers/gone.py"]),
        ("[out](../../secret.md)", ["../secret.md"]),
    ],
)
def test_a_dead_link_is_found(text: str, expected: list[str]) -> None:
    assert dead(text, "docs/page.md", ["layers/mask.py", "docs/page.md"]) == expected


INDEX = "[1](1-a.md) [2](2-b.md)\n\nNext: [1](1-a.md)"
FIRST = "[Contents](README.md) · Next: [2](2-b.md)"
LAST = "[Contents](README.md) · Before: [1](1-a.md)"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((INDEX, FIRST, LAST), []),
        ((INDEX.replace("[2](2-b.md)", ""), FIRST, LAST), ["README.md"]),
        ((INDEX.replace("Next: [1](1-a.md)", "Next: [2](2-b.md)"), FIRST, LAST), ["README.md"]),
        ((INDEX, FIRST.replace("2-b", "1-a"), LAST), ["1-a.md"]),
        ((INDEX, FIRST, FIRST), ["2-b.md"]),
    ],
)
def test_a_broken_chain_is_found(texts: Sequence[str], expected: list[str]) -> None:
    assert unchained(texts, ["README.md", "1-a.md", "2-b.md"]) == expected
