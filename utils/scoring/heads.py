"""evaluate.py heads: the importance of each attention head."""

from dataclasses import asdict
from pathlib import Path

from jsonargparse import Namespace
from tqdm import tqdm

from utils.command_line import Parser, require_options_at_least
from utils.device import pick_device
from utils.evaluation.head_importance import bleu_without, count_heads, head_importance, text_batches
from utils.evaluation.metric import build_metrics
from utils.file import write_json
from utils.run import find_run, load_run
from utils.scoring.source_text import read_run_text
from utils.scoring.verb import Verb, run_text_options
from utils.terminal.option import changed_by
from utils.visualize.head_importance import draw_head_importance, importance_table


def heads_options(parser: Parser) -> None:
    """Add the options of `heads`."""
    run_text_options(parser, "read", "dev")
    parser.add_argument(
        "--bleu",
        action="store_true",
        help="also translate without each head, which takes many times longer than computing the loss",
    )
    parser.add_argument(
        "--beam", type=int, metavar="N", help="with --bleu: beam size; 1 is greedy search (default: the run's)"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw all heads to this PNG file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")


def weigh_heads(arguments: Namespace) -> None:
    """Switch off the attention heads one at a time: how much the loss rises without each, and how widely it attends."""
    require_options_at_least(arguments, limit=1)
    if arguments.beam is not None and not arguments.bleu:
        raise ValueError(f"--beam {arguments.beam} applies to translations: add --bleu")
    device = pick_device(arguments.device)
    run = load_run(find_run(arguments.run), device)
    search = changed_by(run.config.search, {"beam": "beam_size"}, arguments)
    corpus, pairs, name, tokenize = read_run_text(run, arguments.split, arguments.limit)
    title, n_heads, signature = f"{run.folder.resolve().name}, {name}", count_heads(run.model), None
    with tqdm(total=n_heads * (1 + arguments.bleu), unit="head", disable=None, leave=False) as bar:
        found = head_importance(run.model, text_batches(pairs, run.tokenizers, device), bar.update)
        if arguments.bleu:
            bleu = build_metrics(corpus.tgt_lang, tokenize)["BLEU"]
            found = found.with_bleu(*bleu_without(run.translator(search), pairs, bleu, bar.update))
            signature = str(bleu.get_signature())
    print("\n".join([title, "", *importance_table(found)]))
    if arguments.picture:
        draw_head_importance(found, title, arguments.picture)
    if arguments.json:
        about = {"run": run.folder.resolve().name, "text": name, "loss": found.loss, "bleu": found.bleu}
        heads = [asdict(head) for head in found.heads]
        write_json(arguments.json, {**about, "signature": signature, "heads": heads})


HEADS = Verb(
    "[RUN] [--split dev|test] [--limit N] [--bleu] [--picture FILE] [--json FILE]",
    "switch off each attention head to measure its importance",
    heads_options,
    weigh_heads,
)
