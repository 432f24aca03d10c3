"""Lines unlike any text, which lead networks into loops: how many stay, unsaid? `python -m bench.hostile RUN`."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from tqdm import tqdm

from config.training import Device
from utils.command import Parser, require_options_at_least, run_command
from utils.device import pick_device
from utils.evaluation.survive import LOOP
from utils.load import build_translator, load_run
from utils.run import find_run
from utils.search.translation import Translation
from utils.text.loop import is_loop

UNSAID = "a loop, unsaid"
_SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~・…‥。、！？―〜「」『』（）【】★☆○●◎■□◆→※§¶†‡©®™°±×÷µ½²³"
_SCRIPTS = (
    "あいうえおかきくけこさしすせそのはがをに",
    "アイウエオカキクケコサシスセソンー",
    "京都寺山川人年大日本国東西南北天皇将軍",
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789０１２３４５６７８９",
    "абвгдежзиклмнопрстуфхцчшщ",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "가나다라마바사아자차카타파하",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "กขคงจฉชซญดตถทนบปผพฟมยรลวสหอ",
    "😀🎉🚀👍🏽🇯🇵♪",
)
_EVERY = "".join(_SCRIPTS) + _SIGNS + " \u3000\u200b\u0301"


def hostile_lines(sentences: Sequence[str], n: int) -> list[str]:
    """Return n lines, each time the same: one of each kind, then another of each; parts of sentences are in some."""
    rng = random.Random(0)

    def some(characters: str, least: int, most: int) -> str:
        return "".join(rng.choices(characters, k=rng.randint(least, most)))

    def words() -> list[str]:
        sentence = rng.choice(sentences)
        return sentence.split() if " " in sentence else [some(sentence, 1, 4) for _ in range(9)]

    def mixed() -> list[str]:
        return [*words(), *(some(rng.choice(_SCRIPTS), 1, 6) for _ in range(6))]

    kinds: tuple[Callable[[], str], ...] = (
        lambda: some(_EVERY, 1, 1) * rng.randint(3, 120),  # a character, again and again
        lambda: some(_EVERY, 2, 5) * rng.randint(3, 40),
        lambda: some(_SIGNS, 1, 80),
        lambda: " ".join([rng.choice(words())] * rng.randint(3, 30)),  # a word, again and again
        lambda: " ".join(rng.sample(both := mixed(), len(both))),  # scripts in a row
        lambda: some(rng.choice(_SCRIPTS), 60, 200),  # a very long word
        lambda: some(_EVERY, 1, 100),
        lambda: "".join(c + some(_SIGNS, 0, 2) for c in rng.choice(sentences)[:60]),  # a sentence with signs in it
        lambda: rng.choice(sentences)[: rng.randint(1, 30)] + some(_SIGNS, 1, 1) * rng.randint(2, 20),
    )
    return [kinds[i % len(kinds)]() for i in range(n)]


def outcome(line: str, translation: Translation) -> str:
    """Return what became of a line: no loop, what was done with one, or that it stayed and is not said.

    A loop is what a translator takes for one, or what `evaluate.py survive` does.
    """
    translated = [piece for piece in translation.pieces if piece.ids]
    loops = any(is_loop(piece.best.text, piece.source) for piece in translated)
    loops |= bool(LOOP.search(translation.text)) and not LOOP.search(line)
    return translation.loop or (UNSAID if loops else "no loop")


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="python -m bench.hostile",
        description="Translate lines unlike any text, and count loops.",
        epilog="""examples:
  python -m bench.hostile kftt_ja_en --sentences kyoto-dev.ja
  python -m bench.hostile kftt_en_ja --sentences kyoto-dev.en --lines 10000""",
    )
    parser.add_argument("run", help="run that translates")
    parser.add_argument(
        "--sentences", type=Path, required=True, metavar="FILE", help="text that it reads, to draw from"
    )
    parser.add_argument("--lines", type=int, metavar="N", default=1000, help="lines to draw (default: 1000)")
    text = "cpu, cuda, or auto: cuda if available"
    parser.add_argument("--device", choices=get_args(Device), default="auto", help=text)
    return parser


def main() -> None:
    """Translate the lines, and print how many of them became what."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, lines=1)
    run = load_run(find_run(Path(arguments.run)), pick_device(arguments.device), plain=True)
    sentences = [*filter(str.strip, arguments.sentences.read_text(encoding="utf-8").splitlines())]
    counts, examples = Counter[str](), list[str]()
    lines = hostile_lines(sentences, arguments.lines)
    translator = build_translator([run])
    for begin in tqdm(range(0, len(lines), 100), disable=None):
        part = lines[begin : begin + 100]
        for line, translation in zip(part, translator.translate(part), strict=True):
            counts[result := outcome(line, translation)] += 1
            examples += [f"{line} → {translation.text}"] * (result == UNSAID)
    print(*(f"{count:6,} {result}" for result, count in counts.most_common()), *examples, sep="\n")


if __name__ == "__main__":
    run_command("python -m bench.hostile", main)
