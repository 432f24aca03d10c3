"""The pages hold: their code runs, commands are understood, links lead somewhere, tables are what was measured."""

import base64
import builtins
import io
import json
import posixpath
import re
import shlex
import sys
from code import InteractiveConsole
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache, partial
from html import unescape
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU

import translate
from bench import results as results_module
from bench.results import RESULTS, SAMPLES, TABLES, in_language_of, result_table, translations_page, with_table
from config.data import DataConfig, TokenizerConfig
from config.reader import ABSENT, changed_settings, settings_of
from config.search import Limits
from const.corpora import CORPORA
from const.path import FIGURE, PICKLES, ROOT
from docs.check import exercises, failure
from docs.check import main as check
from docs.diagrams import FOLLOWS, merges
from docs.notebook import main as write_notebooks
from docs.notebook import notebook
from tests.served import ask
from tests.test_floors import tracked
from tests.test_surface import prose, spoken, understand
from tests.tiny import outcome
from utils.arguments import read_arguments
from utils.config import CONFIG_TYPES
from utils.dataset.corpus import prepare_corpus, take
from utils.dataset.embedded import minimal_pairs
from utils.dataset.text import read_lines
from utils.evaluation.metric import (
    PUBLISHED_TEST,
    System,
    bleu_tokenizer,
    build_metrics,
    compare,
    measure,
    moses_words,
    multi_bleu,
)
from utils.file import read_json
from utils.load import load_run
from utils.run import SHIPPED, run_reading
from utils.search.inspection import Inspector
from utils.serve.api import create_app
from utils.serve.service import ServedRun, translate_lines
from utils.text.tokenizer import SentencePieceTokenizer, every_token

_NUMBERED = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("[0-9]-*.md"))
SOLUTIONS = "docs/solutions.md"
GUIDE = [
    "docs/README.md",
    *_NUMBERED,
    SOLUTIONS,
    "docs/mistakes.md",
    "docs/whole.md",
    "docs/after_2017.md",
    "docs/nlp100.md",
]
ENGLISH = {"README.ja.md": "README.md"} | {
    f"docs/ja/{page.name}": f"docs/{page.name}"
    for page in sorted((ROOT / "docs").glob("*.md"))
    if page.name != "nlp100.md"  # which is in both languages
}
PAGES = [*dict.fromkeys([*ENGLISH, *ENGLISH.values(), *GUIDE])]
GLOSSARY = "docs/ja/glossary.md"
PAGES += [GLOSSARY, "bench/README.md", "corpus/README.md", "pickles/README.md"]


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


def code_cells(page: str) -> list[dict[str, Any]]:
    """Those of a page's notebook."""
    made = notebook(ROOT / page, {ROOT / page: ROOT / "page.ipynb"})
    return [cell for cell in made["cells"] if cell["cell_type"] == "code"]


def printed_by(cell: dict[str, Any]) -> str:
    """What the page says of it, in the text behind it."""
    return "".join(output["text"] for output in cell["outputs"])


def run_cell(cell: dict[str, Any], page: str, namespace: dict[str, Any]) -> None:
    line = int(cell["id"].partition("-")[2])
    # error messages name the page and its line
    code = compile("\n" * line + cell["source"], str(ROOT / page), "exec")
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    assert printed.getvalue() == printed_by(cell), f"{page}, {cell['id']}"


@cache
@torch.random.fork_rng(devices=[])
def run_code(page: str) -> dict[str, Any]:
    """Run the cells of a page's notebook, which share their names."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for cell in code_cells(page):
        run_cell(cell, page, namespace)
    return namespace


@pytest.mark.parametrize("page", [page for page in [*GUIDE, "docs/own_text.md"] if page != SOLUTIONS])
def test_the_code_of_a_page_runs_and_prints_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_code(page)


class Prompt(InteractiveConsole):
    """Python's prompt, which compiles what it is given and runs none of it."""

    def runcode(self, code: object) -> None:
        pass

    def showsyntaxerror(self, *_: object, **__: object) -> None:
        raise sys.exception() or SyntaxError


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_can_be_pasted_into_pythons_prompt(page: str) -> None:
    """There an empty line ends a class or a loop, and nothing else does."""
    for block in blocks(text_of(page)):
        if block.language == "python":
            prompt = Prompt()
            for number, line in enumerate([*block.body.splitlines(), ""], start=block.line + 1):
                try:
                    waits = prompt.push(line)
                except SyntaxError as error:
                    pytest.fail(f"{page}, line {number}: {line!r}: {error}")
            assert not waits, f"{page}, line {block.line}"


@torch.random.fork_rng(devices=[])
def test_the_code_of_the_solutions_runs_behind_that_of_their_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each section with the names of its own page alone, so that it needs no other section.

    Nor would another disturb it, in the notebook that has all: what a section finds there it has then made anew, or
    it is Python's own, which no page renames.
    """
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    setup, *cells = code_cells(SOLUTIONS)
    for cell in cells:
        if cell["id"].startswith("page-"):
            page = _NUMBERED[int(cell["id"].removeprefix("page-"))]
            namespace, (first, *shown) = run_code(page), code_cells(page)
            assert first == setup
            assert cell["source"] == "\n\n".join(f"{one['source']}\n" for one in shown).rstrip("\n")
            assert printed_by(cell) == "".join(map(printed_by, shown))
            continue
        run_cell(cell, SOLUTIONS, namespace)
        assert not {name for name in namespace if not name.startswith("__")} & vars(builtins).keys()
    assert [cell["id"] for cell in cells if cell["id"].startswith("page-")] == [
        f"page-{number}" for number in range(len(_NUMBERED))
    ]


@pytest.mark.parametrize("page", [*_NUMBERED, *(page.replace("docs/", "docs/ja/") for page in _NUMBERED)])
def test_each_exercise_has_a_solution(page: str) -> None:
    (title,) = re.findall(r"\A# (.+)$", text_of(page), re.M)
    asked = re.findall(r"^(\d)\. ", re.split(r"^## (?:Exercises|練習問題)$", text_of(page), flags=re.M)[1], re.M)
    sections = re.split(r"^## (.+)$", text_of(f"{PurePosixPath(page).parent}/solutions.md"), flags=re.M)
    solved = re.findall(r"^\*\*(\d)\.\*\* \S", sections[sections.index(title) + 1], re.M)
    assert asked == solved == [str(number) for number in range(1, len(asked) + 1)]
    english = f"docs/{PurePosixPath(page).name}"
    levels, theirs = (re.findall(r"^\d\. (★{1,3}) ", text_of(one), re.M) for one in (page, english))
    assert levels == theirs
    assert len(levels) == len(asked)
    assert f"](solutions.md#{title.lower().replace(' ', '-')})" in text_of(page)


def solution_of(name: str) -> str:
    """The function of an exercise."""
    (called,) = exercises()[name].functions
    (found,) = (b.body for b in blocks(text_of(SOLUTIONS)) if b.body.startswith(f"def {called.partition('(')[0]}("))
    return found


@pytest.mark.parametrize("name", exercises())
def test_an_answer_is_tried_as_the_solution_is(name: str, tmp_path: Path) -> None:
    asked, names, file = exercises()[name], run_code(_NUMBERED[int(name[0])]), tmp_path / "exercises.py"
    assert f"`{asked.functions[0].partition('(')[0]}(" in text_of(_NUMBERED[int(name[0])])
    file.write_text(solution_of(name), encoding="utf-8")
    assert failure(asked, file, {**names}) == ""
    file.write_text(re.sub(r"^(    .*\n)+\Z", "    pass\n", solution_of(name), flags=re.M), encoding="utf-8")
    assert failure(asked, file, {**names})
    file.write_text("", encoding="utf-8")
    assert failure(asked, file, {**names}) == f"{file} does not define {asked.functions[0]}"


def test_the_command_says_whether_an_answer_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert outcome("docs.check", check, capsys, "1.1").err.startswith("docs.check: error: 1.1 asks for no function: ")
    assert "no exercises.py: write n_parameters(d_model" in outcome("docs.check", check, capsys, "1.2").err
    for told, answer in (
        ("1.2: right\n", solution_of("1.2")),
        ("1.2: not yet\nassert sum(", "def n_parameters(d_model, n_heads):\n    return 4 * d_model**2\n"),
        ("1.2: not yet\nassert sum(", "def n_parameters(d_model, n_heads):\n    return d_mode\n"),
    ):
        Path("exercises.py").write_text(answer, encoding="utf-8")
        found = outcome("docs.check", check, capsys, "1.2")
        assert found.out.startswith(told)
        assert found.status == (0 if "right" in told else 1)
    assert found.out.endswith("\nexercises.py, line 2\nNameError: name 'd_mode' is not defined\n")


def without_targets(text: str) -> str:
    return re.sub(r"\]\([^)\s]+\)", "]", text)


def test_a_page_is_a_notebook_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--all", "--output", str(tmp_path)]
    written = outcome("docs.notebook", write_notebooks, capsys, *words).out.splitlines()
    assert sorted(map(Path, written)) == sorted(tmp_path.rglob("*.ipynb"))
    assert {Path(file).stem for file in written} >= {Path(page).stem for page in _NUMBERED}
    for file in map(Path, written):
        page, made = f"docs/{file.relative_to(tmp_path).with_suffix('.md')}", read_json(file)
        assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
        names = [cell["id"] for cell in made["cells"]]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[\w-]{1,64}", name) for name in names)
        parts = []
        for cell in made["cells"]:
            folded = cell["id"].startswith(("setup", "page"))
            if cell["cell_type"] == "code":
                assert cell.keys() == {"cell_type", "id", "metadata", "source", "execution_count", "outputs"}
                printed = "".join(f"\n```text\n{output['text']}```\n" for output in cell["outputs"])
                parts += [] if folded else [f"```python\n{cell['source']}\n```\n{printed}".rstrip()]
                continue
            parts.append(cell["source"])
            shown = re.findall(r"!\[[^\]]+\]\(attachment:([^)]+)\)", cell["source"])
            assert shown == list(cell.get("attachments", {}))
            for name in shown:
                picture = base64.b64decode(cell["attachments"][name]["image/png"])
                assert picture == (FIGURE / name).read_bytes()
            for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", prose(cell["source"])):
                assert (file.parent / unquote(target)).exists(), f"{file}: {target}"
        assert without_targets("\n\n".join(parts)) == without_targets(text_of(page).strip())
    assert "](../1-attention.ipynb)" in (tmp_path / "ja/1-attention.ipynb").read_text(encoding="utf-8")
    for wrong, message in ((words, "0-tokens.ipynb exists"), (words[1:], "no page: give")):
        assert message in outcome("docs.notebook", write_notebooks, capsys, *wrong).err


@pytest.mark.parametrize("name", ["kftt_ja_en_1", "kftt_en_ja_1"])
def test_the_byte_pairs_of_page_0_are_sentencepieces_on_real_text(name: str) -> None:
    page, lines = run_code("docs/0-tokens.md"), read_lines(RESULTS / f"{name}.txt")
    train, characters = lines[:500], {*" ", *"".join(lines[:500])}
    made = page["learn_bpe"](train, 500)
    size = 4 + len(made) + len(characters - {" "} | {"▁"})
    config = TokenizerConfig(kind="bpe", vocab_size=size, character_coverage=1.0)
    theirs = SentencePieceTokenizer.train(config, [train])
    assert every_token(theirs)[4 : 4 + len(made)] == list(made)
    unseen = [line for line in lines[500:] if characters >= set(line)]
    assert len(unseen) > 200
    assert [page["cut_bpe"](line, made) for line in unseen] == theirs.split(unseen)


def test_diagrams_show_what_their_pages_compute() -> None:
    page, toy = run_code("docs/0-tokens.md"), run_code("docs/6-decoding.md")["follows"]
    made = page["learn_bpe"](page["lines"], 300)  # its `made` may be a solution's by now
    for word in ("▁garden", "▁older", "建てられました"):
        *_, (pieces, _) = steps = merges(word, made)
        order = [made[joined] for _, joined in steps[1:]]
        assert order == sorted(order)  # what was joined first in learning
        assert pieces == page["cut_bpe"](word.removeprefix("▁"), made)[-len(pieces) :]
    assert {word: toy[word] for word in FOLLOWS} == FOLLOWS


def says(page: str, *figures: str, in_order: bool = False) -> bool:
    """Whether a paragraph has these numbers one after another, if need be in this order, whatever the words between."""
    for paragraph in prose(without_targets(text_of(page))).split("\n\n"):
        numbers = re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", paragraph)
        runs = [numbers[i : i + len(figures)] for i in range(len(numbers))]
        if [*figures] in runs if in_order else sorted(figures) in map(sorted, runs):
            return True
    return False


@pytest.mark.parametrize("page", ["docs/0-tokens.md", "docs/ja/0-tokens.md"])
def test_what_page_0_says_of_vocabularies_was_counted(page: str) -> None:
    counted = read_json(FIGURE / "vocabulary.json")
    unknown = {size: share for size, _, share in counted["English"]["words"]}
    for size in (8000, max(unknown)):
        assert says(page, f"{unknown[size]:.0f}", f"{size:,}")
    lengths = {kind: {size: length for size, length, _ in costs} for kind, costs in counted["Japanese"].items()}
    assert lengths["BPE"][8000] == pytest.approx(lengths["words"][8000], rel=0.1)
    assert max(lengths["BPE"][16_000], lengths["unigram"][16_000]) < lengths["words"][8000]


def test_what_page_3_says_of_minimal_pairs_was_counted() -> None:
    """Its examples are pairs, too."""
    counted, page = read_json(FIGURE / "pairs.json"), text_of("docs/3-positions.md")
    rows = re.findall(r"^\| ([a-z ]+) \| (.+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    pairs = minimal_pairs()
    assert [name for name, *_ in rows] == list(pairs) == list(counted["pairs"])
    for name, example, *accuracy in rows:
        right, wrong = (re.sub(r"\[(.+?) / (.+?)\]", rf"\{side}", example) for side in (1, 2))
        assert (right, wrong) in {(pair.right, pair.wrong) for pair in pairs[name]}
        assert accuracy == [f"{run['accuracy'][name]:.1f}" for run in counted["runs"]]


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
    for name, target in re.findall(r"\[`([\w.]+)`\]\((?!\w+:)([^)\s]+)\.py\)", text):
        code = text_of(posixpath.normpath(posixpath.join(PurePosixPath(page).parent, f"{target}.py")))
        for part in name.removesuffix(".py").split("."):
            defined = re.search(rf"^( *(class|def) )?{part}\b", code, re.M)
            assert defined or f"/{target}".endswith(f"/{part}"), f"{name}: no {part} in {target}.py"


def test_options_that_pages_name_are_settings() -> None:
    known = {f"--{name}" for config_type in CONFIG_TYPES.values() for name, *_ in settings_of(config_type)}
    named = {option for page in PAGES for option in re.findall(r"`(--\w+\.[\w.]+)", prose(text_of(page)))}
    assert named - known == set()


@pytest.mark.parametrize("page", ["docs/articles.md", "docs/ja/articles.md"])
def test_what_the_articles_page_says_of_multi30k_was_measured(page: str) -> None:
    results = [read_json(RESULTS / f"multi30k_de_en_words_{seed}.json") for seed in (1, 2, 3)]
    assert f"| {sum(result['bleu'] for result in results) / 3:.2f}" in text_of(page)
    ours, theirs = results[0]["parameters"], 9_038_853  # of the same network with their vocabularies
    assert f"{theirs:,}" in text_of(page)
    assert re.search(rf"\| {ours:,}\D+{ours - theirs:,}", text_of(page))


def skeleton(text: str) -> dict[str, list[str]]:
    """What two languages of a page have in common."""
    shell = [line for block in blocks(text) if block.language == "sh" for line in block.body.splitlines()]
    formulas = re.findall(r"^\$\$(.*?)\$\$$", prose(text), re.S | re.M)
    return {
        "commands": sorted(line.split(" #")[0].rstrip() for line in shell),
        "commands in the text": sorted(set(re.findall(r"`poetry run [^`]+`", prose(text)))),
        "code": [block.body for block in blocks(text) if block.language == "python"],
        "what it prints": [block.body for block in blocks(text) if block.language == "text" and block.follows],
        "formulas": sorted(re.sub(r"\\text{[^}]*}|[\s,]|\\q?quad", "", formula) for formula in formulas),
        "pictures": sorted(re.findall(r"!\[[^\]]+\]\([^)]*?(\w+)(?:\.ja)?\.png\)", text)),
        "decimals": sorted(set(re.findall(r"\d+\.\d+", prose(text)))),
    }


@pytest.mark.parametrize("page", ENGLISH)
def test_both_languages_have_the_same_code_pictures_and_figures_and_link_to_each_other(page: str) -> None:
    assert skeleton(text_of(page)) == skeleton(text_of(ENGLISH[page]))
    for here, there in ((page, ENGLISH[page]), (ENGLISH[page], page)):
        assert f"]({posixpath.relpath(there, PurePosixPath(here).parent)})" in text_of(here)


@pytest.mark.parametrize("page", ENGLISH)
def test_japanese_pages_show_pictures_with_japanese_labels(page: str) -> None:
    for shown, here in ((page, ".ja.png"), (ENGLISH[page], ".png")):
        for name, suffix in re.findall(r"\]\([./]*figure/(\w+)((?:\.\w+)?\.png)\)", text_of(shown)):
            assert suffix == here or name == "activations", name  # which has no word


def japanese(names: str) -> list[str]:
    """Those of a cell of the glossary that a Japanese text can have in place of others."""
    return [name for name in names.strip().split("、") if re.search("[ぁ-ヺ一-鿿]", name)]


def test_japanese_texts_call_each_thing_by_the_glossarys_name() -> None:
    rows = re.findall(r"^\| (?!英語)[^|]+ \| ([^|]+) \| ([^|]*)\|", text_of(GLOSSARY), re.M)
    ours, others = ({name for row in rows for name in japanese(row[column])} for column in (0, 1))
    assert len(others) > 100
    assert not ours & others
    names = re.compile("|".join(sorted(ours | others, key=len, reverse=True)))  # フォルダー before フォルダ
    pages = re.compile(
        r"README\.ja\.md|docs/ja/(?!glossary).*|docs/nlp100\.md|pickles/README\.md|utils/.*\.(?:html|js)"
    )
    used = set()
    for page in filter(pages.fullmatch, sorted(tracked())):
        for number, line in enumerate(text_of(page).splitlines(), start=1):
            found = set() if " · " in line else set(names.findall(line))  # NLP100's titles stand behind a dot
            assert not found & others, f"{page}, line {number}"
            used |= found
    assert used >= ours


@pytest.mark.parametrize("page", [*ENGLISH, GLOSSARY])
def test_japanese_is_written_in_one_style(page: str) -> None:
    """No sentence ends in a colon, and what is counted is in figures, apart from 一つ and words with 一."""
    assert not re.findall(r"^.*[ぁ-んァ-ヶー一-鿿）]:$", prose(text_of(page)), re.M)
    assert not re.findall("[二三四五六七八九](?:分|秒|時間|コア|層|文|語|回|倍|行|通り|トークン)", prose(text_of(page)))


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").encode()) <= 15_000


def test_what_the_readme_translates_comes_out_so(tmp_path: Path) -> None:
    """By those that come with the project, as before any run of one's own; the demo's sentence has its own test."""
    for name in SHIPPED:
        (tmp_path / name).symlink_to(PICKLES / name)
    quoted = re.findall(r'^\.venv/bin/python translate\.py "(.+)" +# (.+)$', text_of("README.md"), re.M)
    assert len(quoted) == 4
    for source, translation in quoted[:3]:
        run = run_reading(source, tmp_path).folder
        (found,) = load_run(run, torch.device("cpu"), plain=True).translator(precision="fp32").translate([source])
        assert found.text == translation


@pytest.mark.parametrize("page", ["docs/serving.md", "docs/ja/serving.md"])
def test_tags_come_out_as_the_page_on_serving_says(page: str) -> None:
    asked, answer = re.findall(r"^curl (.+)\n```\n\n```json\n(.+)\n```$", text_of(page), re.M)[0]
    fields = dict(word.split("=", 1) for word in shlex.split(asked) if "=" in word)
    run = load_run(PICKLES / "kftt_ja_en", torch.device("cpu"))
    inspector = Inspector(run.translator(precision="fp32"), [run.model])
    served = ServedRun("a", "ja", "en", 4, partial(translate_lines, inspector))
    assert ask(create_app([served], Limits()), lambda client: client.post("/translate", data=fields)).text == answer


@pytest.mark.parametrize("page", ["docs/own_text.md", "docs/ja/own_text.md"])
@pytest.mark.parametrize(("kind", "run"), [("srt", "kftt_ja_en"), ("po", "kftt_en_ja")])
def test_files_keep_their_shape_as_the_page_on_own_text_says(
    kind: str, run: str, page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, translated = (block.body for block in blocks(text_of(page)) if block.language == kind)
    file = tmp_path / f"given.{kind}"
    file.write_text(given, encoding="utf-8")
    words = ["--run", run, "--precision", "fp32", "--input", file]
    assert outcome("translate.py", translate.main, capsys, *words).out == translated


@pytest.mark.parametrize("name", TABLES)
def test_pages_show_what_was_measured(name: str) -> None:
    make, pages = TABLES[name]
    for page in pages:
        table = in_language_of(page, make())
        assert with_table(text_of(page), table, name) == text_of(page)
        words = re.search(r"\b(run|seeds|tokens|threads|greedy|by|of|the)\b", re.sub(r"`[^`]+`", "", table))
        assert bool(words) == (page not in ENGLISH), page


@pytest.mark.parametrize("page", ["docs/8-transformer-xl.md", "docs/ja/8-transformer-xl.md"])
def test_what_page_8_says_of_short_segments_was_measured(page: str) -> None:
    found = {run.partition("-")[0]: rows for run, rows in read_json(FIGURE / "memory_short.json").items()}
    by_word = {run: {row["memory_length"]: row["word_ppl"] for row in rows} for run, rows in found.items()}
    for memory_length in (32, 128):
        assert says(page, f"{by_word['xl_128'][memory_length]:.0f}", str(memory_length))
    assert says(page, "32", f"{by_word['xl_32'][64]:.0f}")
    assert [min(of, key=of.__getitem__) for of in by_word.values()] == [32, 64, 128]


def test_what_pages_say_a_setting_is_worth_was_measured() -> None:
    measured = "".join(file.read_text(encoding="utf-8") for file in FIGURE.glob("ablation_*.md")).replace("**", "")
    worth = re.compile(r"[\d.]+ ± [\d.]+ \| [+-][\d.]+ \(± [\d.]+\)")
    rows = [row for page in PAGES for row in worth.findall(text_of(page))]
    assert len(rows) >= 20
    assert not [row for row in rows if row not in measured]


@pytest.mark.parametrize("page", ["docs/log.md", "docs/ja/log.md"])
def test_what_failed_is_told_newest_first_with_figures_that_were_measured(page: str) -> None:
    measured = "".join(file.read_text(encoding="utf-8") for file in FIGURE.glob("ablation_*.md"))
    for section in text_of(page).split("\n## ")[1:]:
        rows = re.findall(r"^\| (\d{4}-\d\d-\d\d) \| (.+) \|$", section, re.M)
        assert len(rows) >= 5
        assert rows == sorted(rows, key=lambda row: row[0], reverse=True)
        assert all(re.search(r"\d\.\d|\d %|\d{3}", row) for _, row in rows)
        assert not [mean for _, row in rows for mean in re.findall(r"[\d.]+ ± [\d.]+", row) if mean not in measured]


def test_the_page_of_translations_is_what_the_results_say() -> None:
    page = translations_page()
    assert page == SAMPLES.read_text(encoding="utf-8")
    for file in RESULTS.glob("*_1.txt"):
        name = file.stem.removesuffix("_1")
        assert page.partition(f"## `{name}` (")[2].partition("##")[0].count("\n  - **") == 5
        kept = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["samples"]
        lines = file.read_text(encoding="utf-8").splitlines()
        assert [sample["translation"] for sample in kept] == lines[:: len(lines) // 20][:20]


ARCHIVES = {"kftt": "kftt-data-1.0.tar.xz", "tanaka": "small_parallel_enja.tar.xz"}
ARCHIVES |= dict.fromkeys(("multi30k", "multi30k_tok"), "multi30k.tar.xz")
RESULT = {"name": "tiny", "seed": 3, "corpus": "kftt", "direction": "ja-en", "parameters": 1e6, "minutes": 2.0}
RESULT |= {"target_tokens": 1e6, "perplexity": 4.0, "bleu": 12.345, "chrf": 34.5}


def keep(folder: Path, result: dict[str, Any], **changes: object) -> None:
    result = result | changes
    folder.mkdir(exist_ok=True)
    (folder / f"{result['name']}_{result['seed']}.json").write_text(json.dumps(result), encoding="utf-8")


def finished_run(folder: Path, **changes: object) -> Path:
    """A run that has nothing but its result."""
    folder.mkdir()
    (folder / "test.json").write_text(json.dumps(RESULT | changes), encoding="utf-8")
    (folder / "test.txt").write_text("都 は 古い。\n", encoding="utf-8")
    return folder


def references(corpus: str, request: pytest.FixtureRequest, folder: Path, *languages: str) -> list[list[str]]:
    """The test set's in these languages, from the project itself or from its published archive."""
    if corpus == "embedded":
        return [read_lines(prepare_corpus(DataConfig(corpus="embedded")).test.tgt)]  # it has one direction
    paths = [CORPORA[corpus].splits[2].format(lang=language) for language in languages]
    take(request.getfixturevalue("shared_data") / ARCHIVES[corpus], paths, folder)
    return [read_lines(folder / path) for path in paths]


SCORED = sorted(RESULTS.glob("*.txt"))
QUICK = ("demo_1", "multi30k_de_en_1", "tanaka_en_ja_1")


@pytest.mark.parametrize(
    "translations",
    [pytest.param(file, marks=() if file.stem in QUICK else pytest.mark.slow, id=file.stem) for file in SCORED],
)
def test_scores_are_those_of_the_translations(
    translations: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    result = json.loads(translations.with_suffix(".json").read_text(encoding="utf-8"))
    tgt_lang = result["direction"].partition("-")[2]
    (right,) = references(result["corpus"], request, tmp_path, tgt_lang)
    metrics = build_metrics(tgt_lang, bleu_tokenizer(tgt_lang, "tok:none" in result["bleu_signature"]))
    bleu, chrf = measure(read_lines(translations), right, {name: metrics[name] for name in ("BLEU", "chrF2")})
    assert bleu.score == pytest.approx(result["bleu"], abs=1e-9)
    assert chrf.score == pytest.approx(result["chrf"], abs=1e-9)
    assert bleu.signature == result["bleu_signature"]


@pytest.mark.slow
def test_what_the_page_says_of_nymwas_protocol_is_counted_so(shared_data: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    ((translations, path, line),) = re.findall(r"bleu (figure/\S+) corpus/kftt/(\S+) --plain +# (BLEU = [\d.]+)", page)
    take(shared_data / ARCHIVES["kftt"], {path}, tmp_path)
    right = read_lines(tmp_path / path)
    assert (len(right), sum(len(line.split()) for line in right)) == PUBLISHED_TEST
    assert multi_bleu(moses_words(read_lines(ROOT / translations)), right).startswith(f"{line}, ")


def test_what_page_9_says_of_kftts_test_set_is_counted_so(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    right = dict(zip(("en", "ja"), references("kftt", request, tmp_path, "en", "ja"), strict=True))
    small, english, japanese = (
        read_lines(RESULTS / f"kftt_{name}_1.txt") for name in ("ja_en_small", "ja_en", "en_ja")
    )

    def bleu(ours: list[str], lang: str = "en", **options: Any) -> str:
        return f"{BLEU(force=True, **options).corpus_score(ours, [right[lang]]).score:.2f}"

    others = [bleu(english, tokenize=tokenizer) for tokenizer in ("intl", "none", "char")]
    in_english = [bleu(english), bleu(english, lowercase=True), *others]
    in_japanese = [bleu(japanese, "ja", tokenize=tokenizer) for tokenizer in ("13a", "char", "ja-mecab")]
    positive = [re.sub(r" not\b", "", line) for line in english]
    renamed = [line.replace("Yoshinobu", "Yoshimune") for line in english]
    n_negative, n_named = (str(sum(map(str.__ne__, changed, english))) for changed in (positive, renamed))
    systems = [System("small", small), System("large", english)]
    both, (found,) = compare(systems, right["en"], {"BLEU": BLEU()}, "bootstrap")
    shown = [f"{name} {of.score:.2f} [{of.low:.2f}, {of.high:.2f}]" for name, (of,) in zip("AB", both, strict=True)]
    compared = f"BLEU {' '.join(shown)} BLEU {found.difference:+.2f} {found.p_value:.4f} better"
    for page in ("docs/9-scores.md", "docs/ja/9-scores.md"):
        assert says(page, *in_english, in_order=True)
        assert says(page, *in_japanese, in_order=True)
        assert says(page, n_negative, f"{len(english):,}")
        assert says(page, bleu(english), bleu(positive))
        assert says(page, n_named, bleu(renamed))
        assert compared in " ".join(text_of(page).split())


def test_each_result_says_how_it_was_made_and_has_its_translations() -> None:
    before_fingerprints = re.compile("kftt_.*_small_|multi30k_(de_en|en_de)(_raw)?_[0-9]|tanaka_(ja_en|en_ja)_")
    for file in RESULTS.glob("*.json"):
        result = json.loads(file.read_text(encoding="utf-8"))
        assert file.stem == f"{result['name']}_{result['seed']}"
        assert result["config"]["training"]["seed"] == result["seed"]
        assert result["commit"].isalnum(), "made by code that had been changed since its commit"
        assert "fingerprint" in result or before_fingerprints.match(file.stem)
        assert file.with_suffix(".txt").is_file() == ("bleu" in result)


def test_the_preset_gpt_en_trains_what_is_recorded_as_vanilla_en() -> None:
    (command,) = (words for words in SPOKEN if {"gpt_en", "vanilla_en"} <= {*words})
    config = read_arguments(command[2:]).config.plain(lambda path: path.name)
    changed = changed_settings(read_json(RESULTS / "vanilla_en_1.json")["config"], config)
    assert changed == {"training.precision": ("bf16", "auto"), "training.graphs": (ABSENT, True)}


def test_a_mean_is_of_one_recipe(tmp_path: Path) -> None:
    def add(seed: int, d_model: int, search: Any = None, **data: Any) -> None:
        config = {"model": {"d_model": d_model}, "data": data, "training": {"seed": seed}, "search": search or {}}
        keep(tmp_path, RESULT, seed=seed, config=config)

    add(1, 128)
    for same in ({"more_src": None, "pre_tokenized": False}, {"search": {"coverage_penalty": 0.0}}):
        add(2, 128, **same)
        assert "2 seeds" in result_table(tmp_path)
    for d_model, data, name in ((256, {}, "model.d_model"), (128, {"held_out": 0}, "data.held_out")):
        add(2, d_model, **data)
        with pytest.raises(ValueError, match=rf"tiny_2\.json differs from other results of tiny in {name}: keep"):
            result_table(tmp_path)


def test_only_the_part_between_the_marks_changes() -> None:
    page = "above\n<!-- speed -->\nold\n<!-- /speed -->\n<!-- results -->\nother\n<!-- /results -->\n"
    assert with_table(page, "new", "speed") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no <!-- size -->"):
        with_table(page, "new", "size")


def test_the_command_keeps_results_with_their_translations_and_renews_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, results = tmp_path / "README.md", tmp_path / "results"
    page.write_text("<!-- results -->\n<!-- /results -->\n", encoding="utf-8")
    monkeypatch.setattr(results_module, "ROOT", tmp_path)
    monkeypatch.setattr(results_module, "RESULTS", results)
    monkeypatch.setattr(results_module, "TABLES", {"results": (lambda: result_table(results), ("README.md",))})
    monkeypatch.setattr(results_module, "find_run", lambda name: tmp_path / name)
    run = finished_run(tmp_path / "a", name="tanaka_en_ja")
    assert outcome("bench.results", results_module.main, capsys, "a").out == f"{results / 'tanaka_en_ja_3.json'}\n"
    assert "`tanaka_en_ja` | kftt" in page.read_text(encoding="utf-8")
    assert (results / "tanaka_en_ja_3.txt").read_text(encoding="utf-8") == "都 は 古い。\n"
    for file in ("test.txt", "test.json"):
        (run / file).unlink()
        found = outcome("bench.results", results_module.main, capsys, "a")
        assert found.status == 2
        assert re.search("a has no .*test", found.err)


# the site


def test_every_link_of_the_site_leads_to_a_page_that_it_has(tmp_path: Path) -> None:
    pytest.importorskip("docs.site").write_site(tmp_path)
    (tmp_path / "live").mkdir()
    for exported in ("index.html", "explain.html"):  # what `make site` writes beside it
        (tmp_path / "live" / exported).write_text("", "utf-8")
    pages = {page: page.read_text("utf-8") for page in tmp_path.rglob("*.html")}
    assert {"1-attention.html", "explain.html", "beam.py.html"} <= {page.name for page in pages}
    tried = set()
    for page, html in pages.items():
        assert "<p>&lt;!--" not in html  # a mark for a formatter
        for link in map(unescape, re.findall(r'(?:href|src)="([^"]*)"', re.sub("<pre.*?</pre>", "", html, flags=re.S))):
            if re.match(r"\w+:", link):
                continue
            name, _, heading = (unquote(part) for part in link.partition("#"))
            target = page.parent / name if name else page
            assert target.resolve().is_file(), f"{page}: {link}"
            if target.name == "explain.html":
                tried.add((page.relative_to(tmp_path).as_posix()[:-5], "show=" in heading))
            elif heading:
                assert f'id="{heading}"' in target.read_text("utf-8"), f"{page}: {link}"
    guide = {
        f"docs/{lang}{page}"
        for lang in ("", "ja/")
        for page in ("1-attention", "3-positions", "4-blocks", "6-decoding")
    }
    assert {page for page, opens in tried if opens} == guide
    for lang, terms in {"": ("Beam search", "perplexity"), "ja/": ("ビームサーチ", "パープレキシティー")}.items():
        index = pages[tmp_path / f"docs/{lang}terms.html"]
        assert all(re.search(rf'<span><a href="[\w.-]+#[^"]+">{term}', index) for term in terms)
    formulas = pages[tmp_path / "docs/1-attention.html"]
    assert "<mfrac>" in formulas
    assert "$$" not in re.sub("<pre.*?</pre>", "", formulas, flags=re.S)
