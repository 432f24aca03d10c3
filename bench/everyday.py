"""Texts of everyday life, Japanese and English, from archives: `python -m bench.everyday ARCHIVE ... --out FOLDER`.

Lectures (Coursera), Tanaka in its usual case and spacing, phrases of our own, and short sentences of KFTT, most with
numbers or names on both sides; dev text is of lectures and Tanaka, test text Tanaka's.
"""

import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

from const.path import ROOT
from utils.command import Parser, run_command
from utils.dataset.formats import pairs_in
from utils.dataset.protect import masked_pair
from utils.dataset.text import Pair, ParallelFiles, write_pairs
from utils.text.words import Words

LANGUAGES = ("ja", "en")
_PARTS = {
    "lectures": "coursera/train", "lectures dev": "coursera/dev", "tanaka": "small_parallel_enja/train",
    "tanaka dev": "small_parallel_enja/dev", "tanaka test": "small_parallel_enja/test", "kftt": "orig/kyoto-train",
}  # fmt: skip
PHRASES = ROOT / "corpus/phrases.tsv"  # greetings and the like, which lectures and Tanaka hardly have
_PHRASES_TIMES = 30  # that each of them is in the text: few as they are, they would not be learned
_MIN_TIMES = 3  # that a word occurs within sentences, for its case to count
_MOSTLY = 0.9  # share of them that are in one case
_NAMES = (
    "I Mr Mrs Ms Dr Tom Mary John Bill Jim Jack Bob Ken Nancy Betty Jane Kate Mike Paul Peter George "
    "Emi Yumi Taro TV"
)  # of Tanaka, and rare in lectures


def read(archives: Sequence[Path]) -> dict[str, list[Pair]]:
    """Read the pairs of each part from whichever archive has it."""
    lines: dict[str, list[str]] = {}
    for archive in archives:
        with tarfile.open(archive) as tar:
            for member in tar:
                if wanted := [path for path in _PARTS.values() if re.search(rf"(^|/){path}\.(ja|en)$", member.name)]:
                    file = tar.extractfile(member)
                    text = file.read().decode() if file else ""
                    lines[f"{wanted[0]}.{member.name[-2:]}"] = text.removesuffix("\n").split("\n")
    if missing := [path for path in _PARTS.values() if f"{path}.ja" not in lines]:
        raise ValueError(f"no archive has {', '.join(missing)}: give those of KFTT, small_parallel_enja and everyday")
    sides = {name: (lines[f"{path}.ja"], lines[f"{path}.en"]) for name, path in _PARTS.items()}
    return {name: [*zip(*both, strict=True)] for name, both in sides.items()}


def usual_words(*texts: Sequence[Pair]) -> dict[str, str]:
    """Return how words are written within sentences of the first text that has them often enough."""
    usual: dict[str, str] = {}
    for text in texts:
        counts: dict[str, Counter[str]] = {}
        for _, line in text:
            for word in re.findall(r"(?<=[a-z,] )[A-Za-z][A-Za-z-]*", line):
                counts.setdefault(word.lower(), Counter())[word] += 1
        for word, forms in counts.items():
            best, times = forms.most_common(1)[0]
            if word not in usual and forms.total() >= _MIN_TIMES:
                usual[word] = best if times > _MOSTLY * forms.total() else word  # KFTT has many a City
    return usual | {name.lower(): name for name in _NAMES.split()}


def plain(pairs: Sequence[Pair], usual: dict[str, str]) -> Iterator[Pair]:
    """Yield pairs of separated words, without capitals, as people write them."""
    words = Words("en", {}, lowercase=True, escaped=False, curled=False)
    for src, tgt in pairs:
        cased = re.sub(r"[^\s']+", lambda word: usual.get(word[0], word[0]), tgt)
        line = re.sub(r" (?=n't\b|'(?:s|m|re|ve|ll|d)\b)", "", words.join(cased))
        yield src.replace(" ", ""), line


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="bench.everyday",
        usage="python -m bench.everyday ARCHIVE ... --out FOLDER [OPTION ...]",
        description=(__doc__ or "").split("\n\n")[1],
        epilog="examples:\n"
        "  python -m bench.everyday kftt-data-1.0.tar.gz small_parallel_enja.tar.xz everyday.tar.xz --out everyday",
    )
    text = "pairs of KFTT, of which four fifths have a number or a name on both sides (default: 15,000)"
    parser.add_argument("--kyoto", type=int, default=15_000, metavar="N", help=text)
    parser.add_argument(
        "--held-out", type=int, default=250, metavar="N", help="pairs of either dev text (default: 250)"
    )
    parser.add_argument("archives", nargs="+", type=Path, help="archives that have the texts")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    return parser


def main() -> None:
    """Write the texts."""
    asked = build_parser().parse_args()
    parts, draw = read(asked.archives), Random(1)
    usual = usual_words(parts["lectures"], parts["kftt"])
    tanaka = {name: [*plain(pairs, usual)] for name, pairs in parts.items() if name.startswith("tanaka")}
    phrases = [*pairs_in(PHRASES, LANGUAGES)] * _PHRASES_TIMES
    learned, kyoto = [*tanaka["tanaka"], *parts["lectures"], *phrases], parts["kftt"]
    draw.shuffle(learned)
    draw.shuffle(kyoto)
    short = [pair for pair in kyoto if 8 < len(pair[0]) < 45]
    shared = (pair for pair in short if masked_pair(pair, LANGUAGES, 1.0, Random(1)) != pair)
    others = (pair for pair in short if masked_pair(pair, LANGUAGES, 1.0, Random(1)) == pair)
    n_others, n_dev = asked.kyoto // 5, asked.held_out
    texts = {
        "train": learned,
        "kyoto": [*islice(shared, asked.kyoto - n_others), *islice(others, n_others)],
        "dev": [*parts["lectures dev"][:n_dev], *tanaka["tanaka dev"][:n_dev]],
        "test": tanaka["tanaka test"],
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, pairs in texts.items():
        write_pairs(ParallelFiles(*(asked.out / f"{name}.{code}" for code in LANGUAGES)), pairs)
        print(f"{asked.out / name}.ja, .en: {len(pairs):,} pairs")


if __name__ == "__main__":
    run_command("bench.everyday", main)
