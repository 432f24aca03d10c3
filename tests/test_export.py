"""export.py in this process on untrained runs, and translate.py with the exported runs."""

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import export
import translate
from tests.outcome import Outcome, outcome
from tests.tiny import MODEL, TEXT, run, tokenizers
from tests.utils.export.learned import learned_run
from tests.utils.task.tiny_run import bert_run, classifier_run, language_run
from utils.export.safetensors import load_safetensors
from utils.run import WEIGHTS, find_run, load_run
from utils.text.tokenizer import TokenizerConfig, TokenizerPair, WordTokenizer, train_tokenizers

CPU = torch.device("cpu")
ENGINE = ("--engine", "ctranslate2", "--run")
LINES = [TEXT.src[0], "", TEXT.src[77], "寺", "  "]


Command = Callable[..., Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learned_run(tmp_path_factory.mktemp("pickles"))


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs export.py or translate.py; the tiny run is the only one."""

    def run_it(program: str, *arguments: str | Path, stdin: str = "") -> Outcome:
        verb = {"export.py": export, "translate.py": translate}[program]
        monkeypatch.setattr(verb, "find_run", partial(find_run, root=folder.parent))
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        return outcome(program, verb.main, capsys)

    return run_it


@pytest.fixture
def exported(command: Command, tmp_path: Path) -> Iterator[Path]:
    """The tiny run exported for CTranslate2, in a folder of its own."""
    assert command("export.py", "--to", "ctranslate2", "--output", tmp_path / "made" / "here").status == 0
    yield tmp_path / "made" / "here"
    assert [file.name for file in (tmp_path / "made").iterdir()] == ["here"]


def test_an_exported_run_translates_as_the_run_does(command: Command, folder: Path, exported: Path) -> None:
    asked = ("--beam", "1", "--run")
    text = "".join(f"{line}\n" for line in [*LINES, *TEXT.src])
    expected = command("translate.py", *asked, folder, stdin=text)
    found = command("translate.py", "--engine", "ctranslate2", *asked, exported, stdin=text)
    assert (found.status, found.out) == (0, expected.out)
    assert len(set(found.out.splitlines())) > 20


def test_what_is_shown_of_a_translation_is_the_same(command: Command, folder: Path, exported: Path) -> None:
    engine = (*ENGINE, exported)
    for words in (
        (LINES[0], "--beam", "1", "--format", "jsonl", "--log_probs"),
        (LINES[0], "--score", TEXT.tgt[0], "--format", "jsonl"),
        (LINES[0], "--beam", "1", "--prefix", "There"),
        (LINES[0], "--beam", "1", "--min_length", "20", "--no_repeat_ngram", "3"),
    ):
        ours, theirs = command("translate.py", *words, "--run", folder), command("translate.py", *words, *engine)
        assert theirs.status == 0
        if "jsonl" not in words:
            assert theirs.out == ours.out
            continue
        a, b = json.loads(ours.out), json.loads(theirs.out)
        assert a.keys() == b.keys()
        for key, value in a.items():
            close = key in ("log_probs", "log_prob", "perplexity")
            assert key == "score" or b[key] == (pytest.approx(value, abs=2e-3, rel=1e-3) if close else value)
    best = command("translate.py", LINES[0], "--n_best", "4", *engine).out.splitlines()
    scores = [float(line.split("\t")[1]) for line in best]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)


def said_by_snippet(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Run the Python code of a folder's card on a text; return the code and its output."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", card, re.S | re.M)
    about_it, n = re.subn(r'"a sentence.*?"', repr(text), snippet)
    assert n == 1
    with contextlib.chdir(folder):
        exec(about_it, {})
    return snippet, capsys.readouterr().out


AS_CTRANSLATE2 = ("--normalization", "length", "--max_ratio", "99")  # its own penalty, and no limit


def test_the_folder_says_how_it_is_used_elsewhere(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "exported"
    assert command("export.py", learned_run(tmp_path), "--to", "ctranslate2", "--output", output).status == 0
    snippet, alone = said_by_snippet(output, TEXT.src[7], capsys)
    assert alone.strip()
    assert command("translate.py", TEXT.src[7], *ENGINE, output, *AS_CTRANSLATE2).out == alone
    assert "beam_size=2, length_penalty=0.6" in snippet
    assert len(snippet.strip().splitlines()) <= 8


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_run_of_words_says_how_it_is_used_elsewhere(
    lowercase: bool,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = WordTokenizer.train(TEXT.tgt, 1, lowercase)
    monkeypatch.setattr("tests.tiny.tokenizers", lambda: TokenizerPair(words, words))
    output = tmp_path / "exported"
    assert command("export.py", run(tmp_path), "--to", "ctranslate2", "--output", output).status == 0
    snippet, alone = said_by_snippet(output, TEXT.tgt[5], capsys)
    assert command("translate.py", TEXT.tgt[5], *ENGINE, output, *AS_CTRANSLATE2).out == alone
    assert (".lower()" in snippet) == lowercase


def test_a_tagged_run_says_how_it_is_used_elsewhere(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TokenizerConfig(vocab_size=90, tag=True)
    tagged = train_tokenizers(config, TEXT.src, TEXT.tgt, ("ja", "en"))
    monkeypatch.setattr("tests.tiny.tokenizers", lambda: tagged)
    output = tmp_path / "exported"
    assert command("export.py", run(tmp_path), "--to", "ctranslate2", "--output", output).status == 0
    snippet, alone = said_by_snippet(output, TEXT.src[5], capsys)
    assert command("translate.py", TEXT.src[5], *ENGINE, output, *AS_CTRANSLATE2).out == alone
    assert '["<2en>"] + ' in snippet


def test_smaller_weights_are_made_and_their_size_is_told(command: Command, folder: Path, tmp_path: Path) -> None:
    made = command(
        "export.py", folder.name, "--to", "ctranslate2", "--output", tmp_path / "x", "--quantization", "int8"
    )
    sizes = [f"{(path).stat().st_size / 1e6:.1f} MB" for path in (tmp_path / "x" / "model.bin", folder / WEIGHTS)]
    assert made.out.splitlines() == [
        f"{tmp_path / 'x'}: weights {sizes[0]} ({folder.name}: {sizes[1]})",
        f'to use it: python translate.py "TEXT" --engine ctranslate2 --run {tmp_path / "x"}',
    ]
    assert "weights: int8." in (tmp_path / "x" / "README.md").read_text(encoding="utf-8")
    found = command("translate.py", *TEXT.src[:3], *ENGINE, tmp_path / "x")
    assert (found.status, found.out.count("\n")) == (0, 3)


def test_a_network_of_any_task_becomes_safetensors(command: Command, folder: Path, tmp_path: Path) -> None:
    runs = {
        "Transformer": folder,
        "BertForPreTraining": bert_run(tmp_path),
        "BertClassifier": classifier_run(tmp_path),
        "TransformerXL": language_run(tmp_path),
    }
    for name, own in runs.items():
        output = tmp_path / name
        assert command("export.py", own, "--to", "safetensors", "--output", output).status == 0
        net, _, facts = load_safetensors(output)
        assert type(net).__name__ == facts["architecture"] == name
        weights = load_file(own / WEIGHTS)
        assert weights
        assert all(net.state_dict()[key].equal(tensor) for key, tensor in weights.items())
        assert facts["name"] == own.name
        assert own.name in (output / "README.md").read_text(encoding="utf-8")
        assert not [path for path in output.rglob("*") if str(tmp_path) in path.read_bytes().decode("latin-1")]
    assert load_safetensors(tmp_path / "BertClassifier").facts["labels"] == ["bridge", "garden", "river"]
    loaded = load_safetensors(tmp_path / "Transformer")
    assert (loaded.facts["src_lang"], loaded.facts["tgt_lang"]) == ("ja", "en")
    assert loaded.tokenizers.tgt.encode(TEXT.tgt) == tokenizers().tgt.encode(TEXT.tgt)


def test_a_folder_that_is_there_stays(command: Command, tmp_path: Path) -> None:
    for target in ("ctranslate2", "safetensors"):
        complaint = command("export.py", "--to", target, "--output", tmp_path).complaint
        assert f"--output {tmp_path} already exists: remove it, or give another name" in complaint
    assert not any(tmp_path.iterdir())


def test_a_failure_leaves_nothing(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(TokenizerPair, "save", full)
    for target in ("ctranslate2", "safetensors"):
        assert "no space left" in command("export.py", "--to", target, "--output", tmp_path / "x").complaint
    assert not any(tmp_path.iterdir())


def test_what_cannot_be_exported_says_why(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = ("--to", "ctranslate2", "--output", tmp_path / "x")

    def complaint(*words: str | Path) -> str:
        return command("export.py", *words).complaint

    assert "is of task language, but only translators can be exported" in complaint(language_run(tmp_path), *to)
    assert "no activation mish" in complaint(run(tmp_path, replace(MODEL, activation="mish")), *to)
    assert "quantization=int4: CTranslate2 supports int8, " in complaint(*to, "--quantization", "int4")
    small = ("--to", "safetensors", "--output", tmp_path / "x", "--quantization", "int8")
    assert "--quantization int8 applies to CTranslate2: add --to ctranslate2" in complaint(*small)
    assert f"did you mean {folder.name}?" in complaint(folder.name[:-1], *to)
    assert "onnx" in complaint("--to", "onnx", "--output", tmp_path / "x")
    assert "to" in complaint("--output", tmp_path / "x")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # its import fails
    assert "`poetry install --with export`" in complaint(*to)
    assert "ctranslate2 cannot be loaded (" in command("translate.py", "寺", "--engine", "ctranslate2").complaint
    assert not (tmp_path / "x").exists()


def test_what_was_exported_names_its_engine(command: Command, exported: Path) -> None:
    complaint = command("translate.py", "寺", "--run", exported).complaint
    assert f"{exported} was exported for CTranslate2: add --engine ctranslate2" in complaint


def test_a_run_that_is_not_exported_yet_says_how_it_is(command: Command, folder: Path) -> None:
    found = command("translate.py", "寺", "--engine", "ctranslate2").complaint
    assert f"`python export.py {folder} --to ctranslate2 --output {folder / 'ctranslate2'}`" in found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sample"], "--engine ctranslate2 and --sample at once: it needs --engine miyako"),
        (["--alternatives", "2"], "--engine ctranslate2 and --alternatives at once"),
        (["--alignment", "--format", "jsonl"], "--engine ctranslate2 and --alignment at once"),
        (["--run", "a", "--run", "b"], "--engine ctranslate2 and 2 runs: an ensemble needs --engine miyako"),
        (["--temperature", "0.5"], "--temperature 0.5 applies to sampling: add --sample"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_only_our_search_can_do_is_refused(command: Command, words: list[str], message: str) -> None:
    assert message in command("translate.py", "寺", "--engine", "ctranslate2", *words).complaint


def test_settings_that_cannot_be_kept_are_refused(command: Command, exported: Path) -> None:
    refused = command("translate.py", "寺", *ENGINE, exported, "--precision", "fp16").complaint
    assert "precision=fp16: " in refused
    assert refused.endswith(": give fp32, or leave it out\n")


def test_an_exported_run_needs_neither_the_run_nor_its_place(
    command: Command, folder: Path, tmp_path: Path, exported: Path
) -> None:
    expected = command("translate.py", *TEXT.src[:5], *ENGINE, exported).out
    moved = exported.rename(tmp_path / "moved")
    assert not [file for file in moved.iterdir() if str(folder.parent).encode() in file.read_bytes()]
    assert command("translate.py", *TEXT.src[:5], *ENGINE, moved).out == expected
    moved.rename(exported)


def test_the_exported_is_what_the_run_would_say_in_any_case(folder: Path, exported: Path) -> None:
    settings = json.loads((exported / "miyako.json").read_text(encoding="utf-8"))
    own = load_run(folder, CPU)
    assert settings["window"] == own.window
    assert settings["longest"] == own.config.model.max_length
    assert settings["search"]["beam_size"] == own.config.search.beam_size
