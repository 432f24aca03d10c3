"""Tables of positional encodings, and the similarity of any two positions."""

from collections.abc import Mapping
from pathlib import Path

from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from torch import Tensor
from torch.nn import functional as F

from utils.training.weight_store import read_weights
from utils.visualize.sheet import sheet

_SUFFIX = "positions.table.weight"  # of the name of a learned table, in any network
_MOST = 64  # components shown in a heat map
_COLORS = colormaps["RdBu_r"].resampled(25)  # few colours, to keep the file small even for a table without any pattern


def learned_table(weights: Path) -> Float[Tensor, "L D"]:
    """Return the first learned table of positions in a run's weights.

    Raises:
        ValueError: the file cannot be read, or its network has no learned positions.
    """
    tensors = read_weights(weights)
    name = next((name for name in sorted(tensors) if name.endswith(_SUFFIX)), None)
    if name is None:
        raise ValueError(f"{weights} has no learned positions: train with --model.positions learned")
    return tensors[name].float()


def draw_positions(tables: Mapping[str, Float[Tensor, "L D"]], picture: Path) -> None:
    """Draw each table as a heat map, and the cosine similarity of any two of its rows.

    Args:
        tables: tables by name.
        picture: file to write.
    """
    with sheet(picture, (10, 3.7 * len(tables)), rows=len(tables), columns=2, widths=(1.3, 1)) as panels:
        for row, (name, table) in enumerate(tables.items()):
            values, alike = panels[2 * row : 2 * row + 2]
            shown = table[:, :_MOST]
            _heat_map(values, shown, shown.abs().quantile(0.99).item())
            values.set(title=name, aspect="auto", ylabel="position")
            values.set(xlabel="component" if table.size(1) <= _MOST else f"component, the first {_MOST}")
            unit = F.normalize(table, dim=-1)
            _heat_map(alike, unit @ unit.t(), 1)
            alike.set(title="cosine of two positions", xlabel="position", ylabel="position")


def _heat_map(axes: Axes, values: Float[Tensor, "R C"], reach: float) -> None:
    # nearest: blending neighbours would turn a fast wave grey
    image = axes.imshow(values.numpy(), cmap=_COLORS, vmin=-reach, vmax=reach, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes)
