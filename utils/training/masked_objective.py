"""What a BERT minimises (Devlin et al. 2019, 3.1): the loss of masked tokens and of next-sentence prediction."""

import torch.nn.functional as F
from torch import Tensor

from const.token import PAD_ID
from models.bert import BertForPreTraining
from utils.dataset.masked import MaskedBatch
from utils.training.objective import Loss, token_loss


class MaskedLanguageObjective:
    """Cross-entropy of masked tokens and, in training mode, of next sentences; in eval mode, of tokens alone.

    An example's next-sentence loss is weighted by its number of masked tokens, so that the sum does not depend on how
    examples were batched.
    """

    def __call__(self, net: BertForPreTraining, batch: MaskedBatch, _memory: None = None) -> Loss:
        """Return the summed loss in nats and the number of masked tokens."""
        x, target = net.bert(batch.ids, batch.segments), batch.target
        hidden = target != PAD_ID
        read = x
        if target.device.type == "cpu":
            read, target = x[hidden][None], target[hidden][None]
        loss = token_loss(net.head.hidden(read), net.head.output, target)
        if not net.training or not batch.follows.numel():
            return loss
        follows: Tensor = net.next_sentence(net.pooler(x))
        apart = F.cross_entropy(follows.float(), batch.follows, reduction="none")
        return loss._replace(nats=loss.nats + (apart * hidden.sum(1)).sum())
