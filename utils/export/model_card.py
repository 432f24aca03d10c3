"""The README.md of an exported folder, for people who have nothing else."""

from dataclasses import asdict

from utils.export.translator_settings import SETTINGS, TranslatorSettings
from utils.text.tokenizer import SentencePieceTokenizer, TaggedTokenizer, TokenizerPair, every_token

CARD = "README.md"

_SNIPPET = """\
import {needs}

{load}translator = ctranslate2.Translator(".", device="cpu")
pieces = {pieces}
limits = {{"max_input_length": {window}, "max_decoding_length": {longest}}}
(result,) = translator.translate_batch([pieces], beam_size={beam}, length_penalty={penalty}, disable_unk=True, **limits)
print({decode})
"""
_CTRANSLATE2 = """\
# {name}

A Transformer that translates from `{src_lang}` to `{tgt_lang}`, trained with Miyako, for
[CTranslate2](https://github.com/OpenNMT/CTranslate2); weights: {weights}.

In this folder, after `pip install {needs}`:

```python
{snippet}```

Give one sentence at a time, of at most {room} tokens. Miyako also translates whole texts, which it
splits into sentences itself:

```sh
python translate.py "a text" --engine ctranslate2 --run THIS_FOLDER
```

`{settings}` holds the languages, the limits, and the run's search settings: {search}.
"""
_SAFETENSORS = """\
# {name}

A network of Miyako, `{architecture}`: its weights in `model.safetensors` (tied matrices are stored once; the file's
metadata lists their other names), all settings that build the network in `config.json`, and its vocabulary.

With Miyako:

```python
from pathlib import Path
from utils.export.safetensors import load_safetensors

net, tokenizers, facts = load_safetensors(Path("THIS_FOLDER"))
```

`net` is ready for inference. Elsewhere, `safetensors.torch.load_file("model.safetensors")` gives the tensors by name.
"""


def ctranslate2_card(settings: TranslatorSettings, tokenizers: TokenizerPair, quantization: str | None) -> str:
    """Describe a translator for CTranslate2, with a few lines of Python that translate with it."""
    src, tgt = tokenizers
    if isinstance(tgt, SentencePieceTokenizer):
        needs = ["ctranslate2", "sentencepiece"]
        tag = f'["{src.tag}"] + ' if isinstance(src, TaggedTokenizer) else ""
        files = '("tokenizer.model",) * 2' if tag or src is tgt else '("tokenizer_src.model", "tokenizer_tgt.model")'
        load = f"source, target = (sentencepiece.SentencePieceProcessor(model_file=f) for f in {files})\n"
        pieces, decode = f'{tag}source.encode("a sentence", out_type=str)', "target.decode(result.hypotheses[0])"
    else:
        needs, load = ["ctranslate2"], ""
        lower = ".lower()" if all(word == word.lower() for word in every_token(src)) else ""
        pieces, decode = f'"a sentence , its words apart"{lower}.split()', '" ".join(result.hypotheses[0])'
    snippet = _SNIPPET.format(
        needs=", ".join(needs),
        load=load,
        pieces=pieces,
        decode=decode,
        beam=settings.search.beam_size,
        penalty=settings.search.length_penalty,
        window=settings.window,
        longest=settings.longest - 1,
    )
    return _CTRANSLATE2.format(
        name=settings.name,
        src_lang=settings.src_lang,
        tgt_lang=settings.tgt_lang,
        weights=quantization or "float32",
        needs=" ".join(needs),
        snippet=snippet,
        room=settings.window - 1,
        settings=SETTINGS,
        search=", ".join(f"{name} {value}" for name, value in asdict(settings.search).items()),
    )


def safetensors_card(name: str, architecture: str) -> str:
    """Describe a network as safetensors, with a few lines of Python that load it."""
    return _SAFETENSORS.format(name=name, architecture=architecture)
