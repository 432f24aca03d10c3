"""Scores of an alternative of an ablation with one seed: a JSON file in figure/ablation/."""

import json
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from utils.changed_setting import flat
from utils.config import TranslationConfig
from utils.dataset.corpus import prepare_corpus
from utils.dataset.parallel_text import ParallelFiles, read_parallel
from utils.device import pick_device
from utils.evaluation.metric import corpus_metrics, measure
from utils.experiment.ablation import Ablation, Alternative, plain_differences, same_weights
from utils.experiment.training_process import run_named
from utils.file import read_json, write_json
from utils.provenance import portable, provenance
from utils.run import TEST, load_run, read_config
from utils.training.jsonl_log import LOG, read_log

Result = dict[str, Any]  # as JSON has it


class Results:
    """The files of an ablation, one for each alternative and seed.

    Args:
        ablation: determines which results there should be.
        folder: where the files are.
    """

    def __init__(self, ablation: Ablation, folder: Path) -> None:
        self.ablation = ablation
        self.folder = folder

    def file(self, alternative: Alternative, seed: int) -> Path:
        """Return the path of a result, whether it exists or not."""
        return self.folder / f"{alternative.slug}-{seed}.json"

    def write(self, alternative: Alternative, seed: int, result: Result) -> None:
        """Keep a result."""
        write_json(self.file(alternative, seed), result)

    def of(self, alternative: Alternative) -> dict[int, Result]:
        """Return all existing results of an alternative, by seed.

        Raises:
            ValueError: when one was scored with settings other than the present ones, or is damaged.
        """
        found = {}
        for seed in self.ablation.spec.seeds:
            file = self.file(alternative, seed)
            if file.is_file():
                found[seed] = _read(file)
                # settings newer than the result had their defaults then
                known = flat(TranslationConfig().plain(portable)) | flat(found[seed]["config"])
                expected = self.ablation.config(alternative, seed).plain(portable)
                _refuse_other(file, plain_differences(known, expected))
        return found

    def run(self, alternative: Alternative, seed: int) -> str | None:
        """Return the run whose weights an alternative was scored with; None: not yet scored.

        Raises:
            ValueError: when the file is damaged.
        """
        file = self.file(alternative, seed)
        return str(_read(file)["run"]) if file.is_file() else None

    def require_same(self, root: Path) -> None:
        """Refuse to mix results and runs of other settings with those of the present ones.

        Args:
            root: where the runs are.

        Raises:
            ValueError: when there is a result or a run of other settings; the message names it.
        """
        for alternative in self.ablation.everything:
            self.of(alternative)
        for training in self.ablation.trainings():
            run = run_named(training.name, root)
            if run is not None:
                found = read_config(run, TranslationConfig)
                if not same_weights(found, training.config):
                    _refuse_other(run, plain_differences(found.plain(portable), training.config.plain(portable)))


def _read(file: Path) -> Result:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): remove it") from error
    if not isinstance(result, dict) or not isinstance(result.get("config"), dict) or "run" not in result:
        raise ValueError(f"{file} is damaged (run or config is missing): remove it")
    return result


def _refuse_other(path: Path, changed: dict[str, tuple[Any, Any]]) -> None:
    if changed:
        told = ", ".join(f"{key} is {old}, not {new}" for key, (old, new) in list(changed.items())[:3])
        raise ValueError(f"{path} is of other settings ({told}): remove it, or restore its settings")


class _Scores(NamedTuple):
    bleu: float
    chrf: float
    signatures: dict[str, str]


def score_run(folder: Path, ablation: Ablation, alternative: Alternative, seed: int) -> Result:
    """Translate dev and test set with a finished run and the search of an alternative, and score both.

    Args:
        folder: of the run.
        ablation: that the run belongs to.
        alternative: whose search settings are used.
        seed: of the training.
    """
    config = ablation.config(alternative, seed)
    device = pick_device(config.training.device)
    run = load_run(folder, device)
    corpus = prepare_corpus(config.data)
    metrics = corpus_metrics(corpus)
    course = _course(folder)

    def score(files: ParallelFiles) -> _Scores:
        pairs = read_parallel(files)
        translations = [found.text for found in run.translator(config.search).translate(pairs.src)]
        bleu, chrf = measure(translations, pairs.tgt, {name: metrics[name] for name in ("BLEU", "chrF2")})
        return _Scores(bleu.score, chrf.score, {bleu.name: bleu.signature, chrf.name: chrf.signature})

    dev, test = score(corpus.dev), score(corpus.test)
    return {
        "ablation": ablation.spec.name,
        "switch": alternative.switch,
        "alternative": alternative.label,
        "seed": seed,
        "text": f"{corpus.name}, {corpus.src_lang}-{corpus.tgt_lang}",
        "dev_bleu": dev.bleu,
        "dev_chrf": dev.chrf,
        "test_bleu": test.bleu,
        "test_chrf": test.chrf,
        **course,
        "run": folder.name,
        "options": dict(alternative.options),
        "difference": {key: list(values) for key, values in ablation.changes(alternative).items()},
        "signatures": dev.signatures,
        **provenance(device),
        "config": config.plain(portable),
    }


def _course(folder: Path) -> Result:
    """Return figures of the training: updates, speed, time, size, and where it ran."""
    ended = read_json(folder / TEST)
    records = [record for _, record in read_log(folder / LOG)]
    speeds = [record["tokens_per_second"] for record in records if record["kind"] == "train"]
    return {
        "best_step": ended["best_step"],
        "steps": ended["steps"],
        "target_tokens": ended["target_tokens"],
        "target_tokens_per_s": round(median(speeds), 1) if speeds else None,
        "minutes": max(record["minutes"] for record in records),
        "parameters": ended["parameters"],
        "trained": {name: ended[name] for name in ("finished", "commit", "machine")},
    }
