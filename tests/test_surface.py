"""What a visitor sees first holds: the README's tree and commands, the help of the commands, no trace of a machine."""

import argparse
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

import bench.data
import bench.decode
import bench.faults
import bench.serve
import bench.train
import evaluate
import export
import serve
import study
import translate
from const.path import ROOT
from tests.checkout import tracked
from utils.arguments import build_parser
from utils.config import config_type_of, find_settings
from utils.dataset import labelled
from utils.task import bert, classification, perplexity
from utils.task import language as language_module
from utils.visualize import attention, curve

README = (ROOT / "README.md").read_text(encoding="utf-8")
README_JA = (ROOT / "README.ja.md").read_text(encoding="utf-8")
PARSERS = {
    "train.py": build_parser,
    "translate.py": translate.build_parser,
    "evaluate.py": evaluate.build_parser,
    "export.py": export.build_parser,
    "serve.py": serve.build_parser,
    "study.py": study.build_parser,
}
MODULES: dict[str, Callable[[], ArgumentParser]] = {
    "bench.decode": bench.decode.build_parser,
    "bench.decode_table": ArgumentParser,
    "bench.train": bench.train.build_parser,
    "bench.train_table": ArgumentParser,
    "bench.faults": bench.faults.build_parser,
    "bench.serve": bench.serve.build_parser,
    "bench.data": bench.data.build_parser,
    "utils.visualize.curve": curve.build_parser,
    "utils.visualize.attention": attention.build_parser,
    "utils.dataset.labelled": labelled.build_parser,
    "utils.task.bert": bert.build_parser,
    "utils.task.classification": classification.build_parser,
    "utils.task.language": language_module.build_parser,
    "utils.task.perplexity": perplexity.build_parser,
}
HELPED = [*((name,) for name in PARSERS), *(("evaluate.py", verb) for verb in evaluate.VERBS)]
UNSHOWN = {"README.md", "LICENSE"}  # the page itself, and what every repository has: the tree may leave them out
# A path or host that only one machine has; poetry.lock records what its packages say of themselves.
TRACE = re.compile(
    r"(?<![\w.])/(?:work|root|home|Users)/\w"
    r"|\b(?:10\.\d+|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d+\.\d+\b"
    r"|//[\w.-]+\.(?:internal|local|corp|lan|intranet)\b"
)


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks in one of these languages."""
    return [body for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M) if language in languages]


def tree(text: str) -> set[str]:
    """Names at the beginning of the lines of the block that draws the house, a folder with its slash.

    Two spaces part names, more part the last one from what is said of it; indented lines are of deeper levels.
    """
    (drawn,) = (block for block in blocks(text, "text", "") if "layers/" in block and "train.py" in block)
    shown: set[str] = set()
    for line in drawn.splitlines():
        shown |= set(re.split(r" {3,}", line)[0].split("  ")) if line.strip() and line[0] != " " else set()
    return shown


def commands(text: str) -> Iterator[list[str]]:
    """Every command of the shell blocks, and those that the running text quotes."""
    quoted = re.findall(r"`((?:poetry run |python |make )[^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))
    for line in [line for block in blocks(text, "sh", "bash", "console") for line in block.splitlines()] + quoted:
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.commenters, words = "#", list(lexer)
        for operator in (";", "&&", "|"):
            words = [word if word != operator else "\n" for word in words]
        for command in " ".join(shlex.quote(word) if word != "\n" else word for word in words).split("\n"):
            yield shlex.split(command.split(" '<' ")[0].split(" '>' ")[0])


def spoken(text: str) -> list[list[str]]:
    """The commands of a page that are ours to keep: python, make and poetry."""
    found = []
    for command in commands(text):
        words = command[2:] if command[:2] == ["poetry", "run"] else command
        if words and words[0] in ("python", "make"):
            found.append(words)
    return found


def test_the_readmes_tree_is_what_git_tracks() -> None:
    top = {f"{path.split('/')[0]}/" if "/" in path else path for path in tracked() if not path.startswith(".")}
    shown = tree(README)
    assert shown - top == set()
    assert top - shown <= UNSHOWN


def test_a_tree_is_read_as_it_is_drawn() -> None:
    text = "```text\na.toml  b.lock   set.\nMakefile   the\ntrain.py  x.py\nlayers/     y/ z/\n  inner/  w\n\n```\n"
    assert tree(text) == {"a.toml", "b.lock", "Makefile", "train.py", "x.py", "layers/"}


def skeleton(text: str) -> dict[str, list[str]]:
    """What two languages of a page have in common."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    return {
        "commands": [line.split(" #")[0].rstrip() for block in blocks(text, "sh") for line in block.splitlines()],
        "headings": re.findall(r"^(#+) ", prose, re.M),
        "pictures": re.findall(r"!\[[^\]]+\]\(([^)]+)\)", prose),
        "table rows": [str(row.count("|")) for row in re.findall(r"^\|.*$", prose, re.M)],
    }


def test_the_japanese_page_has_all_that_the_english_one_has() -> None:
    ours, theirs = skeleton(README), skeleton(README_JA)
    assert theirs == ours
    assert len(ours["commands"]) > 50
    assert tree(README_JA) == tree(README)


def test_the_readme_has_commands() -> None:
    names = [words[1] for words in spoken(README)]
    assert {"demo", "test", "train.py", "translate.py"} <= set(names)


def parser_of(name: str, arguments: list[str]) -> ArgumentParser:
    """The options of train.py are those of the task that its settings are of."""
    if name == "train.py" and "--config" in arguments:
        return build_parser(config_type_of(find_settings(Path(arguments[arguments.index("--config") + 1]))))
    return PARSERS[name]()


def understand(words: list[str]) -> None:
    """Fail where a command names what is not there, or options that it does not have; in the project's folder."""
    program, name, *arguments = words
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        assert {name, *arguments} <= set(targets)
    elif name == "-m":
        module, *arguments = arguments
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
        MODULES[module]().parse_args(arguments)
    else:
        assert name in PARSERS
        assert (ROOT / name).is_file()
        if "--help" not in arguments:
            parser_of(name, arguments).parse_args(arguments)


@pytest.mark.parametrize("words", spoken(README), ids=" ".join)
def test_a_command_of_the_readme_is_understood(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    understand(words)


def test_commands_are_read_as_a_shell_would() -> None:
    text = (
        '```sh\nmake demo    # all of it\n$ cat a | python translate.py "文 b" --beam 1 < c > d\nx && make test\n```\n'
        "see `python train.py --help` and `train.py`"
    )
    found = list(commands(text))
    assert found == [
        ["make", "demo"],
        ["cat", "a"],
        ["python", "translate.py", "文 b", "--beam", "1"],
        ["x"],
        ["make", "test"],
        ["python", "train.py", "--help"],
    ]


def test_every_file_that_the_readme_names_is_there() -> None:
    files = tracked()
    folders = {f"{path.rpartition('/')[0]}/" for path in files} | {f"{path.split('/')[0]}/" for path in files}
    linked = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", README)
    quoted = re.findall(r"`((?:const|layers|models|utils|tests|figure|corpus|pickles)/[\w./-]*)`", README)
    assert linked
    assert quoted
    missing = {path for path in [*linked, *quoted] if path not in files and path not in folders}
    assert {path for path in missing if not path.startswith(("pickles/", "corpus/"))} == set()


def options(words: Sequence[str]) -> list[str]:
    """All options of a command, or of one of its verbs."""
    parser: ArgumentParser = PARSERS[words[0]]()
    for verb in words[1:]:
        (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = verbs.choices[verb]
    return [option for action in parser._actions for option in action.option_strings]


@pytest.mark.parametrize("words", HELPED, ids=" ".join)
def test_help_is_shown_and_ends_well(
    words: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [*words, "--help"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    assert caught.value.code == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"usage: python {' '.join(words)} ")
    for option in options(words):
        assert re.search(rf"^ +(-h, )?{re.escape(option)}\b", out, re.M), option


def test_the_help_of_a_command_names_its_verbs() -> None:
    shown = evaluate.build_parser().format_help()
    for name, verb in evaluate.VERBS.items():
        assert re.search(rf"^ +{name} +{verb.help.split()[0]}\b", shown, re.M)
        assert f"python evaluate.py {name}" in shown.split("examples:\n")[1]


def test_the_help_of_training_shows_every_group() -> None:
    shown = build_parser().format_help()
    for group in ("data", "data.clean", "tokenizer", "model", "batch", "optimizer", "training", "search"):
        assert f"--{group}." in shown


@pytest.mark.parametrize("name", PARSERS)
def test_the_examples_of_the_help_are_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    examples = re.sub(r"^ +|(?<=\w) {3,}.*$", "", PARSERS[name]().format_help().split("examples:\n")[1], flags=re.M)
    found = [words for words in commands(f"```sh\n{examples}```\n") if words[:1] == ["python"]]
    assert len(found) >= 4
    for _, program, *arguments in found:
        assert program == name
        if "--help" not in arguments:
            parser_of(name, arguments).parse_args(arguments)


def test_every_command_of_make_is_listed_and_kept() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = set(re.findall(r"^([a-z]+):.*##", makefile, re.M))
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.M)
    assert phony is not None
    assert listed == set(phony[1].split())
    for script in re.findall(r"python (\S+\.py)", makefile):
        assert (ROOT / script).is_file()
    for preset in re.findall(r"--config (\S+)", makefile):
        assert find_settings(Path(preset)).is_file()


def test_no_tracked_file_knows_a_machine() -> None:
    found = []
    for path in tracked():
        if path == "poetry.lock" or not (ROOT / path).is_file():
            continue
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture
            continue
        found += [f"{path}: {match[0]}" for match in TRACE.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    "trace",
    [
        "cd /{}/main",
        '"/{}/a"',
        "see file:///{}/a",
        "http://10{}.0.0.1",
        "http://192.168{}.1.2:80",
        "http://m.inter{}nal/a",
    ],
)
def test_a_planted_trace_is_found(trace: str) -> None:
    assert any(TRACE.search(trace.format(word)) for word in ("work", "home", "root", "", "nal", "internal"))


@pytest.mark.parametrize(
    "text", ["a/work/b", "torch.local", "127.0.0.1", "https://example.org/home/a", "10.0", "~/work"]
)
def test_what_is_no_trace_is_left_alone(text: str) -> None:
    assert not TRACE.search(text)
