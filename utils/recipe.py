"""Which settings fit a text of your own: by its size, where no preset is named."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, repeat

import numpy as np

from config.data import OWN_TEXTS, DataConfig, primary_language
from config.reader import Settings, merged, settings_from_options
from const.path import PRESET
from utils.config import TranslationConfig, load_settings, to_config
from utils.dataset.formats import column_names, pairs_in, suffix_of
from utils.dataset.text import BLOCK, Pair, ParallelFiles, hold_out, read_pairs, require_text, shares_no_line
from utils.text.language import unspaced_language

# The settings are those of kftt_ja_en_small, but for these by the number of pairs. Fewer pairs take fewer pieces,
# smaller batches and more dropout (Sennrich & Zhang 2019; Araabi & Monz 2020). The columns are the sizes of what was
# measured, in docs/own_text.md and by the presets tanaka_ja_en and kftt_ja_en_small.
SIZES = (2_000, 50_000, 200_000)  # pairs
BY_PAIRS = {
    "tokenizer.vocab_size": (2_000, 6_000, 8_000),
    "model.d_model": (128, 256, 256),
    "model.dropout": (0.3, 0.2, 0),
    "batch.tokens_per_batch": (1_000, 5_000, 4_000),
    "training.max_steps": (2_000, 3_400, 8_000),
    "optimizer.peak_lr": (0.004, 0.003, 0.003),
}


def recipe(n_pairs: int, n_characters: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a size by their names; those given, as typed, count, and what depends on them follows.

    Between two sizes they are interpolated by the logarithm of the number of pairs, to two digits; the width is that of
    the nearer one. Beyond the smallest and the largest they stay the same. Each character takes a piece.
    """
    size, sizes = np.log(n_pairs), np.log(SIZES)
    chosen = {name: f"{float(f'{np.interp(size, sizes, row):.2g}'):g}" for name, row in BY_PAIRS.items()}
    chosen["model.d_model"] = str(BY_PAIRS["model.d_model"][np.abs(sizes - size).argmin()])
    chosen["tokenizer.vocab_size"] = str(max(int(chosen["tokenizer.vocab_size"]), n_characters + 1_000))
    known = chosen | {name: value for name, value in given.items() if value.isdecimal()}  # others will be refused
    width, steps = int(known["model.d_model"]), int(known["training.max_steps"])
    sixteenth = max(1, steps // 16)
    follows = dict.fromkeys(("optimizer.warmup_steps", "training.validate_every"), str(sixteenth))
    if "training.max_minutes" in given:  # the rate falls by the clock; a sixteenth of how many updates, nobody knows
        follows |= {"training.max_steps": "null", "optimizer.warmup_steps": str(min(sixteenth, 100))}
    fixed = {"data.corpus": "files", "batch.accumulate": "1", "model.d_ff": str(4 * width)}
    return chosen | follows | fixed | dict(given)


def own_recipe(options: Mapping[str, str]) -> tuple[Settings, str] | None:
    """Return the settings for your own text by its size, and a line that says them; None: its files are not all given.

    The text is only read: `prepare_corpus` makes files of it, and refuses a lacking one, when the training begins.
    """
    named = settings_from_options({name: value for name, value in options.items() if name.startswith("data.")})
    data = to_config(TranslationConfig, named).data
    texts = {text: data.own_files(text) for text in OWN_TEXTS}
    if not texts[""] or any(len(files) == 1 and f"{text}pairs" not in files for text, files in texts.items()):
        return None
    for files in texts.values():
        for name, file in files.items():
            require_text(file, name)
    src, tgt = _languages(data, options.get("data.src_lang"), options.get("data.tgt_lang"))
    n_pairs, characters = 0, set[str]()
    for pair in training_pairs(replace(data, src_lang=src, tgt_lang=tgt)):
        n_pairs += 1
        characters.update(*pair)
    n_pairs = min(n_pairs, data.clean.max_pairs or n_pairs)
    given = {"name": f"{src}_{tgt}", **options, "data.src_lang": src, "data.tgt_lang": tgt}
    chosen = settings_from_options(recipe(n_pairs, len(characters), given))
    settings = merged(load_settings(PRESET / "kftt_ja_en_small.yaml"), chosen)
    config, text = to_config(TranslationConfig, settings), " and ".join(file.name for file in texts[""].values())
    model, batch, optimizer, training = config.model, config.batch, config.optimizer, config.training
    steps, epochs = training.max_steps, training.max_epochs
    return settings, (
        f"{text}: {n_pairs:,} pairs, {src} to {tgt}: vocabulary {config.tokenizer.vocab_size:,}, "
        f"{model.n_encoder_layers}+{model.n_decoder_layers} layers of {model.d_model}, dropout {model.dropout:g}, "
        f"{f'{steps:,} ' if steps else ''}updates of {batch.accumulate * batch.tokens_per_batch:,} tokens, "
        f"warm-up {optimizer.warmup_steps:,}, peak rate {optimizer.peak_lr:g}"
        + (f"; cut short after {epochs} epochs, which do not shorten the course of the rate" if epochs else "")
    )


def _languages(data: DataConfig, src: str | None, tgt: str | None) -> tuple[str, str]:
    """Return the languages of your own training text: as given, or by the names of columns or files, or by letters."""
    if src and tgt:
        return src, tgt
    files = data.own_files("")
    names = column_names(files["pairs"]) if "pairs" in files else [suffix_of(file)[1:] for file in files.values()]
    codes = [name for name in dict.fromkeys(names) if name != "id" and re.fullmatch("[a-z]{2}", primary_language(name))]
    is_named = "pairs" in files and suffix_of(files["pairs"]) == ".tmx"  # there, nothing else tells the sides apart
    if len(codes) != 2 and not is_named:
        beginning = islice(_own_pairs(replace(data, src_lang="src", tgt_lang="tgt")), BLOCK)
        codes = [unspaced_language(lines) for lines in zip(*beginning, strict=True)]
    if given := src or tgt:
        others = [code for code in codes if code and primary_language(code) != primary_language(given)]
        codes = [src or others[0], tgt or others[0]] if len(others) == 1 else []
    if len(codes) != 2 or not all(codes):
        shown = " and ".join(map(str, files.values()))
        raise ValueError(f"nothing tells both languages of {shown}: give --data.src_lang and --data.tgt_lang")
    return codes[0], codes[1]


def _own_pairs(data: DataConfig, text: str = "") -> Iterator[Pair]:
    """Yield the pairs of one of `OWN_TEXTS`, whose files are given."""
    first, *others = data.own_files(text).values()
    return read_pairs(ParallelFiles(first, *others)) if others else pairs_in(first, data.languages)


def training_pairs(data: DataConfig) -> Iterator[Pair]:
    """Yield the pairs that there are to learn from before they are cleaned, as `prepare_corpus` will write them."""
    splits = ("dev_", "test_")
    held = [pair for text in splits if data.own_files(text) for pair in _own_pairs(data, text)]
    is_rest: Iterable[bool] = repeat(True)
    rows = set[int]()
    sizes = [0 if data.own_files(text) else data.held_out for text in splits]
    if any(sizes):
        is_rest, chosen = hold_out(_own_pairs(data), *sizes)
        rows = {row for lines in chosen.values() for row in lines}
    for row, (pair, stays) in enumerate(zip(_own_pairs(data), is_rest, strict=False)):
        if stays:
            yield pair
        elif row in rows:
            held.append(pair)
    if data.own_files("more_"):
        yield from filter(shares_no_line(held), _own_pairs(data, "more_"))
