"""Torch's own modules as oracles: their weights under our names."""

from torch import Tensor, nn


def attention_state(theirs: nn.MultiheadAttention) -> dict[str, Tensor]:
    """What a MultiHeadAttention of ours loads to be this one."""
    return _split_projections(theirs.state_dict())


def block_state(theirs: nn.Module, *around: str) -> dict[str, Tensor]:
    """What a block of ours loads to be this layer of torch's, whose norms stand around these, in their order."""
    names = {
        "self_attn": "self_attention",
        "multihead_attn": "cross_attention",
        "linear1": "feed_forward.widen",
        "linear2": "feed_forward.narrow",
    } | {f"norm{number}": f"around_{name}.norm" for number, name in enumerate(around, start=1)}
    state = {}
    for name, tensor in theirs.state_dict().items():
        part, _, rest = name.partition(".")
        state[f"{names[part]}.{rest}"] = tensor
    return _split_projections(state)


def _split_projections(state: dict[str, Tensor]) -> dict[str, Tensor]:
    ours = {}
    for name, tensor in state.items():
        if "in_proj_" in name:
            third = len(tensor) // 3
            ours[name.replace("in_proj_", "query.")], ours[name.replace("in_proj_", "key_value.")] = tensor.split(
                [third, 2 * third]
            )
        else:
            ours[name.replace("out_proj", "output")] = tensor
    return ours
