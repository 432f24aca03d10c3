"""Random attention maps of a translator, and hostile text."""

import torch

from const.token import EOS
from utils.search.inspection import AttentionMap
from utils.visualize.attention import Pair

HOSTILE = '</script><script>document.title="taken"</script>&lt;'
SRC, TGT = ["▁", "京都", "の", "寺", EOS], ["▁Kyoto", "'", "s", "▁temple", "▁temples", EOS]
PAIR = Pair("京都の寺", "Kyoto's temple temples", "ja", "en", "run-a")
HOSTILE_PAIR = Pair(HOSTILE, HOSTILE, "ja", "en", HOSTILE)


def recorded(src: list[str] = SRC, tgt: list[str] = TGT) -> AttentionMap:
    """Three encoder layers and two decoder layers, with two heads each."""
    draw = torch.Generator().manual_seed(3)

    def weights(n_layers: int, *size: int) -> list[torch.Tensor]:
        return [torch.rand(2, *size, generator=draw).mul(4).softmax(-1) for _ in range(n_layers)]

    s, t = len(src), len(tgt)
    decoder = [layer.tril() / layer.tril().sum(-1, keepdim=True) for layer in weights(2, t, t)]
    return AttentionMap(src, tgt, {"encoder": weights(3, s, s), "decoder": decoder, "cross": weights(2, t, s)})
