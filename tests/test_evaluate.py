"""evaluate.py in this process: scores, reports and refusals of each verb."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NoReturn, Self

import pytest
import torch
from PIL import Image
from sacrebleu.metrics.base import Metric

import evaluate
from tests import tiny
from tests.outcome import Outcome, outcome
from tests.utils.evaluation.texts import ENGLISH, JAPANESE, TOKENIZED
from utils.config import TranslationConfig
from utils.dataset.corpus import DataConfig, prepare_corpus, prepare_to_score
from utils.dataset.text import ParallelText, read_parallel
from utils.evaluation import verbs
from utils.evaluation.heads import count_heads, head_importance, importance_table, text_batches
from utils.evaluation.metric import (
    Comparison,
    Evaluation,
    System,
    Test,
    build_metrics,
    compare,
    measure,
    moses_words,
    multi_bleu,
    sampling_seed,
)
from utils.evaluation.report import as_text
from utils.run import CONFIG, find_run, load_run
from utils.search.translator import Translator


class Reported(Outcome):
    """The outcome of evaluate.py, with its reports."""

    def __init__(self, ended: Outcome) -> None:
        super().__init__(ended.status, ended.out, ended.err)
        self.evaluations: list[Evaluation] = []
        self.comparisons: list[Comparison] = []


Command = Callable[..., Reported]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs evaluate.py, and keeps what it reports."""
    reported: list[tuple[Sequence[Evaluation], Sequence[Comparison]]] = []

    def watched(evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison] = ()) -> str:
        reported.append((evaluations, comparisons))
        return as_text(evaluations, comparisons)

    monkeypatch.setattr(verbs, "as_text", watched)

    def run_it(*arguments: str | Path) -> Reported:
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *map(str, arguments)])
        found = Reported(outcome("evaluate.py", evaluate.main, capsys))
        for evaluations, comparisons in reported:
            found.evaluations += evaluations
            found.comparisons += comparisons
        reported.clear()
        return found

    return run_it


def write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def english(tmp_path: Path) -> dict[str, Path]:
    """Files with a good and a bad translation, references and sources."""
    files = {name: write(tmp_path / name, lines) for name, lines in ENGLISH._asdict().items()}
    return files | {"sources": write(tmp_path / "sources", tiny.TEXT.src[:40])}


@pytest.fixture
def japanese(tmp_path: Path) -> dict[str, Path]:
    return {name: write(tmp_path / f"{name}.ja", lines) for name, lines in JAPANESE._asdict().items()}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An untrained run on a corpus of two files; the only run."""
    text = tiny.TEXT
    src, tgt = write(tmp_path / "corpus.ja", text.src), write(tmp_path / "corpus.en", text.tgt)
    folder = tiny.run(tmp_path / "pickles")
    data = DataConfig(corpus="files", src=src, tgt=tgt, held_out=15)
    replace(TranslationConfig.load(folder / CONFIG), data=data).save(folder / CONFIG)
    for module in (verbs, verbs, verbs):
        monkeypatch.setattr(module, "find_run", partial(find_run, root=folder.parent))
    for prepare in (prepare_to_score, prepare_corpus):
        monkeypatch.setattr(verbs, prepare.__name__, partial(prepare, root=tmp_path / "split"))
    return folder


def test_a_file_is_scored_as_sacrebleu_does(command: Command, english: dict[str, Path]) -> None:
    found = command("file", english["good"], english["references"], "--tgt_lang", "en", "--seed", "7")
    assert (found.status, found.err) == (0, "")
    (evaluation,) = found.evaluations
    with sampling_seed(7):
        assert evaluation.metrics == measure(ENGLISH.good, ENGLISH.references, build_metrics("en", "13a"), 1000)
    assert (evaluation.system, evaluation.text) == (str(english["good"]), str(english["references"]))
    assert (evaluation.tgt_lang, evaluation.n_sentences) == ("en", 40)
    for metric in evaluation.metrics:
        assert f"{metric.score:.2f}" in found.out
        assert metric.signature in found.out


def test_japanese_is_cut_by_mecab_and_spaces_are_taken_where_told(command: Command, japanese: dict[str, Path]) -> None:
    files = japanese["good"], japanese["references"]
    (evaluation,) = command("file", *files, "--tgt_lang", "ja", "--bootstrap", "0").evaluations
    assert evaluation.metrics == measure(JAPANESE.good, JAPANESE.references, build_metrics("ja", "ja-mecab"))
    (evaluation,) = command("file", *files, "--tgt_lang", "ja", "--bootstrap", "0", "--tokenize", "char").evaluations
    assert "tok:char" in evaluation.metrics[0].signature
    (evaluation,) = command("file", *files, "--tgt_lang", "ja", "--bootstrap", "0", "--pre_tokenized").evaluations
    assert "tok:none" in evaluation.metrics[0].signature
    assert "asian:no" in evaluation.metrics[2].signature


def test_the_report_goes_into_files_too(command: Command, english: dict[str, Path], tmp_path: Path) -> None:
    outputs = "--json", tmp_path / "new" / "r.json", "--html", tmp_path / "new" / "r.html"
    found = command("file", english["bad"], english["references"], "--tgt_lang", "en", *outputs)
    (evaluation,) = found.evaluations
    assert f"{evaluation.metrics[0].score}" in outputs[1].read_text(encoding="utf-8")
    assert json.loads(outputs[1].read_text(encoding="utf-8"))
    page = outputs[3].read_text(encoding="utf-8")
    assert f"{evaluation.metrics[0].score:.2f}" in page
    assert evaluation.metrics[2].signature in page
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"r.json", "r.html"}


def test_sources_and_training_text_make_the_report_richer(
    command: Command, english: dict[str, Path], tmp_path: Path
) -> None:
    files = "file", english["good"], english["references"], "--tgt_lang", "en", "--bootstrap", "0"
    (plain,) = command(*files).evaluations
    training = write(tmp_path / "training", tiny.TEXT.tgt)
    (rich,) = command(*files, "--sources", english["sources"], "--training_text", training).evaluations
    assert rich.metrics == plain.metrics
    assert not plain.analysis.f1_by_frequency
    assert sum(group.count for group in rich.analysis.f1_by_frequency) > 100
    first = next(sentence for sentence in rich.analysis.best if sentence.line == 3)
    assert (first.source, first.translation) == (tiny.TEXT.src[2], ENGLISH.good[2])


def test_a_run_translates_its_own_test_set(command: Command, run: Path, tmp_path: Path) -> None:
    corpus = prepare_corpus(TranslationConfig.load(run / CONFIG).data, tmp_path / "split")
    sources, references = (file.read_text(encoding="utf-8").splitlines() for file in corpus.test)
    translations = [t.text for t in load_run(run, torch.device("cpu")).translator().translate(sources)]
    found = command("run", "--translations", tmp_path / "out", "--bootstrap", "0")
    (evaluation,) = found.evaluations
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == translations
    assert evaluation.metrics == measure(translations, references, build_metrics("en", "13a"))
    assert evaluation.system == f"{run.name}, beam 2, length penalty 0.6"
    assert evaluation.text == "files test, ja-en"
    assert {sentence.source for sentence in evaluation.analysis.worst} <= set(sources)
    groups = evaluation.analysis.f1_by_frequency
    assert sum(group.count for group in groups if group.label != "never seen") > 50


def test_a_run_whose_training_text_is_gone_is_scored_all_the_same(command: Command, run: Path, tmp_path: Path) -> None:
    config = TranslationConfig.load(run / CONFIG)
    gone, (src, tgt) = tmp_path / "gone.ja", (config.data.src, config.data.tgt)
    data = replace(config.data, src=gone, dev_src=src, dev_tgt=tgt, test_src=src, test_tgt=tgt)
    replace(config, data=data).save(run / CONFIG)
    found = command("run", "--limit", "20", "--bootstrap", "0")
    assert found.evaluations[0].analysis.f1_by_frequency == []
    assert found.err == (
        f"evaluate.py: warning: no F1 by word frequency, which needs the training text: src={gone}: no such file\n"
    )


def test_split_beam_penalty_and_limit_are_the_users(command: Command, run: Path, tmp_path: Path) -> None:
    corpus = prepare_corpus(TranslationConfig.load(run / CONFIG).data, tmp_path / "split")
    sources = corpus.dev.src.read_text(encoding="utf-8").splitlines()[:6]
    search = replace(TranslationConfig.load(run / CONFIG).search, beam_size=3, length_penalty=-1.0)
    translations = [t.text for t in load_run(run, torch.device("cpu")).translator(search).translate(sources)]
    options = "--split", "dev", "--beam", "3", "--length_penalty", "-1", "--limit", "6", "--bootstrap", "0"
    found = command("run", run, *options, "--translations", tmp_path / "out")
    (evaluation,) = found.evaluations
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == translations
    assert evaluation.n_sentences == 6
    assert evaluation.text == "files dev, ja-en, first 6 sentences"
    assert evaluation.system == f"{run.name}, beam 3, length penalty -1"
    assert command("run", run, "--limit", "400", "--bootstrap", "0").evaluations[0].n_sentences == 15


def test_what_could_not_be_translated_whole_is_said(command: Command, run: Path, tmp_path: Path) -> None:
    long, strange = "京都に古い寺" * 20, "😀"
    src = write(tmp_path / "d.ja", [tiny.TEXT.src[0], long, strange, strange])
    tgt = write(tmp_path / "d.en", tiny.TEXT.tgt[:4])
    config = TranslationConfig.load(run / CONFIG)
    replace(config, data=replace(config.data, dev_src=src, dev_tgt=tgt)).save(run / CONFIG)
    found = command("run", "--split", "dev", "--bootstrap", "0")
    assert found.err.splitlines() == [
        "evaluate.py: warning: 1 of 4 sources are longer than the model's window and were cut off",
        "evaluate.py: warning: 2 of 4 sources are entirely outside the vocabulary and were left unchanged",
    ]


@pytest.mark.parametrize(("test", "code"), [("bootstrap", "bs"), ("randomization", "ar")])
def test_systems_are_compared_with_the_first(
    command: Command, english: dict[str, Path], tmp_path: Path, test: Test, code: str
) -> None:
    best = write(tmp_path / "best", [*ENGLISH.references[:39], "Oh."])
    files = english["references"], english["bad"], english["good"], best
    found = command("compare", *files, "--tgt_lang", "en", "--test", test, "--samples", "200", "--seed", "3")
    systems = [System(str(file), file.read_text(encoding="utf-8").splitlines()) for file in files[1:]]
    with sampling_seed(3):
        scores, comparisons = compare(systems, ENGLISH.references, build_metrics("en", "13a"), test, 200, 1000)
    assert found.err == ""
    assert [evaluation.metrics for evaluation in found.evaluations] == scores
    assert [evaluation.system for evaluation in found.evaluations] == [str(file) for file in files[1:]]
    assert found.comparisons == comparisons
    assert f"|{code}:200|" in comparisons[0].signature
    assert {comparison.baseline for comparison in comparisons} == {str(english["bad"])}


def test_nymwas_line_is_all_that_is_printed(command: Command, tmp_path: Path) -> None:
    files = [write(tmp_path / name, lines) for name, lines in TOKENIZED._asdict().items()]
    found = command("nymwa", files[1], files[0])
    assert found.out == multi_bleu(TOKENIZED.good, TOKENIZED.references) + "\n"
    assert found.err.count("\n") == 1
    assert "is not tok/kyoto-test.en of KFTT (1,160 lines, 26,734 words)" in found.err
    plain = write(tmp_path / "plain", ENGLISH.good)
    assert f"{plain} is not tokenized" in command("nymwa", plain, files[0]).err
    cut = command("nymwa", plain, files[0], "--plain")
    assert cut.out == multi_bleu(moses_words(ENGLISH.good), TOKENIZED.references) + "\n"
    assert "is not tokenized" not in cut.err
    assert "have the same 40 lines" in command("nymwa", files[0], files[0]).complaint
    assert command("nymwa", files[0], files[0], "--force").out.startswith("BLEU = 100.00")


def test_plain_text_against_plain_references_is_no_mistake(command: Command, english: dict[str, Path]) -> None:
    assert "is not tokenized" not in command("nymwa", english["good"], english["references"]).err


def test_tokenized_text_is_noticed(command: Command, english: dict[str, Path], tmp_path: Path) -> None:
    tokenized = write(tmp_path / "tok", TOKENIZED.good)
    arguments = "file", tokenized, english["references"], "--tgt_lang", "en", "--bootstrap", "0"
    assert f"warning: {tokenized} looks tokenized: give --pre_tokenized" in command(*arguments).err
    assert command(*arguments, "--pre_tokenized").err == ""


def test_sources_may_be_tokenized(command: Command, english: dict[str, Path], tmp_path: Path) -> None:
    sources = write(tmp_path / "tok", TOKENIZED.bad)
    files = "file", english["good"], english["references"], "--tgt_lang", "en", "--bootstrap", "0"
    assert command(*files, "--sources", sources).err == ""


def wrong(english: dict[str, Path], japanese: dict[str, Path], case: str) -> tuple[list[str | Path], str]:
    """Arguments that are refused, and the error message."""
    good, references, sources = english["good"], english["references"], english["sources"]
    here = good.parent
    short, empty, latin = write(here / "short", ENGLISH.good[:-1]), write(here / "empty", [" ", ""]), here / "latin"
    latin.write_bytes(b"good\ncaf\xe9\n")
    cases: dict[str, tuple[list[str | Path], str]] = {
        "lengths": ([short, references], f"{references} has 40 lines but {short} has 39: line i"),
        "sources": ([good, references, "--sources", short], f"{references} has 40 lines but {short} has 39: line i"),
        "missing": ([here / "nowhere", references], f"no such file: {here / 'nowhere'}"),
        "training": ([good, references, "--training_text", here / "no"], f"no such file: {here / 'no'}"),
        "folder": ([good, here], f"no such file: {here}"),
        "no run": ([here, references], f"{here} has no test.txt"),
        "empty": ([good, empty], f"{empty} holds no text"),
        "latin": ([latin, references], f"{latin}, line 2: byte 0xe9 is not UTF-8"),
        "twice": ([references, references], f"REFERENCES {references} and TRANSLATIONS {references} have the same 40"),
        "echo": ([sources, references, "--sources", sources], f"TRANSLATIONS {sources} and --sources {sources} have"),
        "language": ([good, japanese["references"]], f"REFERENCES {japanese['references']} is not in en: "),
        "script": ([japanese["good"], references], f"TRANSLATIONS {japanese['good']} is not in en: "),
        "few": ([good, references, "--bootstrap", "5"], "--bootstrap 5: give 100 or more"),
        "seed": ([good, references, "--seed", "0"], "seed 0: give 1 or more"),
        "tokenizer": ([good, references, "--tokenize", "zh"], "--tokenize zh cannot split en into words"),
        "option": ([good, references, "--sauces", sources], "unknown option sauces: did you mean --sources?"),
        "type": ([good, references, "--bootstrap", "many"], "many"),
    }
    return cases[case]


INPUTS = [
    "lengths",
    "sources",
    "missing",
    "training",
    "folder",
    "no run",
    "empty",
    "latin",
    "twice",
    "echo",
    "language",
    "script",
]
OPTIONS = ["few", "seed", "tokenizer", "option", "type"]


@pytest.mark.parametrize("case", INPUTS + OPTIONS)
def test_what_says_nothing_is_refused(
    command: Command, english: dict[str, Path], japanese: dict[str, Path], case: str
) -> None:
    arguments, message = wrong(english, japanese, case)
    assert message in command("file", *arguments, "--tgt_lang", "en").complaint


@pytest.mark.parametrize("case", ["twice", "echo", "language", "script", "tokenizer"])
def test_who_insists_is_served(
    command: Command, english: dict[str, Path], japanese: dict[str, Path], case: str
) -> None:
    arguments, _ = wrong(english, japanese, case)
    found = command("file", *arguments, "--tgt_lang", "en", "--bootstrap", "0", "--force")
    assert found.status == 0
    assert found.evaluations


@pytest.mark.parametrize("tokenizer", ["13a", "none"])
def test_japanese_is_not_cut_at_spaces(command: Command, japanese: dict[str, Path], tokenizer: str) -> None:
    files = "file", japanese["good"], japanese["references"], "--tgt_lang", "ja", "--tokenize", tokenizer
    assert "give --tokenize ja-mecab, or --pre_tokenized" in command(*files).complaint
    found = command(*files, "--force", "--bootstrap", "0")
    assert f"tok:{tokenizer}" in found.evaluations[0].metrics[0].signature


def test_the_language_must_be_named(command: Command, english: dict[str, Path]) -> None:
    assert "such as --tgt_lang en" in command("file", english["good"], english["references"]).complaint


def test_the_language_must_have_its_code(command: Command, english: dict[str, Path]) -> None:
    found = command("file", english["good"], english["references"], "--tgt_lang", "jp")
    assert "tgt_lang=jp is no language code: did you mean ja?" in found.complaint


def test_a_run_stands_for_its_translations_of_the_test_text(
    command: Command, english: dict[str, Path], tmp_path: Path
) -> None:
    runs = []
    for name in ("bad", "good"):
        runs.append(tmp_path / "runs" / name)
        runs[-1].mkdir(parents=True)
        (runs[-1] / "test.txt").write_bytes(english[name].read_bytes())
    options = "--tgt_lang", "en", "--samples", "100"
    by_file = command("compare", *(english[name] for name in ("references", "bad", "good")), *options)
    by_run = command("compare", english["references"], *runs, *options)
    assert [each.metrics for each in by_run.evaluations] == [each.metrics for each in by_file.evaluations]
    assert [each.system for each in by_run.evaluations] == [str(run) for run in runs]
    (runs[1] / "test.txt").unlink()
    for words in (("file", runs[1], english["references"]), ("compare", english["references"], *runs)):
        complaint = command(*words, "--tgt_lang", "en").complaint
        assert f"{runs[1]} has no test.txt" in complaint
        assert f"`python evaluate.py run {runs[1]} --translations FILE` writes one" in complaint


def test_a_bootstrap_test_has_intervals_of_its_own(command: Command, english: dict[str, Path]) -> None:
    files = "compare", english["references"], english["good"], english["references"], "--tgt_lang", "en", "--force"
    assert "--bootstrap 0 and --test bootstrap at once" in command(*files, "--bootstrap", "0").complaint
    by_swapping = "--test", "randomization", "--samples", "100"
    with_interval, without = (
        command(*files, *by_swapping, *words).evaluations[0].metrics[0] for words in ([], ["--bootstrap", "0"])
    )
    assert with_interval.low < with_interval.high
    assert without.low == without.high


def test_two_systems_that_say_the_same_are_not_compared(command: Command, english: dict[str, Path]) -> None:
    found = command("compare", *(english[n] for n in ("references", "bad", "good", "good")), "--tgt_lang", "en")
    assert f"SYSTEM 1 {english['good']} and SYSTEM 2 {english['good']} have the same" in found.complaint
    assert (
        "--samples 7: give 100"
        in command(
            "compare", *(english[n] for n in ("references", "bad", "good")), "--tgt_lang", "en", "--samples", "7"
        ).complaint
    )


def test_wrong_words_for_a_run_are_refused(command: Command, run: Path) -> None:
    assert "--limit 0: give 1 or more" in command("run", "--limit", "0").complaint
    assert "--beam 0: give" in command("run", "--beam", "0").complaint
    assert "--length_penalty 20.0: give" in command("run", "--length_penalty", "20").complaint
    assert "--beam 0: give" in command("heads", "--bleu", "--beam", "0").complaint
    assert "no run nowhere" in command("run", "nowhere").complaint
    assert "invalid choice: 'train'" in command("run", run, "--split", "train").complaint


def test_a_verb_is_needed_and_its_errors_name_it(command: Command) -> None:
    assert "to be one of {run,tune,heads,file" in command().complaint
    assert "invalid choice: 'walk'" in command("walk").complaint
    assert (
        command("run", "--bim", "3").complaint == "evaluate.py run: error: unknown option bim: did you mean --beam?\n"
    )


def test_a_failure_leaves_no_report(command: Command, english: dict[str, Path], tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    command("file", english["references"], english["references"], "--tgt_lang", "en", "--json", tmp_path / "r.json")
    assert set(tmp_path.iterdir()) == before


def test_tuning_finds_what_scores_best_and_saves_it(command: Command, run: Path, tmp_path: Path) -> None:
    found = command(
        *("tune", "--beams", "1", "3", "--length_penalties", "0", "2", "--limit", "9", "--save"),
        *("--json", tmp_path / "tuned.json", "--picture", tmp_path / "tuned.png"),
    )
    assert found.status == 0
    kept = json.loads((tmp_path / "tuned.json").read_text(encoding="utf-8"))
    trials = kept["trials"]
    assert [(t["beam_size"], t["length_penalty"]) for t in trials] == [(1, 0), (1, 2), (3, 0), (3, 2)]
    best = max(trials, key=lambda t: (t["bleu"], -t["beam_size"]))
    assert f"best: --beam {best['beam_size']} --length_penalty {best['length_penalty']:g}" in found.out
    assert kept["signature"] in found.out
    assert kept["text"].endswith("dev, ja-en, first 9 sentences")
    search = TranslationConfig.load(run / CONFIG).search
    assert (search.beam_size, search.length_penalty) == (best["beam_size"], best["length_penalty"])
    assert (tmp_path / "tuned.png").is_file()
    scored = command("run", "--split", "dev", "--limit", "9", "--bootstrap", "0").evaluations[0]
    assert scored.metrics[0].score == pytest.approx(best["bleu"])


class Bar:
    """A replacement for tqdm that records its progress and total."""

    seen: list[tuple[int, int]]

    def __init__(self, total: int, **_: object) -> None:
        self.n, self.total = 0, total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.seen.append((self.n, self.total))

    def update(self, n: int) -> None:
        self.n += n


def test_the_bar_of_tuning_counts_what_is_translated(
    command: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy search translates once, whatever the length penalties are."""
    monkeypatch.setattr(Bar, "seen", [], raising=False)
    monkeypatch.setattr(verbs, "tqdm", Bar)
    assert command("tune", run, "--beams", "1", "3", "--length_penalties", "0", "1", "2", "--limit", "5").status == 0
    assert Bar.seen == [(20, 20)]


def test_another_text_may_be_tuned_on(command: Command, run: Path) -> None:
    found = command("tune", run, "--split", "test", "--beams", "1", "--length_penalties", "0", "--limit", "3")
    assert "files test, ja-en, first 3 sentences" in found.out


def never(*_: object) -> NoReturn:
    raise AssertionError("translated in vain")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--beams", "1", "0"), "--beams 0: give"),
        (("--limit", "0"), "--limit 0: give 1 or more"),
        (("--length_penalties", "nan"), "Got value: nan"),
        (("--length_penalties", "1", "20"), "--length_penalties 20.0: give"),
    ],
)
def test_tuning_refuses_what_finds_nothing_before_it_looks(
    command: Command, run: Path, words: tuple[str, ...], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "translate", never)
    before = (run / CONFIG).read_text(encoding="utf-8")
    assert complaint in command("tune", "--save", *words).complaint
    assert (run / CONFIG).read_text(encoding="utf-8") == before


def test_what_cannot_be_counted_or_written_is_refused_before_anything_is_translated(
    command: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "translate", never)
    assert "--bootstrap 5: give 100 or more" in command("run", run, "--bootstrap", "5").complaint
    for verb, option in (("run", "translations"), ("run", "html"), ("tune", "picture"), ("heads", "json")):
        found = command(verb, run, f"--{option}", tmp_path)
        assert f"{tmp_path} exists and is not a file: give another name" in found.complaint


def test_each_head_is_weighed_on_the_dev_text(command: Command, run: Path, tmp_path: Path) -> None:
    picture, kept = tmp_path / "heads.png", tmp_path / "heads.json"
    found = command("heads", run, "--picture", picture, "--json", kept)
    assert (found.status, found.err) == (0, "")
    loaded = load_run(run, torch.device("cpu"))
    pairs = read_parallel(prepare_corpus(loaded.config.data, root=tmp_path / "split").dev)
    expected = head_importance(loaded.model, text_batches(pairs, loaded.tokenizers, torch.device("cpu")))
    title, blank, *lines = found.out.splitlines()
    assert title.startswith(f"{run.name}, files dev, ja-en")
    assert blank == ""
    assert lines == importance_table(expected)
    told = json.loads(kept.read_text(encoding="utf-8"))
    assert told["heads"] == [asdict(head) for head in expected.heads]
    assert (told["loss"], told["bleu"], told["signature"]) == (expected.loss, None, None)
    with Image.open(picture) as image:
        assert image.format == "PNG"


def test_heads_are_weighed_on_another_text_and_by_bleu(command: Command, run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "heads.json"
    dev = command("heads", run, "--limit", "3").out
    found = command("heads", run, "--split", "test", "--limit", "3", "--bleu", "--beam", "1", "--json", kept)
    assert found.status == 0
    assert "files test, ja-en, first 3 sentences" in found.out.splitlines()[0]
    assert found.out != dev
    told = json.loads(kept.read_text(encoding="utf-8"))
    assert "tok:13a" in told["signature"]
    assert all(head["bleu_change"] is not None for head in told["heads"])
    assert f"BLEU {told['bleu']:.2f}" in found.out


def test_heads_are_weighed_with_the_beam_that_is_asked_for(
    command: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_heads, beams = count_heads(load_run(run, torch.device("cpu")).model), list[int]()

    def watched(
        translator: Translator, pairs: ParallelText, bleu: Metric, _: Callable[[int], object]
    ) -> tuple[float, list[float]]:
        beams.append(translator.search.beam_size)
        return bleu.corpus_score(pairs.tgt, [pairs.tgt]).score, [0.0] * n_heads

    monkeypatch.setattr(verbs, "bleu_without", watched)
    for beam in ("3", "1"):
        assert command("heads", run, "--limit", "3", "--bleu", "--beam", beam).err == ""
    assert beams == [3, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--limit", "0"], "--limit 0: give 1 or more"),
        (["--beam", "2"], "--beam 2 applies to translations: add --bleu"),
        (["nowhere"], "no run nowhere"),
    ],
)
def test_what_weighs_no_heads_is_refused(command: Command, words: list[str], message: str) -> None:
    assert message in command("heads", *words).complaint
