"""What a visitor sees first holds: the README's tree, the help of the commands, make; no trace of a machine."""

import argparse
import atexit
import gc
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import utils.arguments
from const.corpora import VERSION
from const.path import ROOT
from tests.test_floors import FLOORS, tracked
from utils.config import config_type_of, find_settings
from utils.run import SHIPPED

COMMANDS = sorted(path.name for path in ROOT.glob("*.py"))
READMES = ("README.md", "README.ja.md")
UNSHOWN = {*READMES, "LICENSE", "CITATION.cff"}  # what the tree may leave out
# A path or host that only one machine has; poetry.lock records what its packages say of themselves.
TRACE = re.compile(
    r"(?<![\w.])/(?:work|root|home|Users)/\w"
    r"|\b(?:10\.\d+|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d+\.\d+\b"
    r"|//[\w.-]+\.(?:internal|local|corp|lan|intranet)\b"
)


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks in one of these languages."""
    return [body for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M) if language in languages]


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)


def commands(text: str) -> Iterator[list[str]]:
    """Every command of the shell blocks, and those that the running text quotes; a heading quotes less than one."""
    quoted = re.findall(r"`((?:poetry run |python |make )[^`]+)`", re.sub(r"^#.*", "", prose(text), flags=re.M))
    for line in [line for block in blocks(text, "sh", "bash", "console") for line in block.splitlines()] + quoted:
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.commenters, words = "#", list(lexer)
        for operator in (";", "&&", "|"):
            words = [word if word != operator else "\n" for word in words]
        for command in " ".join(shlex.quote(word) if word != "\n" else word for word in words).split("\n"):
            yield shlex.split(command.split(" '<' ")[0].split(" '>' ")[0])


def spoken(text: str) -> list[list[str]]:
    """The commands of a page that are ours to keep: of python, also several processes of it, and of make."""
    ours = []
    for words in commands(text):
        words = words[2:] if words[:2] == ["poetry", "run"] else words
        if words[:2] == ["torchrun", "--nproc-per-node"]:
            words = ["python", *words[3:]]
        if words and words[0] in ("python", ".venv/bin/python", "make"):
            ours.append(words)
    return ours


def parser_of(name: str, arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of a file or module; the options of train.py are those of the task that its settings are of."""
    if name == "train.py":
        if "--config" not in arguments:
            return utils.arguments.build_parser()
        preset = Path(arguments[arguments.index("--config") + 1])
        return utils.arguments.build_parser(config_type_of(find_settings(preset)))
    return getattr(import_module(name.removesuffix(".py")), "build_parser", argparse.ArgumentParser)()


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: verb for action in actions for name, verb in action.choices.items()}


def understand(words: Sequence[str]) -> None:
    """Fail where a command names what is not there, or options that it does not have; in the project's folder."""
    program, name, *arguments = words
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = {*re.findall(r"^([a-z]+):", makefile, re.M), *re.findall(r"\$\(([A-Z]+)\)", makefile)}
        assert {word.partition("=")[0] for word in (name, *arguments)} <= targets
        return
    if name == "-m":
        name, *arguments = arguments
        if name == "http.server":  # Python's own
            return
        assert (ROOT / f"{name.replace('.', '/')}.py").is_file()
    else:
        assert name in COMMANDS
    if "--help" not in arguments:
        parser_of(name, arguments).parse_args(arguments)


@pytest.mark.parametrize("readme", READMES)
def test_the_readmes_tree_is_what_git_tracks(readme: str) -> None:
    text = (ROOT / readme).read_text(encoding="utf-8")
    (drawn,) = (block for block in blocks(text, "text") if "layers/" in block)
    # two spaces part names, more part the last one from what is said of it
    shown = {name for line in drawn.splitlines() for name in re.split(r" {3,}", line)[0].split("  ")}
    top = {f"{path.split('/')[0]}/" if "/" in path else path for path in tracked() if not path.startswith(".")}
    assert shown - top == set()
    assert top - shown <= UNSHOWN


HELPED = [(name, *verb) for name in COMMANDS for verb in [(), *((verb,) for verb in verbs_of(parser_of(name)))]]


@pytest.mark.parametrize("words", HELPED, ids=" ".join)
def test_help_is_shown_and_ends_well(
    words: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [*words, "--help"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    atexit.unregister(gc.freeze)  # of translate.py: it is not this process that ends
    assert caught.value.code == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"usage: python {' '.join(words)} ")
    parser = parser_of(words[0])
    for verb in words[1:]:
        parser = verbs_of(parser)[verb]
    for option in (option for action in parser._actions for option in action.option_strings):
        assert re.search(rf"^ +(-h, )?{re.escape(option)}\b", out, re.M), option
        assert re.fullmatch(r"-h|--[a-z-]+|--[a-z_]+(\.\w+)+", option)  # only settings have underscores
    for verb in verbs_of(parser):
        assert re.search(rf"^ +{verb}\s+\w", out, re.M)
        assert f"python {words[0]} {verb}" in out.split("examples:\n")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_the_help_are_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    examples = re.sub(r"^ +|(?<=\w) {3,}.*$", "", parser_of(name).format_help().split("examples:\n")[1], flags=re.M)
    typed = spoken(f"```sh\n{examples}```\n")
    assert len(typed) >= 4
    for words in typed:
        assert words[1] == name
        understand(words)


def test_every_command_of_make_is_listed_and_kept() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.M)
    assert phony is not None
    assert set(re.findall(r"^([a-z]+):.*##", makefile, re.M)) == set(phony[1].split())
    for command in re.findall(r"\$\(RUN\) (python \S.*)", makefile):
        understand(shlex.split(command))


def test_no_tracked_file_knows_a_machine() -> None:
    traces = []
    for path in tracked():
        if path == "poetry.lock" or not (ROOT / path).is_file():
            continue
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture
            continue
        traces += [f"{path}: {match[0]}" for match in TRACE.finditer(text)]
    assert traces == []


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == citation["version"] == VERSION


def test_the_image_has_all_that_the_server_may_import_and_listens_where_the_page_says() -> None:
    dockerfile, ignored, page = (
        (ROOT / path).read_text(encoding="utf-8") for path in ("Dockerfile", ".dockerignore", "docs/serving.md")
    )
    kept = set(re.findall(r"^!(.+)", ignored, re.M))
    (listed,) = re.findall(r"^COPY (\w.*) \./$", dockerfile, re.M)
    below = {name for name, level in FLOORS.items() if level < FLOORS["serve"]}
    assert kept == {*below, "serve.py", "export.py", *listed.split(), *(f"pickles/{name}" for name in SHIPPED)}
    assert all((ROOT / name).exists() for name in kept)
    (entry,), (more,) = (re.findall(f"^{word} (.+)", dockerfile, re.M) for word in ("ENTRYPOINT", "CMD"))
    _, name, *options = json.loads(entry)
    arguments = parser_of(name).parse_args([*options, *json.loads(more)])
    assert (name, arguments.host) == ("serve.py", "0.0.0.0")
    assert {Path(run).name for run in arguments.run} == {*SHIPPED}
    assert {*SHIPPED} == {*re.search("for run in (.+); do", dockerfile)[1].split()}  # type: ignore[index]
    ports = re.findall(r"^EXPOSE (\d+)|127\.0\.0\.1:(\d+)/health", dockerfile, re.M)
    ports += re.findall(r"-p 127\.0\.0\.1:(\d+):(\d+)", page)
    assert {port for pair in ports for port in pair if port} == {str(arguments.port)}
