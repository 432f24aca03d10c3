"""Pages of a translator at work: a walk of one text through it, and some dev sentences while it learns.

The walk shows tokens, embeddings, attention, each layer's guess and the beam. Its numbers are those of the network and
of the search that translate, rounded to 16 bits; what follows from others (a score, a weight, a mixture) is computed by
the page.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from const.token import BOS, BOS_ID, EOS, EOS_ID
from layers.probe import recorded_calls
from models.transformer import Transformer
from models.translation_model import TranslationModel
from utils.dataset.batch import padded
from utils.dataset.text import ParallelText
from utils.file import require_writable
from utils.load import Run
from utils.run import WATCH_PAGE, WATCHED
from utils.search.beam import BeamStep, largest
from utils.search.constraint import NEVER
from utils.search.forced import attention_weights, attentions, layer_guesses, recorded_by_kind
from utils.search.searcher import BeamSearch
from utils.search.translator import Translator
from utils.text.tokenizer import Tokenizer
from utils.training.report import JsonLines, Validation, read_log, spread
from utils.training.schedule import Progress
from utils.visualize.attention import PARTS, Pair, translated_at_once, write_page

_SETTINGS = ("d_model", "n_heads", "positions", "scale_attention", "scale_embedding")
_LISTED, _DIGITS = 5, 4  # guesses of a layer at a position; of a log-probability


def show_explanation(run: Run, translator: Translator, text: str, path: Path, prefix: str = "") -> None:
    """Write a page, HTML, about how a text that is translated at once becomes the best that a beam search finds."""
    if run.transformer.bert is not None:
        raise ValueError(f"{run.folder} reads with a BERT, which --explain does not show: give --attention instead")
    require_writable(path.parent, "give --explain a file in another folder")
    (src, tgt), languages = run.tokenizers, run.config.data.languages
    steps: list[dict[str, Any]] = []
    search = replace(cast(BeamSearch, translator.searcher), on_step=lambda step: steps.append(_candidates(step, tgt)))
    source, target, translation = translated_at_once(run, replace(translator, searcher=search), text, prefix)
    read, said = src.tokens(source), tgt.tokens(target)
    penalties = [translator.search.penalty(length) for length in range(1, len(steps) + 1)]
    data = {
        "model": {name: getattr(run.config.model, name) for name in _SETTINGS},
        "source": {"tokens": [*read, EOS], "ids": [*source, EOS_ID], "lang": languages[0]},
        "target": {"tokens": [BOS, *said], "ids": [BOS_ID, *target], "lang": languages[1]},
        "said": {"tokens": [*said, EOS], "lang": languages[1]},
        "beam": {"steps": steps, "penalties": penalties, "alpha": translator.search.length_penalty},
        # that of the search, in its precision
        **_inside(cast(Transformer, search.model), source, target),
        "guesses": listed_guesses(cast(Transformer, search.model), source, target, tgt),
    }
    write_page("explain.html", data, Pair(text, translation, *languages, run.folder.resolve().name), path)


def _candidates(step: BeamStep, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what a step for one text chose among: the W best, the next W, which it dropped, and what ended.

    Each is its row before the step, its token, and its log-probability (of what ended, also its score); None: nothing.
    """

    def listed(log_probs: Tensor, rows: Tensor, ids: Tensor) -> list[tuple[int, str, float] | None]:
        candidates = zip(rows.tolist(), tokenizer.tokens(ids.tolist()), log_probs.tolist(), strict=True)
        return [(row, token, round(p, _DIGITS)) if p > NEVER else None for row, token, p in candidates]

    kept, rows, ids = step.kept[0], step.rows[0], step.tokens[0]
    others = step.continued[0].clone()
    others[rows, ids] = NEVER
    dropped, places = (x[0] for x in largest(others.flatten()[None], min(len(kept), others.numel())))
    ends = enumerate(zip(step.ends[0].tolist(), step.ended[0].tolist(), strict=True))
    return {
        "kept": listed(kept, rows, ids),
        "dropped": listed(dropped, places // others.size(1), places % others.size(1)),
        "ends": [(row, round(p, _DIGITS), round(score, _DIGITS)) for row, (p, score) in ends if score > NEVER],
        "hope": round(hope, _DIGITS) if (hope := step.hope[0].item()) > NEVER else None,
    }


@torch.inference_mode()
def _inside(model: Transformer, source: list[int], target: list[int]) -> dict[str, Any]:
    """Return embeddings (L, D), positions, and each attention's queries, keys and values (H, L, K), by forced decoding.

    Positions (L, D) are what is added. Rotary ones (L, K) are how a pair (1, 0) is turned: cosine and sine of an angle.
    """
    device = next(model.parameters()).device
    src, tgt = padded([source]).to(device), padded([target], bos=True)[:, :-1].to(device)
    # within the block every kernel is the explicit one, which is called with query, key and value
    with recorded_by_kind(model), ExitStack() as recorders:
        kernels = {kind: [layer.attention for layer in layers] for kind, layers in attentions(model).items()}
        calls = {kind: recorders.enter_context(recorded_calls(stack)) for kind, stack in kernels.items()}
        model.hidden(src, tgt)
    embedded = {"source": model.src_embedding(src), "target": model.tgt_embedding(tgt)}
    zeros = {side: torch.zeros_like(x) for side, x in embedded.items()}
    positions = {"source": model.src_positions(zeros["source"]), "target": model.tgt_positions(zeros["target"])}
    rotary = attentions(model)["decoder"][0].rotary
    if rotary is not None:
        pairs = torch.tensor([1.0, 0.0], device=device).repeat(model.config.d_model // model.config.n_heads // 2)
        positions = {side: rotary(pairs.expand(1, 1, x.size(1), -1))[:, 0] for side, x in embedded.items()}
    return {
        "embedded": {side: _quantized(x[0]) for side, x in embedded.items()},
        "positions": {side: _quantized(x[0]) for side, x in positions.items()},
        "attention": {
            kind: [[_quantized(x[0]) for x in inputs[:3]] for inputs, _ in stack] for kind, stack in calls.items()
        },
    }


def listed_guesses(model: TranslationModel, source: list[int], target: list[int], tokenizer: Tokenizer) -> list[Any]:
    """Return, for each layer and position, the likeliest tokens and, last, what was written, with probabilities."""
    probs = layer_guesses(model, source, target).softmax(-1)
    likeliest = probs.topk(min(_LISTED, probs.size(-1))).indices
    written = torch.tensor([*target, EOS_ID], device=probs.device)[None, :, None].expand(len(probs), -1, 1)
    ids = torch.cat([likeliest, written], -1)
    listed = zip(tokenizer.tokens(ids.flatten().tolist()), probs.gather(-1, ids).flatten().tolist(), strict=True)
    rounded = iter([(token, round(p, _DIGITS)) for token, p in listed])
    return [[[next(rounded) for _ in position] for position in layer] for layer in ids]


def _quantized(x: Tensor) -> dict[str, Any]:
    """Return a tensor as 16-bit integers in base64, and what they are to be multiplied by."""
    scale = max(x.abs().max().item(), 1e-9) / 32767
    integers = (x.float().cpu() / scale).round().short().numpy().astype("<i2")
    return {"scale": scale, "data": b64encode(integers.tobytes()).decode()}


# How dev sentences are translated at each validation. The records are lines of JSON, which a resumed training
# continues; the page is made of them anew each time.


def easy_to_follow(text: ParallelText, n: int) -> ParallelText:
    """Return n sentences of the shorter half of a text, the shortest first."""
    by_length = sorted((i for i, source in enumerate(text.src) if source.strip()), key=lambda i: len(text.src[i]))
    chosen = spread(by_length[: max(n, len(by_length) // 2)], n)
    return ParallelText([text.src[i] for i in chosen], [text.tgt[i] for i in chosen])


class Watch(JsonLines):
    """Keeps the translation, the cross-attention and each layer's guesses of some sentences; redraws the page.

    A training that is at step 0 begins with those of the network that has learned nothing yet.

    Args:
        translator: returns a translator with the network's current weights.
        languages: codes of source and target.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        text: ParallelText,
        translator: Callable[[], Translator],
        languages: tuple[str, str],
    ) -> None:
        super().__init__(folder / WATCHED, step or -1)  # a training that has not made an update begins the file anew
        self._folder, self._text, self._translator, self._languages = folder, text, translator, languages
        if not step:
            self._keep(Progress(), {})

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Keep what the network makes of the sentences now."""
        self._keep(progress, {"loss": validation.loss, **validation.scores})

    def _keep(self, progress: Progress, scores: Mapping[str, float]) -> None:
        translator = self._translator()
        sources = [ids[: translator.window - 1] for ids in translator.tokenizers.src.encode(self._text.src)]
        targets = [best.ids for best, *_ in translator.find([translator.request(ids) for ids in sources])]
        pairs = zip(self._text.src, self._text.tgt, sources, targets, strict=True)
        self.write("dev", progress, {**scores, "sentences": [_seen(translator, *pair) for pair in pairs]})
        records = [record for _, record in read_log(self._folder / WATCHED)]
        # a run that is resumed with another number of sentences, or another text, has earlier records of others
        texts = [[sentence["source"] for sentence in record["sentences"]] for record in records]
        data = {
            "parts": PARTS,
            "languages": self._languages,
            "frames": [record for record, sources in zip(records, texts, strict=True) if sources == texts[-1]],
        }
        run = self._folder.resolve().name
        write_page("watch.html", data, Pair("", "", *self._languages, run), self._folder / WATCH_PAGE)


def _seen(translator: Translator, text: str, reference: str, source: list[int], target: list[int]) -> dict[str, Any]:
    """Return what the page shows of a sentence; attention is the mean over the heads of each layer."""
    model, (src, tgt) = cast(TranslationModel, cast(BeamSearch, translator.searcher).model), translator.tokenizers
    return {
        "source": text,
        "reference": reference,
        "translation": tgt.decode([target])[0],
        "read": [*src.tokens(source), EOS],
        "said": [*tgt.tokens(target), EOS],
        "cross": [
            (weights.mean(0) * PARTS).round().int().tolist()
            for weights in attention_weights(model, source, target)["cross"]
        ],
        "guesses": listed_guesses(model, source, target, tgt),
    }
