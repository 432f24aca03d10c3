"""The folder of a training run: how it is made, found and read, whatever the task."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from const.path import EXPORTED, PICKLES
from utils.config import AnyConfig, RunConfig, RunConfigT, TranslationConfig, config_type_of
from utils.file import locked
from utils.text.language import detect
from utils.text.tokenizer import Vocabulary, load_tokenizers
from utils.text.words import plain_text

CONFIG = "config.yaml"  # the resolved settings
WEIGHTS = "model.safetensors"  # of the best validation
CHECKPOINTS = "checkpoints"  # state of the training at its latest validations
KEPT_WEIGHTS = "weights"  # of other good or recent validations
TRACE = "trace.json.gz"
CURVE = "curve.png"
ATTENTION = "attention.png"
WATCHED = "watch.jsonl"  # what a translator made of some dev sentences at each validation
WATCH_PAGE = "watch.html"  # the page of it
TEST = "test.json"  # scores of the test set
TRANSLATIONS = "test.txt"  # its translations, line by line
# come with the project: used where no run of one's own fits
SHIPPED = ("kftt_ja_en", "kftt_en_ja", "everyday_ja_en", "everyday_en_ja")
_LOCK = ".training"  # locked while a process trains the run
# presets to suggest where a run is missing
_PRESETS = {"masked_language": "bert_ja", "language": "transformer_xl_en", "classification": "kftt_category_ja"}


def create_run(config: AnyConfig, *vocabularies: Vocabulary, root: Path = PICKLES) -> Path:
    """Create the folder of a new run, with its settings and all that gives meaning to its ids."""
    name = f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
    for n in count(1):
        folder = root / (name if n == 1 else f"{name}-{n}")
        with suppress(FileExistsError):  # two in the same second
            folder.mkdir(parents=True)
            break
    for vocabulary in vocabularies:
        vocabulary.save(folder)
    config.save(folder / CONFIG)
    return folder


def trained_alone(folder: Path) -> AbstractContextManager[object]:
    """Within the block, no other process trains this run; refused while another process does."""
    return locked(folder / _LOCK, f"{folder} is being trained by another process: wait, or --resume another run")


def _newest_first(having: str, root: Path) -> list[Path]:
    """Return the runs whose file or folder of this name was written last, those of the project after all others."""

    def rank(file: Path) -> tuple[int, float]:
        name = file.parent.name
        return (1 + SHIPPED.index(name) if name in SHIPPED else 0), -file.stat().st_mtime

    return [file.parent for file in sorted(root.glob(f"*/{having}"), key=rank) if (file.parent / CONFIG).is_file()]


def newest_run(having: str, root: Path = PICKLES, config_type: type[RunConfig] = TranslationConfig) -> Path:
    """Return the run, of this type of settings, whose file or folder of this name was written last."""
    for folder in _newest_first(having, root):
        with suppress(ValueError):  # of an unknown task
            if issubclass(config_type_of(folder / CONFIG), config_type):
                return folder
    of_task = "" if config_type is RunConfig else f" of task {config_type.task}"
    example = f"`python train.py --config {_PRESETS.get(config_type.task, 'demo')}`"
    raise ValueError(f"no run{of_task} with a {having} in {root}: train one first, for example {example}")


def translators(root: Path = PICKLES) -> Iterator[tuple[Path, str, str]]:
    """Yield all translators with their source and target languages, the newest first and those of the project last."""
    for folder in _newest_first(WEIGHTS, root):
        with suppress(ValueError):  # another task, or another version; naming this run explicitly shows the error
            data = read_config(folder, TranslationConfig).data
            yield folder, data.src_lang, data.tgt_lang


class Reader(NamedTuple):
    """The translator that is to read a text, and what is said of the choice, if there was one."""

    folder: Path
    reason: str = ""


_BEGINNING = 10_000  # characters of a text, which tell what kind it is
_MANY = 20  # runs; reading the vocabulary of each takes 0.03 s
# A run of one's own may have this many times the best log-probability: vocabularies of the same kind of text, but of
# other sizes, differ by as much; those of other kinds mostly by more.
_NEAR = 1.1


def source_log_prob(folder: Path) -> Callable[[str], float]:
    """Return what tells the log-probability of a plain text, as a source, by the vocabulary of a run."""
    tokenizers = load_tokenizers(folder)
    share = 1 / 2 if tokenizers.is_joint else 1  # about half of the training text of a joint one is in each language
    return partial(plain_text(tokenizers, folder).log_prob, share=share)


def reading_best(log_probs: Mapping[str, float]) -> str:
    """Return the name of the run that is to read a text, by the log-probability of that for each, the newest first."""
    best = max(log_probs.values())
    return next(name for name, p in log_probs.items() if p >= best * nearness(name))


def nearness(name: str) -> float:
    """Return how many times the best log-probability that of a run may be so that it is read by that run."""
    return 1 if name in SHIPPED else _NEAR


def run_reading(text: str, root: Path = PICKLES) -> Reader:
    """Return the translator that reads a text best, of those whose language has its letters; without any, the newest.

    The likelier a text is by a run's vocabulary, the better it is read. A run of one's own that reads it nearly as well
    as the best goes before all older ones.
    """
    text, own = text[:_BEGINNING], {folder: src_lang for folder, src_lang, _ in translators(root)}
    detected = {language: detect(text, [language]) for language in {*own.values()}}
    fitting = [folder for folder, language in own.items() if (found := detected[language]) and found.confidence]
    if len(fitting) > _MANY:
        newest = {title: folder for folder in reversed(fitting) for title in titles([folder.name])}
        fitting = [folder for folder in fitting if folder in newest.values() or folder.name in SHIPPED]
    if len(fitting) < 2:
        return Reader(next(iter(fitting), None) or newest_run(WEIGHTS, root))
    log_probs = dict.fromkeys(fitting, -math.inf)
    for folder in fitting:
        with suppress(ValueError):  # a damaged vocabulary; naming this run explicitly shows the error
            log_probs[folder] = source_log_prob(folder)(text)
    chosen = root / reading_best({folder.name: log_prob for folder, log_prob in log_probs.items()})
    how = (
        "best"
        if log_probs[chosen] == max(log_probs.values())
        else "nearly as well as the best, and is the newest that does,"
    )
    return Reader(chosen, f"reads this text {how} of {len(fitting)} runs")


def runs_named(name: str, root: Path = PICKLES) -> list[Path]:
    """Return the runs of a name, the newest first."""
    pattern = re.compile(rf"{re.escape(name)}-(\d{{8}}-\d{{6}})(?:-(\d+))?")
    matches = [(pattern.fullmatch(folder.name), folder) for folder in root.glob("*/")]
    dated = [(match[1], int(match[2] or 1), folder) for match, folder in matches if match]
    return [folder for *_, folder in sorted(dated, reverse=True)]


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the folder names of runs that are shown together."""
    names = [folder.resolve().name for folder in folders]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two runs are named {name}: give one of them, or rename the folder of the other")
    return names


def titles(names: Sequence[str]) -> list[str]:
    """Return folder names without the time stamp at the end, unless names would then be equal."""
    short = [re.sub(r"-\d{8}-\d{6}(-\d+)?$", "", name) for name in names]
    return [title if short.count(title) == 1 else name for title, name in zip(short, names, strict=True)]


def find_run(
    name: Path | None,
    config_type: type[RunConfig] = TranslationConfig,
    root: Path = PICKLES,
    having: str = WEIGHTS,
) -> Path:
    """Return the folder of a run, by its path, its name, or its name without date; without a name the newest.

    Args:
        name: of several runs of a name without date, the newest that has what is needed.
        config_type: type of settings of the newest run.
        having: name of the file or folder that is needed.
    """
    if name is None:
        return newest_run(having, root, config_type)
    exact, dated = [folder for folder in (name, root / name) if folder.is_dir()], runs_named(str(name), root)
    if exact and str(name) not in SHIPPED:  # whose names runs of one's own may have, too
        return exact[0]
    if candidates := [*dated, *exact]:
        return next((folder for folder in candidates if (folder / having).exists()), candidates[0])
    near = get_close_matches(str(name), [folder.name for folder in root.glob("*/")], n=1)
    raise ValueError(f"no run {name}: " + (f"did you mean {near[0]}?" if near else f"give a folder under {root}"))


def require_run(folder: Path) -> None:
    """Refuse a folder that is none of a run, or was exported from one."""
    if not folder.is_dir():
        raise ValueError(f"no run {folder}: give a folder under {PICKLES}")
    if (folder / EXPORTED).is_file():
        raise ValueError(f"{folder} was exported for CTranslate2: only translate.py and serve.py read it")
    if (folder / "config.json").is_file() and not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} has a model for other programs, such as export.py writes: give the run itself")


def read_config(folder: Path, config_type: type[RunConfigT]) -> RunConfigT:
    """Read the settings of a run, which is to be of their task."""
    require_run(folder)
    return config_type.load(folder / CONFIG)
