"""What a classifier minimises: the cross-entropy of the right class."""

import torch
import torch.nn.functional as F

from models.bert import BertClassifier
from utils.dataset.labelled import LabelledBatch
from utils.training.objective import Loss


class ClassificationObjective:
    """Cross-entropy of the class of each text; every text counts the same, however long it is."""

    def __call__(self, net: BertClassifier, batch: LabelledBatch, _memory: None = None) -> Loss:
        """Return the summed loss in nats and the number of texts."""
        nats = F.cross_entropy(net(batch.ids).float(), batch.label, reduction="sum")
        return Loss(nats, torch.tensor(len(batch.label), device=nats.device))
