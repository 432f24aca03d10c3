"""What the explainer is to be told of a text, by the network in PyTorch: changed as the page asks for."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from const.token import BOS, BOS_ID, EOS, EOS_ID, PAD_ID
from layers.mask import padding_mask
from layers.multi_head_attention import KeyValue
from layers.probe import silenced_head
from models.transformer import Transformer, TransformerState
from utils.load import Run
from utils.search.beam import beam_search
from utils.search.constraint import NEVER, next_log_probs
from utils.search.forced import Kind, attention_weights, attentions
from utils.search.translator import Translator
from utils.text.tokenizer import id_of_each
from utils.visualize.explain import _candidates, listed_guesses

_KINDS: dict[str, Kind] = {"encoder": "encoder", "self": "decoder", "cross": "cross"}


@contextmanager
def silenced(model: Transformer, heads: dict[str, list[list[int]]]) -> Iterator[None]:
    """Within the block, the heads whose factor is 0 say nothing."""
    with ExitStack() as stack:
        for name, layers in heads.items():
            for attention, factors in zip(attentions(model)[_KINDS[name]], layers, strict=True):
                for head, factor in enumerate(factors):
                    if not factor:
                        stack.enter_context(silenced_head(attention, head))
        yield


@contextmanager
def forbidding(forbidden: list[list[int]]) -> Iterator[None]:
    """Within the block, a beam search never says some tokens at some positions; others become no likelier."""
    positions = count()

    def allowed(logits: Tensor) -> Tensor:
        log_probs, t = next_log_probs(logits), next(positions)
        log_probs[:, [token for position, token in forbidden if position == t]] = NEVER
        return log_probs

    with patch("utils.search.beam.next_log_probs", allowed):
        yield


@dataclass
class _Hiding:
    """A network that takes a hidden token in the middle of a source for no end of it, as `start` does."""

    model: Transformer

    def start(self, src: Tensor) -> TransformerState:
        state = self.model.before(self.model.encode(src), padding_mask(src, PAD_ID))
        return state._replace(past=tuple(KeyValue(kv.key[:, :, :0], kv.value[:, :, :0]) for kv in state.source))

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        return self.model.step(tokens, state)


@torch.inference_mode()
def explained(run: Run, translator: Translator, body: dict[str, Any]) -> dict[str, Any]:
    """Answer a question of the page."""
    begin, model, (src, tgt) = time.perf_counter(), run.transformer, run.tokenizers
    config = translator.search
    config = replace(
        config,
        beam_size=body.get("beam", config.beam_size),
        length_penalty=body.get("length_penalty", config.length_penalty),
    )
    (ids,) = src.encode([body["text"]])
    seen = [PAD_ID if place in body.get("hidden", ()) else token for place, token in enumerate(ids)]
    steps: list[dict[str, Any]] = []
    number = id_of_each(tgt)

    request = replace(translator, search=config).request(seen, body.get("prefix", ()))
    with silenced(model, body.get("heads", {})):
        with forbidding(body.get("forbidden", [])):
            best, *_ = beam_search(
                _Hiding(model), [request], config, n_best=1, on_step=lambda step: steps.append(_candidates(step, tgt))
            )[0]
        weights, guesses = attention_weights(model, seen, best.ids), listed_guesses(model, seen, best.ids, tgt)
    for step in steps:
        for name in ("kept", "dropped"):
            step[name] = [found and (*found, number[found[1]]) for found in step[name]]
    return {
        "source": {"tokens": [*src.tokens(ids), EOS], "ids": [*ids, EOS_ID], "lang": run.config.data.languages[0]},
        "target": {
            "tokens": [BOS, *tgt.tokens(best.ids)],
            "ids": [BOS_ID, *best.ids],
            "lang": run.config.data.languages[1],
        },
        "said": {"tokens": [*tgt.tokens(best.ids), EOS], "lang": run.config.data.languages[1]},
        "text": tgt.decode([best.ids])[0],
        "score": best.score,
        "beam": {
            "steps": steps,
            "penalties": [config.penalty(length) for length in range(1, len(steps) + 1)],
            "alpha": config.length_penalty,
        },
        "attention": {kind: [layer.tolist() for layer in layers] for kind, layers in weights.items()},
        "guesses": [[[(*guess, number[guess[0]]) for guess in at] for at in layer] for layer in guesses],
        "seconds": time.perf_counter() - begin,
    }
