"""The log-probability that a language model assigns to the next sentence of a document, given the sentences before."""

from collections.abc import Sequence

import torch

from const.token import BOS_ID, EOS_ID
from models.transformer_xl import TransformerXL
from utils.dataset.batch import padded


class DocumentScorer:
    """Reads a document, `<s> s₁ </s> s₂ </s> ...`, of which each sentence is chosen among candidates.

    Args:
        model: a language model in eval mode.
        memory_length: positions that are remembered; 0: each sentence is a document of its own; None: as many as in
            training.
    """

    def __init__(self, model: TransformerXL, memory_length: int | None = None) -> None:
        self.model = model
        self.memory_length = model.config.memory_length if memory_length is None else memory_length
        self.device = next(model.parameters()).device
        self.new_document()

    def new_document(self) -> None:
        """Forget everything and begin a document."""
        self._memory = self.model.start(1, self.device)
        self._unread = BOS_ID  # the last token of what was chosen: the input of what follows begins with it
        self._read, self._ends = self._memory, list[int]()

    @torch.inference_mode()
    def log_probs(self, candidates: Sequence[Sequence[int]]) -> list[float]:
        """Return the log-probability of each candidate as the next sentence, </s> included.

        Args:
            candidates: token ids, without <s> and </s>.
        """
        self._ends = []
        if not candidates:
            return []
        target = padded(candidates).to(self.device)
        ids = torch.cat([torch.full_like(target[:, :1], self._unread), target[:, :-1]], dim=1)
        known, (n, t_len) = self._memory.document.size(1), ids.shape
        memory = self._memory.select(torch.zeros(n, dtype=torch.long, device=self.device))
        hidden, self._read = self.model(ids, memory, memory_length=known + t_len)
        lengths = [len(candidate) + 1 for candidate in candidates]
        self._ends = [known + length for length in lengths]
        real = torch.arange(t_len, device=self.device) < torch.tensor(lengths, device=self.device)[:, None]
        log_probs = self.model.project(hidden[real]).float().log_softmax(-1).gather(-1, target[real][:, None])[:, 0]
        return [row.double().sum().item() for row in log_probs.split(lengths)]

    def choose(self, i: int) -> None:
        """Continue after candidate i of the last call of `log_probs`; the rest of the candidates are forgotten."""
        end = self._ends[i]  # padding follows
        self._memory = self._read.select(torch.tensor([i], device=self.device)).span(
            max(0, end - self.memory_length), end
        )
        # without memory, each sentence begins as a document does: in training, no text ever began with </s>
        self._unread, self._ends = EOS_ID if self.memory_length else BOS_ID, []
