"""Translation with an exported run: texts are split, batched and joined as usual, the search is CTranslate2's."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from utils.device import Precision
from utils.export.ctranslate2_model import CTranslate2Model
from utils.export.translator_settings import TranslatorSettings
from utils.search.hypothesis import Bounds, Hypothesis, SearchConfig
from utils.search.inspection import Inspector
from utils.search.translator import Translation, Translator
from utils.text.pair import TokenizerPair, load_tokenizers


class CTranslate2Translator(Translator):
    """Translates with an exported model, without sampling or attention.

    Args:
        exported: the model to search.
        tokenizers: the tokenizers it was trained with.
        settings: settings of the exported translator.
        search: beam, penalties and limits; None: those of `settings`.
        device: device of the model.
        minimum_bayes_risk: rank candidates by how much they agree with the rest, not by score.
    """

    tokens_per_batch = 8192

    def __init__(
        self,
        exported: CTranslate2Model,
        tokenizers: TokenizerPair,
        settings: TranslatorSettings,
        search: SearchConfig | None,
        device: torch.device,
        minimum_bayes_risk: bool = False,
    ) -> None:
        super().__init__(
            exported,
            tokenizers,
            settings.tgt_lang,
            search or settings.search,
            settings.window,
            settings.longest,
            device,
            minimum_bayes_risk=minimum_bayes_risk,
        )
        self.exported = exported

    def _search(
        self,
        sources: Sequence[Sequence[int]],
        bounds: Sequence[Bounds],
        starts: Sequence[Sequence[int]] | None,
        n_best: int | None,  # noqa: ARG002 (the signature is `Translator`'s)
        numbers: Sequence[int],  # noqa: ARG002
    ) -> list[list[Hypothesis]]:
        """Search a batch; return all hypotheses that the beam has found, without sampling."""
        return self.exported.search(sources, bounds, self.search, starts)


class CTranslate2Inspector(Inspector):
    """Queries an exported model.

    Args:
        translator: the exported translator.
    """

    def __init__(self, translator: CTranslate2Translator) -> None:
        super().__init__(translator, ())
        self._exported = translator.exported

    def alignments(self, texts: Sequence[str], translations: Sequence[Translation]) -> NoReturn:  # noqa: ARG002
        """Refuse: CTranslate2 does not give attention weights.

        Raises:
            ValueError: always.
        """
        raise ValueError("CTranslate2 gives no attention weights: use the run itself for an alignment")

    def _log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        return self._exported.log_probs(sources, targets)


def load_exported(
    folder: Path,
    device: torch.device,
    search: SearchConfig | None = None,
    precision: Precision | None = None,
    minimum_bayes_risk: bool = False,
) -> CTranslate2Translator:
    """Read what `export_ctranslate2` wrote.

    Args:
        folder: folder of the exported translator.
        device: device to compute on.
        search: search settings; None: those of the exported run.
        precision: precision of matrix products; None and auto: as exported.
        minimum_bayes_risk: rank candidates by how much they agree with the rest.

    Raises:
        ValueError: the folder is not an exported translator or cannot be read, or does not support the options.
    """
    settings, tokenizers = TranslatorSettings.load(folder), load_tokenizers(folder)
    exported = CTranslate2Model(folder, tokenizers, device, precision)
    return CTranslate2Translator(exported, tokenizers, settings, search, device, minimum_bayes_risk)
