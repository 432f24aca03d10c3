"""A language model that rescores a translator's candidates: reading it, and the weight tuned for the pair."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from utils.file import read_json, write_json
from utils.run import Run
from utils.search.document_rescorer import DocumentRescorer
from utils.search.document_scorer import DocumentScorer
from utils.search.hypothesis import SearchConfig
from utils.text.script import primary_language
from utils.trained import load_language_model

RESCORING = "rescoring.json"  # in the folder of a translator's run: the weights tuned for it
UNTUNED_WEIGHT = 0.2


@dataclass(frozen=True)
class RescoringConfig:
    """How a language model is used for rescoring.

    Args:
        weight: of its log-probabilities, relative to the translator's.
        memory_length: positions of the document that it remembers; None: as many as in training.

    Raises:
        ValueError: when a value is out of range.
    """

    weight: float = UNTUNED_WEIGHT
    memory_length: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"weight {self.weight} of the language model: give 0 (it is not used) or more")
        if self.memory_length is not None and self.memory_length < 0:
            raise ValueError(f"memory length {self.memory_length}: give 0 (each sentence by itself) or more")


def load_rescorer(folder: Path, run: Run, search: SearchConfig, config: RescoringConfig) -> DocumentRescorer:
    """Return a rescorer of a translator's candidates; see `load_rescorers`."""
    return load_rescorers(folder, run, search, [config])[0]


def load_rescorers(
    folder: Path, run: Run, search: SearchConfig, configs: Sequence[RescoringConfig]
) -> list[DocumentRescorer]:
    """Return rescorers that also rank a translator's candidates by a language model, which is read only once.

    Args:
        folder: run of the language model.
        run: the translator.
        search: the translator's search settings.
        configs: weight and memory length of each rescorer.

    Raises:
        ValueError: when there is no such run, it is of another task, or of a language other than the translator's
            target.
    """
    model = load_language_model(folder, next(run.model.parameters()).device)
    ours, theirs = model.config.data.language, run.config.data.tgt_lang
    if primary_language(ours) != primary_language(theirs):
        raise ValueError(
            f"{folder} is a language model of {ours}, but {run.folder} translates into {theirs}: "
            f"train one of {theirs}, --data.language {theirs}"
        )
    return [
        DocumentRescorer(DocumentScorer(model.net, config.memory_length), model.tokenizer, config.weight, search)
        for config in configs
    ]


def saved_rescoring(run: Path, language_model: Path) -> RescoringConfig | None:
    """Return the settings tuned for a translator and a language model; None if they were never tuned."""
    found = _read(run).get(language_model.resolve().name)
    return RescoringConfig(**found) if found else None


def save_rescoring(run: Path, language_model: Path, config: RescoringConfig) -> Path:
    """Save the tuned settings in the translator's run; return the file."""
    found = _read(run) | {language_model.resolve().name: asdict(config)}
    write_json(run / RESCORING, found)
    return run / RESCORING


def _read(run: Path) -> dict[str, dict[str, Any]]:
    file = run / RESCORING
    return read_json(file) if file.is_file() else {}
