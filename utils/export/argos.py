"""A translator as a package of Argos Translate, from which LibreTranslate translates, too.

A package is a zip of one folder: `metadata.json`, `sentencepiece.model` for both languages, the network for CTranslate2
in `model/` and a `README.md` (`argostranslate/package.py` of github.com/argosopentech/argos-translate).
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

from config.data import primary_language
from const.corpora import VERSION
from layers.positional_encoding import LearnedPositionalEncoding, SinusoidalPositionalEncoding, sinusoid
from utils.export import CARD
from utils.export.ctranslate2 import to_ctranslate2
from utils.file import read_json, write_json, write_text
from utils.load import Run
from utils.text.language import language_name
from utils.text.tokenizer import SentencePieceTokenizer

SUFFIX = ".argosmodel"
_LONGEST = 1024  # tokens of a sentence, to which CTranslate2 cuts what Argos Translate gives it


def write_argos(run: Run, path: Path, quantization: str | None) -> None:
    """Write a package."""
    model, tokenizer, name = run.transformer, _representable(run), run.folder.resolve().name
    for positions in (model.src_positions, model.tgt_positions):
        if isinstance(positions, SinusoidalPositionalEncoding):  # CTranslate2 stops where the table ends
            positions.table = sinusoid(_LONGEST, model.config.d_model)
    codes = [primary_language(code) for code in (run.config.data.src_lang, run.config.data.tgt_lang)]
    names = [language_name(code) for code in codes]
    about = {"package_version": VERSION, "argos_version": "1.5"}  # the version that its own trainer writes
    metadata = about | {"from_code": codes[0], "from_name": names[0], "to_code": codes[1], "to_name": names[1]}
    card = f"# {name}\n\n{names[0]} → {names[1]}, trained from scratch with Miyako, version {VERSION}.\n"
    with TemporaryDirectory() as temporary, ZipFile(path, "w", ZIP_DEFLATED) as package:
        folder = Path(temporary) / name
        folder.mkdir()
        to_ctranslate2(model, run.tokenizers, folder / "model", quantization)
        if run.tokenizers.tags:  # Argos Translate gives pieces alone; CTranslate2 can begin them with a token
            config = folder / "model" / "config.json"
            begun = {"bos_token": run.tokenizers.tags[0], "add_source_bos": True}
            write_json(config, read_json(config) | begun)
        (folder / "sentencepiece.model").write_bytes(tokenizer.model)
        write_json(folder / "metadata.json", metadata)
        write_text(folder / CARD, card)
        for file in sorted(folder.rglob("*")):
            package.write(file, file.relative_to(temporary))


def _representable(run: Run) -> SentencePieceTokenizer:
    """Refuse what Argos Translate cannot read; return the tokenizer of both languages."""
    pair, longest = run.tokenizers, run.transformer.config.max_length
    if not isinstance(pair.tgt, SentencePieceTokenizer) or not pair.is_joint:
        reason = "it reads one vocabulary of pieces for both languages: train with --tokenizer.joint true"
    elif len(pair.tags) > 1:
        reason = f"it begins a source with one token at most, not {' '.join(pair.tags)}: give --to ctranslate2"
    elif run.config.data.is_tokenized:
        reason = "it gives plain text, and this run learned from words set apart by spaces: train with plain text"
    elif isinstance(run.transformer.src_positions, LearnedPositionalEncoding) and longest < _LONGEST:
        reason = (
            f"it gives up to {_LONGEST:,} pieces, and max_length={longest}: train with sinusoidal or rotary positions"
        )
    else:
        return pair.tgt
    raise ValueError(f"{run.folder} cannot be a package of Argos Translate: {reason}")
