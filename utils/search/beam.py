"""The W best beginnings, one token longer at each step (Sutskever et al. 2014), for many sentences at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from const.token import EOS_ID
from utils.search.hypothesis import (
    Hypothesis,
    Searchable,
    SearchConfig,
    StateT,
    bos_rows,
    length_penalty,
    next_log_probs,
)


@dataclass
class _Sentence:
    """A source under way."""

    limit: int
    beams: list[list[int]] = field(default_factory=lambda: [[]])
    finished: list[Hypothesis] = field(default_factory=list)


@torch.inference_mode()
def beam_search(
    model: Searchable[StateT], src: Int[Tensor, "N S"], limits: Sequence[int], config: SearchConfig
) -> list[list[Hypothesis]]:
    """Translate N sources.

    A sentence is done when no beginning can still overtake its W best finished translations: a log-probability
    only falls, so a beginning never scores above its present one divided by the largest penalty that it may yet meet.

    Args:
        model: in eval mode.
        src: source ids, </s> behind each, then padding.
        limits: most tokens of each translation, </s> included.
        config: width and length penalty.

    Returns:
        For each source, in order, up to W hypotheses, best first.
    """
    width, alpha = config.beam_size, config.length_penalty
    sentences = [_Sentence(limit) for limit in limits]
    alive = sentences
    state = model.start(src)
    tokens = bos_rows(len(alive), src.device)
    scores = torch.zeros(len(alive), 1, device=src.device)
    length = 0
    while True:
        length += 1
        penalty = length_penalty(length, alpha)
        logits, state = model.step(tokens, state)
        total = scores[:, :, None] + next_log_probs(logits).view(len(alive), -1, logits.size(-1))
        n_rows, n_tokens = total.shape[1:]
        # 2W, because at most W of them end here (one a row) and W must go on
        best, places = total.flatten(1).topk(min(2 * width, n_rows * n_tokens), dim=-1)
        kept_sentences, kept_rows, kept_tokens, kept_scores = [], [], [], []
        for n, (sentence, candidates) in enumerate(
            zip(alive, zip(best.tolist(), places.tolist(), strict=True), strict=True)
        ):
            beams: list[list[int]] = []
            rows, next_tokens, next_scores = [], [], []
            for score, place in zip(*candidates, strict=True):
                row, token = divmod(place, n_tokens)
                if score == float("-inf") or len(beams) == width:
                    break
                if token == EOS_ID:
                    sentence.finished.append(Hypothesis(sentence.beams[row], score / penalty))
                else:
                    beams.append([*sentence.beams[row], token])
                    rows.append(n * n_rows + row)
                    next_tokens.append(token)
                    next_scores.append(score)
            sentence.finished = sorted(sentence.finished, key=lambda found: -found.score)[:width]
            if length == sentence.limit or not beams:
                if not sentence.finished:  # nothing ended in time: better cut than empty
                    sentence.finished = [
                        Hypothesis(beam, score / penalty) for beam, score in zip(beams, next_scores, strict=True)
                    ]
                continue
            hope = next_scores[0] / max(length_penalty(n, alpha) for n in (length + 1, sentence.limit))
            if len(sentence.finished) == width and sentence.finished[-1].score >= hope:
                continue
            missing = width - len(beams)  # a vocabulary smaller than the beam: fill up with rows that cannot win
            sentence.beams = beams + beams[:1] * missing
            kept_sentences.append(sentence)
            kept_rows.append(rows + rows[:1] * missing)
            kept_tokens.append(next_tokens + next_tokens[:1] * missing)
            kept_scores.append(next_scores + [float("-inf")] * missing)
        if not kept_sentences:
            return [sentence.finished for sentence in sentences]
        alive = kept_sentences
        state = state.select(torch.tensor(kept_rows, device=src.device))
        tokens = torch.tensor(kept_tokens, device=src.device).flatten()
        scores = torch.tensor(kept_scores, device=src.device)
