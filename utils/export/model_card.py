"""The README.md of an exported folder, for people who have nothing else."""

from dataclasses import asdict

from utils.export.translator_settings import SETTINGS, TranslatorSettings
from utils.text.tokenizer import SentencePieceTokenizer, TaggedTokenizer, TokenizerPair, every_token

CARD = "README.md"

_PIECES = """\
import ctranslate2, sentencepiece

source, target = (sentencepiece.SentencePieceProcessor(model_file=f) for f in ("{src}.model", "{tgt}.model"))
translator = ctranslate2.Translator(".", device="cpu")
pieces = {tag}source.encode("{text}", out_type=str)
limits = {{"max_input_length": {window}, "max_decoding_length": {longest}}}
(result,) = translator.translate_batch([pieces], beam_size={beam}, length_penalty={penalty}, disable_unk=True, **limits)
print(target.decode(result.hypotheses[0]))
"""
_WORDS = """\
import ctranslate2

translator = ctranslate2.Translator(".", device="cpu")
words = "{text}"{lower}.split()
limits = {{"max_input_length": {window}, "max_decoding_length": {longest}}}
(result,) = translator.translate_batch([words], beam_size={beam}, length_penalty={penalty}, disable_unk=True, **limits)
print(" ".join(result.hypotheses[0]))
"""


def ctranslate2_card(settings: TranslatorSettings, tokenizers: TokenizerPair, quantization: str | None) -> str:
    """Describe a translator for CTranslate2, with a few lines of Python that translate with it."""
    search = settings.search
    tag = tokenizers.src.tag if isinstance(tokenizers.src, TaggedTokenizer) else None
    joint = tag is not None or tokenizers.src is tokenizers.tgt
    by_pieces = isinstance(tokenizers.tgt, SentencePieceTokenizer)
    words = every_token(tokenizers.src)
    snippet = (_PIECES if by_pieces else _WORDS).format(
        src="tokenizer" if joint else "tokenizer_src",
        tgt="tokenizer" if joint else "tokenizer_tgt",
        tag="" if tag is None else f'["{tag}"] + ',
        text="a sentence" if by_pieces else "a sentence , its words apart",
        lower=".lower()" if all(word == word.lower() for word in words) else "",
        beam=search.beam_size,
        penalty=search.length_penalty,
        window=settings.window,
        longest=settings.longest - 1,
    )
    needs = "ctranslate2 sentencepiece" if by_pieces else "ctranslate2"
    return f"""\
# {settings.name}

A Transformer that translates from `{settings.src_lang}` to `{settings.tgt_lang}`, trained with Miyako, for
[CTranslate2](https://github.com/OpenNMT/CTranslate2); weights: {quantization or "float32"}.

In this folder, after `pip install {needs}`:

```python
{snippet}```

Give one sentence at a time, of at most {settings.window - 1} tokens. Miyako also translates whole texts, which it
splits into sentences itself:

```sh
python translate.py "a text" --engine ctranslate2 --run THIS_FOLDER
```

`{SETTINGS}` holds the languages, the limits, and the run's search settings: {_settings_line(settings)}.
"""


def safetensors_card(name: str, architecture: str) -> str:
    """Describe a network as safetensors, with a few lines of Python that load it."""
    return f"""\
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


def _settings_line(settings: TranslatorSettings) -> str:
    return ", ".join(f"{name} {value}" for name, value in asdict(settings.search).items())
