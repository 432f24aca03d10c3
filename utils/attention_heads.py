"""Where each head looks: `python -m utils.attention_heads SENTENCE ... --picture FILE [--run RUN]`."""

from collections.abc import Sequence
from pathlib import Path

from const.token import EOS
from utils.command_line import Parser, run_command
from utils.device import pick_device
from utils.file import require_file
from utils.run import Run, find_run, load_run
from utils.search.attention_map import AttentionMap, attention_weights
from utils.search.translator import Translator
from utils.terminal.contradiction import refuse_other_pictures
from utils.text.tokenizer import id_of_each
from utils.visualize.attention import Attended, cross_attention, draw_attention, draw_heads
from utils.visualize.attention_page import Pair, write_attention_page


def last_cross_attention(run: Run, sentences: Sequence[str]) -> list[Attended]:
    """Translate sentences, and return what the heads of the last decoder block attended to for each token.

    Args:
        run: the translator.
        sentences: each short enough to be translated at once.

    Raises:
        ValueError: when a sentence is empty or longer than the run's window.
    """
    src, tgt = run.tokenizers
    sources = _sources(run, sentences)
    found = []
    for ids, (best, *_) in zip(sources, run.translator().search_ids(sources), strict=True):
        weights = cross_attention(run.model, ids, best.ids)[-1]
        found.append(Attended(weights, [*src.tokens(ids), EOS], [*tgt.tokens(best.ids), EOS]))
    return found


def show_attention(
    run: Run, translator: Translator, text: str, path: Path, given: str | None = None, prefix: str = ""
) -> None:
    """Draw where every head of every layer looks while a translation is generated.

    Args:
        run: the run whose heads are shown.
        translator: finds the translation with it.
        text: short enough to be translated at once.
        path: where to draw: a page to explore (.html) or a picture (.png).
        given: a translation to look at; None: the best that the translator finds.
        prefix: how the translation that is searched for begins.

    Raises:
        ValueError: when the text is empty or too long, or the path is of another kind.
    """
    refuse_other_pictures(path)
    src, tgt = run.tokenizers
    (source,) = _sources(run, [text])
    if given is None:
        (translation,) = translator.translate([text], prefixes=[prefix] if prefix else None, first=1)
        if not translation.n_pieces:
            raise ValueError(f"no part of {text!r} is in the vocabulary: give a sentence that the run can read")
        given, places = translation.text, id_of_each(tgt)
        target = [places[token] for token in translation.candidates[0].tokens]
    else:
        target = _given_target(run, given)
    found = AttentionMap(
        [*src.tokens(source), EOS], [*tgt.tokens(target), EOS], attention_weights(run.model, source, target)
    )
    if path.suffix == ".png":
        draw_attention(found, path)
    else:
        languages = run.config.data.src_lang, run.config.data.tgt_lang
        write_attention_page(found, Pair(text, given, *languages, run.folder.resolve().name), path)


def _sources(run: Run, sentences: Sequence[str]) -> list[list[int]]:
    sources = run.tokenizers.src.encode(sentences)
    for text, ids in zip(sentences, sources, strict=True):
        if not ids:
            raise ValueError(f"{text!r} has no token: give a sentence")
        if len(ids) + 1 > run.window:
            raise ValueError(
                f"{len(ids) + 1} tokens, </s> included, are more than the {run.window} that {run.folder} reads at a "
                f"time: shorten {text!r}"
            )
    return sources


def _given_target(run: Run, given: str) -> list[int]:
    (target,) = run.tokenizers.tgt.encode([given])
    longest = run.config.model.max_length
    if not target:
        raise ValueError(f"{given!r} has no token: give a translation")
    if len(target) + 1 > longest:
        raise ValueError(
            f"{len(target) + 1} tokens, </s> included, are more than the {longest} that {run.folder} writes: "
            f"shorten {given!r}"
        )
    return target


def build_parser() -> Parser:
    """Build the parser: sentences, the run, and where to draw."""
    parser = Parser(
        prog="utils.attention_heads",
        usage="python -m utils.attention_heads SENTENCE [SENTENCE ...] --picture FILE [--run RUN]",
        description="Translate sentences and draw each head of the last decoder block's cross-attention.",
    )
    parser.add_argument("sentences", nargs="+", type=str, metavar="SENTENCE", help="what to translate")
    parser.add_argument("--picture", type=Path, required=True, metavar="FILE", help="where to draw, as PNG")
    parser.add_argument("--run", type=Path, help="folder or name of a run (default: the one trained last)")
    return parser


def main() -> None:
    """Draw the heads.

    Raises:
        ValueError: when there is no such run, or it cannot translate a sentence at once.
    """
    arguments = build_parser().parse_args()
    require_file(arguments.picture)
    run = load_run(find_run(arguments.run), pick_device("auto"))
    draw_heads(last_cross_attention(run, arguments.sentences), arguments.picture)


if __name__ == "__main__":
    run_command("attention_heads", main)
