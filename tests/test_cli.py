"""The commands, as typed: what works, on one tiny run a task; what is refused in one line; what all commands share."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock, call

import httpx
import pytest
from PIL import Image

import export
import predict
import translate
from config.data import MonolingualConfig
from const.path import ROOT
from const.token import EOS_ID, UNK_ID
from tests.tiny import JAPANESE, LABELS, TEXT, Outcome, bert_run, classifier_run, english, language_run, outcome, run
from utils.command import Parser, confirm, duration, needing_group, run_command
from utils.config import LanguageConfig, TranslationConfig
from utils.file import atomic_file
from utils.run import CONFIG, find_run, run_reading
from utils.task.language import perplexity_by_memory

Command = Callable[..., Outcome]

COMMANDS: dict[str, ModuleType] = {"translate.py": translate, "predict.py": predict}

# command | standard input | pattern of the output; a run that is not named is the newest of its task
WORKS = r"""
translate.py 寺                                               |          | .+\n
translate.py                                                  | 寺\n\n橋 | .+\n\n.+\n
translate.py                                                  |          |
translate.py --input in.ja --output out.en                    |          |
translate.py 寺 --output -                                    |          | .+\n
translate.py --input in.ja --output /dev/stdout               |          | (.+\n){3}
translate.py 寺 --prefix 'There is'                           |          | There is.*\n
translate.py 寺 --alternatives 3 --max-length 9 --beam 1      |          | .+\n\n( *\d+ +\S+ +│( +\S+ +<?[\d.]+ %){3}\n)+
translate.py 寺 --alternatives 2 --format jsonl               |          | \{.*"alternatives": \[\{"position": 1, "token": .*\}\n
translate.py 寺 --alternatives 2 --n-best 2 --format jsonl    |          | \{.*"n_best": .*"alternatives": .*\}\n
translate.py 寺 --score 'temple 😀'                           |          | (\S+ +<?[\d.]+ %\n)+\nlog-probability -[\d.]+, .*\n
translate.py 寺 --score temple                                |          | (\S+ +<?[\d.]+ %\n)+\nlog-probability -[\d.]+, .*\n
translate.py 寺 --score temple --format jsonl                 |          | \{.*"log_prob": -.*"perplexity": .*\}\n
translate.py 寺 --sample --n-best 3 --seed 0                  |          | (1\t-[\d.]+\t.+\n){3}
translate.py 寺 --sample --minimum-bayes-risk                 |          | .+\n
translate.py 寺 --run TRANSLATOR --run TRANSLATOR             |          | .+\n
translate.py 寺 --attention a.png                             |          | .+\n
translate.py 寺 --explain a.html --prefix 'There is'          |          | There is.*\n
translate.py 京都 --glossary terms.tsv --beam 1               |          | (.* )?Uji( .*)?\n
translate.py 京都 --glossary terms.tsv --prefix 'There is'    |          | There is.* Uji( .*)?\n
translate.py 京都 --glossary terms.tsv --n-best 2             |          | (\d\t-[\d.]+\t(.* )?Uji( .*)?\n){2}
translate.py 京都 --glossary terms.tsv --minimum-bayes-risk   |          | (.* )?Uji( .*)?\n
translate.py 京都 --glossary terms.tsv --run TRANSLATOR --run TRANSLATOR | | (.* )?Uji( .*)?\n
translate.py 京都 --glossary terms.tsv --attention a.html     |          | (.* )?Uji( .*)?\n
translate.py 寺 --explain a.html --beam 1 --n-best 1          |          | .+\n
predict.py fill-mask 京都に[MASK]と[MASK]。 [MASK] --top 2    |          | FILLED\n  橋  32.5%  橋  32.5%\n  川  12.5%  川  12.5%\n橋\n(.+\n){2}
predict.py fill-mask --top 1 --run BERT                       | \n[MASK] | 橋\n  橋  32.5%\n
predict.py fill-mask 京[MASK] --top 1 --attention a.png       |          | .*橋\n  橋  32.5%\n
predict.py classify 寺 橋がある --top 2                       |          | 寺\nANSWER橋がある\nANSWER
predict.py classify --top 2 --run CLASSIFIER                  | 寺\n\n   | 寺\nANSWER\nANSWER
predict.py classify --texts in.ja --labels labels             |          | accuracy 33.33 % of 3 texts\nmost .*: bridge .* river \(1\), .*\n
predict.py generate 'There is' --greedy --tokens 4            |          | There is\.{4}\n
predict.py generate 'There is' --samples 9 --seed 7           |          | (There is\.*\n){9}
predict.py generate --samples 2 --run LANGUAGE_MODEL          |          | (\.*\n){2}
predict.py perplexity --run LIVELY --memory-lengths 0 8       |          | .*, test, segments of 5\n(.*\n){1,2}( +\d+ +[\d.]+ +[\d.]+\n){2}  more memory helps up to [08]; up to [08] and [08] on .*\n
predict.py perplexity --run LIVELY --memory-lengths 0 8 --segment-length 3 |          | .*, test, segments of 3\n(.*\n){1,2}( +\d+ +[\d.]+ +[\d.]+\n){2}  more memory helps up to [08]; up to [08] and [08] on .*\n
"""  # noqa: E501

# command | standard input | words of the one line on standard error
REFUSED = r"""
translate.py 寺 --beem 3                                      |          | unknown option beem: did you mean --beam?
translate.py -5度です                                         |          | put -- before a text that begins with -
translate.py --京都は古い。--                                 |          | argument --京都は古い。--: put -- before a text that begins
translate.py 寺 --format xml                                  |          | xml
translate.py 寺 --input in.ja                                 |          | texts and --input in.ja at once: give one of them
translate.py --input film.srt --format jsonl                  |          | --input film.srt and --format jsonl at once: its lines
translate.py --input film.srt --n-best 2                      |          | --input film.srt and --n-best 2 at once: its lines
translate.py --input wrong.srt --output out                   |          | wrong.srt, line 6: '00:00:02,000 -> 00:00:03,000' belongs to no
translate.py --input film.vtt --output film.en.vtt            |          | --input film.vtt: a .vtt file is not read: convert it
translate.py --input a.pot.gz --output a.po                   |          | --input a.pot.gz: a .pot file is not read: it is a template
translate.py --input a.HTML                                   |          | a .html file is not read: serve.py translates HTML; to
translate.py --output film.en.srt                             | 1\n     | --output film.en.srt: give a .srt file as --input, or another
translate.py --input film.srt --output a.PO                   |          | --output a.PO: give a .po file as --input, or another
translate.py --input nowhere --output out                     |          | no such file: nowhere
translate.py --input in.ja --output link.ja                   |          | --output link.ja is the file of --input: give another
translate.py 寺 --n-best 0                                    |          | --n-best 0: give 1 or more
translate.py 寺 --n-best 1001                                 |          | --n-best 1001: give 1 to 1,000 (1 is greedy)
translate.py 寺 --sample --n-best 10001                       |          | --n-best 10001: give 1 to 10,000
translate.py 寺 --n-best 3 --beam 2                           |          | --beam 2 is less than --n-best 3: give --beam 3
translate.py 寺 --beam 0                                      |          | --beam 0: give 1 to 1,000 (1 is greedy)
translate.py 寺 --min-length 5 --max-length 3                 |          | --min-length 5: give 0 to --max-length 3
translate.py 寺 --sample --n-best 3 --samples 2               |          | --samples 2 is less than --n-best 3: give --samples 3
translate.py 寺 --beam 1 --minimum-bayes-risk                 |          | nothing to choose from: give e.g. --beam 8, or --sample
translate.py 寺 --sample --beam 4                             |          | --sample and --beam 4 at once: samples are drawn
translate.py 寺 --temperature 0.5                             |          | --temperature 0.5 and a search at once: add --sample
translate.py 寺 橋 --alternatives 2                           |          | --alternatives 2 and 2 texts at once: give one text
translate.py 寺 --alternatives 2 --n-best 2                   |          | --alternatives 2 and --n-best 2 at once: it is of the best
translate.py 寺 --score temple --n-best 2                     |          | --score temple and --n-best 2 at once: give one of them
translate.py 😀 --alternatives 3                              |          | nothing that the model has translated
translate.py 寺。橋。 --attention a.png                         |          | sentences: give one of them
translate.py 寺 --log-probs                                   |          | --log-probs and --format text at once: give --format jsonl
translate.py 寺 橋 --score temple                             |          | give one text, or two files
translate.py 寺 --prefix 😀                                   |          | '😀' has characters outside the vocabulary
translate.py 寺 --glossary nowhere                            |          | no such file: nowhere
translate.py 寺 --glossary short.tsv                          |          | short.tsv, line 3, '奈良': give a source term, one tab and
translate.py 寺 --glossary twice.tsv                          |          | twice.tsv, line 2: '京都' is 'Uji' above; keep one of the two
translate.py 寺 --glossary odd.tsv                            |          | target terms with characters outside the vocabulary: 😀; rem
translate.py 寺 --glossary terms.tsv --sample                 |          | --glossary terms.tsv and --sample at once: it needs a beam
translate.py 寺 --glossary terms.tsv --score temple           |          | --glossary terms.tsv and --score temple at once: it needs
translate.py 寺 --glossary terms.tsv --explain a.html         |          | --glossary terms.tsv and --explain a.html at once: it
translate.py 寺 --format pharaoh --n-best 2                   |          | --n-best 2 at once: it is a line per text
translate.py 寺 --attention a.svg                             |          | a.svg: give the file the extension .html or .png
translate.py 寺 --run x --run y --attention a.png             |          | --attention a.png and 2 runs at once: give one --run
translate.py '' --attention a.html                            |          | '' has no token: give a sentence
translate.py 寺 --score MANY --attention a.html               |          | are more than the 48 that
translate.py ж --attention a.html                             |          | 'ж' has no word that is in the vocabulary
translate.py --input in.ja --explain a.html                   |          | --explain a.html and no text at once: give one text
translate.py 寺 橋 --explain a.html                           |          | --explain a.html and 2 texts at once: give one text
translate.py 寺 --explain a.png                               |          | a.png: give the file the extension .html
translate.py 寺 --explain in.ja/a.html                        |          | cannot write to in.ja (File exists): give --explain a file in
translate.py 寺 --explain a.html --attention ./a.html         |          | --explain a.html is the file of --attention: give
translate.py 寺 --explain a.html --sample                     |          | --sample at once: it shows a beam search and its best
translate.py 寺 --explain a.html --run x --run y              |          | --explain a.html and 2 runs at once: give one --run
translate.py 寺 --tag law                                     |          | tag=law, but the vocabulary knows no tag: give
translate.py 寺 --run x                                       |          | no run x: give a folder under
translate.py 寺 --run BERT                                    |          | is of task masked_language, but translation is needed
translate.py --output out                                     | \udcff   | standard input, line 1: byte 0xff is not UTF-8
translate.py --input euc.ja --output out                      |          | euc.ja, line 2: byte 0x
translate.py --input utf16.en --output out                    |          | utf16.en, line 1 has a NUL: is it UTF-16
predict.py fill-mask 京都                                     |          | '京都' has no [MASK]: write it where
predict.py fill-mask 寺寺寺寺寺寺寺寺寺[MASK]                 |          | are more than the 12 that the network reads: shorten
predict.py fill-mask [MASK] --run x --hugging-face y          |          | --run x and --hugging-face y at once: give one of them
predict.py fill-mask 寺[MASK] [MASK] --attention a.png        |          | --attention a.png and 2 texts at once: give one text
predict.py classify 寺 --labels labels                        |          | --texts and --labels belong together: give both
predict.py classify --texts in.ja --labels few                |          | in.ja has 3 lines but few has 2: give a label for each
predict.py classify --texts in.ja --labels wrong              |          | line 2: label 'harbour' is not among
predict.py generate a --top-p 1.5                             |          | --top-p 1.5: give more than 0 and at most 1
predict.py generate a --greedy --top-k 0                      |          | --greedy and --top-k 0 at once: leave one out
predict.py perplexity --run LANGUAGE_MODEL LANGUAGE_MODEL     |          | two runs are named
predict.py perplexity --json .                                |          | exists and is not a file
"""  # noqa: E501


def rows(table: str) -> list[tuple[str, bytes, str]]:
    """The rows of a table; what stands for bytes is written as in a string."""
    parsed = []
    for line in table.strip().splitlines():
        command, stdin, expected = (cell.strip() for cell in line.split("|", 2))
        unescaped = stdin.replace(r"\n", "\n").encode() if stdin != r"\udcff" else b"\xff"
        parsed.append((command.replace(r"\udcff", "\udcff"), unescaped, expected))
    return parsed


def files() -> dict[str, bytes]:
    """What lies in the folder that the command runs in."""
    return {str(file): file.read_bytes() for file in Path().rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Those of the other tasks say the same whatever they read; but for a livelier, older language model."""
    root = tmp_path_factory.mktemp("pickles")
    filling = [0.0] * (len(JAPANESE) + 1)
    pieces = JAPANESE.tokens(range(len(JAPANESE)))
    filling[UNK_ID], filling[pieces.index("橋")], filling[pieces.index("川")] = 0.55, 0.325, 0.125  # never UNK
    speaking = [0.0] * len(english())
    speaking[english().encode(["."])[0][-1]], speaking[EOS_ID] = 0.75, 0.25
    folders = {
        "LIVELY": language_run(root),
        "TRANSLATOR": run(root),
        "BERT": bert_run(root, filling),
        "CLASSIFIER": classifier_run(root, [0.125, 0.25, 0.625]),
        "LANGUAGE_MODEL": language_run(root, speaking),
    }
    text = root.parent / "my.en"
    text.write_text("".join(f"{line}\n" for line in TEXT.tgt), encoding="utf-8")
    translator = TranslationConfig.load(folders["TRANSLATOR"] / CONFIG)
    replace(translator, search=replace(translator.search, max_length=24)).save(folders["TRANSLATOR"] / CONFIG)
    config = LanguageConfig.load(folders["LIVELY"] / CONFIG)
    training = replace(config.training, precision="fp32", device="cpu")
    data = MonolingualConfig(text=text, language="en", held_out=6)
    replace(config, data=data, training=training).save(folders["LIVELY"] / CONFIG)
    return folders


@pytest.fixture
def cli(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs a line of a table in a folder with some files; the tiny runs are all there are."""
    labels = {"labels": LABELS, "few": LABELS[:2], "wrong": ["river", "harbour", "river"]}
    terms = {"terms.tsv": ["京都\tUji"], "short.tsv": ["寺\ttemple", "", "奈良"], "odd.tsv": ["寺\t😀"]}
    terms["twice.tsv"] = ["京都\tUji", "京都\tNara"]
    for name, lines in (labels | terms | {"in.ja": TEXT.src[:3], "in.en": TEXT.tgt[:3]}).items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "film.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\n寺\n\n2\n00:00:02,000 --> 00:00:03,000\n橋\n")
    wrong = (tmp_path / "film.srt").read_text().replace("00:02,000 -->", "00:02,000 ->")
    (tmp_path / "wrong.srt").write_text(wrong)
    (tmp_path / "film.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:02.000\n寺\n")
    (tmp_path / "a.pot.gz").touch()
    (tmp_path / "a.HTML").touch()
    (tmp_path / "link.ja").symlink_to("in.ja")
    (tmp_path / "euc.ja").write_bytes("寺\n".encode() + "京都\n".encode("euc-jp"))
    (tmp_path / "utf16.en").write_bytes("There is a temple.\n".encode("utf-16-le"))
    monkeypatch.chdir(tmp_path)
    root = runs["TRANSLATOR"].parent
    for module in COMMANDS.values():
        monkeypatch.setattr(module, "find_run", partial(find_run, root=root))
    monkeypatch.setattr(COMMANDS["translate.py"], "run_reading", partial(run_reading, root=root))
    cached = partial(perplexity_by_memory, root=root.parent / "caches")
    monkeypatch.setattr("utils.task.language.perplexity_by_memory", cached)
    names = {"MANY": "temple " * 48} | {name: str(run) for name, run in runs.items()}

    def run_it(line: str, stdin: bytes = b"") -> Outcome:
        program, *words = [names.get(word, word) for word in shlex.split(line)]
        return outcome(program, COMMANDS[program].main, capsys, *words, stdin=stdin)

    return run_it


@pytest.mark.parametrize(("line", "stdin", "pattern"), rows(WORKS))
def test_a_command_works(cli: Command, line: str, stdin: bytes, pattern: str) -> None:
    filled = re.escape(JAPANESE.decode(JAPANESE.encode(["京都に橋と橋。"]))[0])
    pattern = pattern.replace("FILLED", filled).replace("ANSWER", r"  river   62\.5%\n  garden  25\.0%\n")
    ended = cli(line, stdin)
    assert ended.status == 0, ended.err
    assert re.fullmatch(pattern, ended.out), ended.out


@pytest.mark.parametrize(("line", "stdin", "words"), rows(REFUSED))
def test_a_mistake_is_one_line_and_touches_nothing(cli: Command, line: str, stdin: bytes, words: str) -> None:
    before = files()
    assert words in cli(line, stdin).complaint
    assert files() == before


def test_files_are_those_that_were_asked_for(cli: Command) -> None:
    before = files().keys()
    expected = cli("translate.py --input in.ja").out
    cli("translate.py --input in.ja --output new.en")
    cli("translate.py 寺 --attention new/a.html")
    cli("predict.py perplexity --run LIVELY --memory-lengths 0 8 --json m.json --picture m.png")
    new = {Path(name).name: content for name, content in files().items() if name not in before}
    assert set(new) == {"new.en", "a.html", "m.json", "m.png"}
    assert new["new.en"].decode() == expected
    (points,) = json.loads(new["m.json"]).values()
    assert [point["memory_length"] for point in points] == [0, 8]
    with Image.open(io.BytesIO(new["m.png"])) as image:
        assert image.format == "PNG"


def test_a_line_that_cannot_be_filled_in_does_not_end_the_others(cli: Command) -> None:
    ended = cli("predict.py fill-mask --top 1", "京都\n[MASK]\n\n寺寺寺寺寺寺寺寺寺[MASK]\n  \n[MASK]".encode())
    assert ended.status == 2
    assert ended.out == "橋\n  橋  32.5%\n" * 2
    first, second, last = ended.err.splitlines()
    assert first.startswith("line 1: '京都' has no [MASK]")
    assert second.startswith("line 4: ")
    assert last == "predict.py: error: 2 of the lines could not be filled in: see above"


def test_every_option_of_sampling_changes_what_is_generated(cli: Command) -> None:
    options = ["--samples 3", "--temperature 0.7", "--top-k 11", "--top-p 0.9", "--seed 5", "--memory-length 1"]

    def generated(given: list[str]) -> str:
        return cli(f"predict.py generate 'There is' --tokens 12 --run LIVELY {' '.join(given)}").out

    drawn = generated(options)
    assert drawn == generated(options)
    for option in options:
        assert generated([other for other in options if other != option]) != drawn, option


MISTAKES = [
    "translate.py 寺 --sample --beam 4",
    "predict.py generate a --top-p 1.5",
    "evaluate.py file nowhere nowhere --tgt-lang en",
    "serve.py --max-chars 0",
    "export.py --to ctranslate2 --output .",
    "study.py nowhere.yaml",
]


SLOW = ["torch", "matplotlib", "jaxtyping", "safetensors", "sacrebleu", "optuna", "ctranslate2", "transformers"]
SLOW += ["tokenizers", "jinja2", "pooch", "tensorboard", "starlette", "uvicorn", "prometheus_client"]


def hiding(packages: list[str], folder: Path) -> dict[str, str]:
    """Return an environment in which a process ends at once if it imports one of these: others are in their place."""
    for package in packages:
        (folder / f"{package}.py").write_text(f"raise SystemExit('{package} was imported')")
    return os.environ | {"PYTHONPATH": str(folder)}


def without(packages: list[str], line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that ends at once if it imports one of these packages."""
    command, environment = [sys.executable, *shlex.split(line)], hiding(packages, folder)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("line", [*(f"{file.name} --help" for file in sorted(ROOT.glob("*.py"))), *MISTAKES])
def test_help_and_mistakes_need_not_wait_for_imports(line: str, tmp_path: Path) -> None:
    needed = {"sacrebleu"} if line.startswith("evaluate.py") else set()  # a twentieth of a second
    process = without([package for package in SLOW if package not in needed], line, tmp_path)
    assert process.returncode == (0 if "--help" in line else 2), process.stderr


@pytest.mark.parametrize(
    "given", ["--beam 1", "--format jsonl --log-probs --minimum-bayes-risk --n-best 2", "--score a"]
)
def test_what_was_exported_translates_without_torch(given: str, runs: dict[str, Path], tmp_path: Path) -> None:
    export.export(runs["TRANSLATOR"], "ctranslate2", tmp_path / "exported")
    packages = [package for package in SLOW if package != "ctranslate2"]
    process = without(packages, f"translate.py 寺 --run {tmp_path / 'exported'} {given}", tmp_path)
    assert process.returncode == 0
    assert re.fullmatch(r"(line 1: the model repeated itself again and again: .*\n)?", process.stderr)
    assert process.stdout.strip()


def test_what_was_exported_is_served_with_the_packages_of_its_groups_alone(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    export.export(runs["TRANSLATOR"], "ctranslate2", tmp_path / "exported")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["poetry"]["group"]
    listed = {name.replace("-", "_") for group in ("engine", "serve") for name in groups[group]["dependencies"]}
    environment = hiding([package for package in SLOW if package not in {*listed, "starlette"}], tmp_path)
    command = [sys.executable, "serve.py", "--port", "0", "--run", str(tmp_path / "exported")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().partition(" ")[0]
        answer = httpx.post(f"{url}/translate", json={"q": "寺", "source": "ja", "target": "en"}, timeout=60)
        shown = httpx.post(f"{url}/api/translate", json={"text": "寺", "attention": True}, timeout=60)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert answer.json()["translatedText"]
    assert shown.status_code == 200


# what all commands share: exit statuses, one-line errors, option names, durations


def raising(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


def options() -> Parser:
    parser = Parser(prog="verb.py")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--resume", type=str)
    parser.add_argument("--model.d_model", type=int, default=512)
    return parser


CUDA, REMEDY = "CUDA out of memory. Tried to allocate 2 GiB", "free some, or ask for less at a time"


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (lambda: None, 0, ""),
        (raising(KeyboardInterrupt()), 130, "interrupted"),
        (lambda: sys.exit(3), 3, ""),
        (raising(ValueError("d_model=3 does\nnot  split")), 2, "error: d_model=3 does not split"),
        (raising(FileNotFoundError(2, "No such file", "a.ja")), 2, "error: [Errno 2] No such file: 'a.ja'"),
        (raising(MemoryError()), 2, f"error: out of memory (MemoryError): {REMEDY}"),
        (raising(RuntimeError(f"{CUDA}\nmore")), 2, f"error: out of memory ({CUDA}): {REMEDY}"),
    ],
)
def test_a_command_ends_with_the_status_that_a_shell_knows_and_what_a_user_can_mend_is_one_line(
    capsys: pytest.CaptureFixture[str], end: Callable[[], None], status: int, said: str
) -> None:
    with pytest.raises(SystemExit, match=str(status)):
        run_command("verb.py", end)
    assert capsys.readouterr() == ("", f"verb.py: {said}\n" if said else "")


def test_our_own_mistakes_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        run_command("verb.py", raising(RuntimeError("shapes")))


def test_python_in_development_mode_tells_where_a_mistake_came_from() -> None:
    code = "from utils.command import run_command; run_command('verb.py', lambda: int('x'))"
    ends = []
    for mode in ([], ["-X", "dev"]):
        process = subprocess.run([sys.executable, *mode, "-c", code], cwd=ROOT, capture_output=True, text=True)
        ends.append("Traceback" in process.stderr)
    assert ends == [False, True]


def test_pictures_are_drawn_whatever_a_notebook_sets_for_its_own() -> None:
    code = "from utils.command import run_command; run_command('verb.py', lambda: __import__('matplotlib.pyplot'))"
    for backend in ("module://matplotlib_inline.backend_inline", "TkAgg"):
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"MPLBACKEND": backend}, check=True)


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_what_the_caller_has_closed_is_empty(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def main() -> None:
        assert sys.stdin.isatty() is False
        print("said", file=sys.stderr)
        print("said")

    monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit, match="0"):
        run_command("verb.py", main)


@pytest.mark.parametrize(
    ("said", "goes_on"),
    [("y", True), (" Yes ", True), ("", False), ("n", False), (EOFError, False), (KeyboardInterrupt, False)],
)
def test_a_question_is_asked_on_a_terminal_only_and_enter_is_no(
    said: str | type[BaseException], goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Mock(side_effect=[said])
    monkeypatch.setattr("builtins.input", asked)
    for n_terminals in range(3):
        monkeypatch.setattr(sys, "stdin", Mock(isatty=lambda n=n_terminals: n > 0))
        monkeypatch.setattr(sys, "stdout", Mock(isatty=lambda n=n_terminals: n > 1))
        with nullcontext() if goes_on or n_terminals < 2 else pytest.raises(KeyboardInterrupt):
            confirm("Go on?")
        assert asked.call_args_list == [call("Go on? [y/N] ")] * (n_terminals == 2)


def test_sigterm_leaves_nothing_half_written(tmp_path: Path) -> None:
    def main() -> None:
        with atomic_file(tmp_path / "out") as draft:
            draft.write_text("half")
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit, match="143"):
        run_command("verb.py", main)
    assert not list(tmp_path.iterdir())


def test_a_pipe_that_closes_leaves_no_trace() -> None:
    code = "from utils.command import run_command; run_command('verb.py', lambda: [print(i) for i in range(99999)])"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe) as verb:
        assert verb.stdout is not None
        assert verb.stderr is not None
        assert verb.stdout.readline() == b"0\n"
        verb.stdout.close()
        assert verb.stderr.read() == b""
        assert verb.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--model.dmodel", "3"], "unknown option model.dmodel: did you mean --model.d_model?"),
        (["--qqqqq", "3"], "unknown option qqqqq: see --help"),
        (["--resum", "run"], "unknown option resum: did you mean --resume?"),  # no option may be abbreviated
        (["--beam", "wide"], "argument --beam: invalid int value: 'wide'"),
        (["stray"], "unrecognized argument stray"),
    ],
)
def test_an_option_that_is_wrong_is_named_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        options().parse_args(arguments)
    assert capsys.readouterr() == ("", f"verb.py: error: {line}\n")


@pytest.mark.parametrize("option", ["--length_penalty", "--length-penalty"])
@pytest.mark.parametrize("declared", ["--length_penalty", "--length-penalty"])
def test_the_words_of_an_option_are_joined_by_either_sign(declared: str, option: str) -> None:
    parser = options()
    parser.add_argument(declared, type=float)
    for given in ([option, "-0.5"], [f"{option}=-0.5"]):
        arguments = parser.parse_args(["--resume", "a_b", "--model.d_model=8", *given])
        assert (arguments.length_penalty, arguments.resume, arguments["model.d_model"]) == (-0.5, "a_b", 8)


def test_a_group_that_is_not_installed_is_named() -> None:
    with (
        pytest.raises(ValueError, match=r"^no_such_package cannot be loaded \(.*\): `poetry install --with extra`$"),
        needing_group("extra"),
    ):
        import no_such_package.part  # type: ignore[import-not-found]  # noqa: F401


def test_durations_are_said_in_a_unit_that_reads_well() -> None:
    for seconds, text in ((59, "59 s"), (60, "1.0 min"), (5400, "1.5 h"), (172_799, "48.0 h"), (172_800, "2.0 days")):
        assert duration(seconds) == text
