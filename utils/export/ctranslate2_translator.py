"""An exported translator at work: texts are cut, batched and joined as with our own search, CTranslate2 searches."""

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
    """Translates with an exported model; it can neither draw nor ask where the model looks.

    Args:
        exported: what is searched.
        tokenizers: those it was trained with.
        settings: of the exported translator.
        search: beam, penalties and limits; those of the settings when not given.
        device: where the model is.
        minimum_bayes_risk: order candidates by how much they agree with the others, not by score.
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
        n_best: int | None,  # noqa: ARG002 (as the others take it)
        numbers: Sequence[int],  # noqa: ARG002
    ) -> list[list[Hypothesis]]:
        """As for our own search, and always as many hypotheses as the beam has found; nothing is drawn.

        Raises:
            ValueError: a coverage penalty.
        """
        if self.search.coverage_penalty and self.search.beam_size > 1:
            raise ValueError(
                f"coverage_penalty={self.search.coverage_penalty} asks where the model looks, which CTranslate2 does "
                "not tell as our search does: give 0, or use the run itself"
            )
        return self.exported.search(sources, bounds, self.search, starts)


class CTranslate2Inspector(Inspector):
    """Asks an exported model.

    Args:
        translator: what translates.
    """

    def __init__(self, translator: CTranslate2Translator) -> None:
        super().__init__(translator, ())
        self._exported = translator.exported

    def alignments(self, texts: Sequence[str], translations: Sequence[Translation]) -> NoReturn:  # noqa: ARG002
        """Nobody knows.

        Raises:
            ValueError: always.
        """
        raise ValueError("CTranslate2 does not tell where the model looks: ask the run itself for an alignment")

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
        folder: of the exported translator.
        device: where to compute.
        search: the settings; those of the run that was exported when not given.
        precision: of the matrix products; None and auto: as exported.
        minimum_bayes_risk: order candidates by how much they agree.

    Raises:
        ValueError: it is no exported translator, or one that cannot be read or do what is asked.
    """
    settings, tokenizers = TranslatorSettings.load(folder), load_tokenizers(folder)
    exported = CTranslate2Model(folder, tokenizers, device, precision)
    return CTranslate2Translator(exported, tokenizers, settings, search, device, minimum_bayes_risk)
