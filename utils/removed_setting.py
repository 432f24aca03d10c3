"""Settings that earlier versions saved with every run, and that are gone: what was saved is read without them."""

from collections.abc import Mapping
from typing import Any

_REMOVED = {"search": {"coverage_penalty"}, "optimizer": {"noam_factor"}}  # group -> names


def without_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that were removed; schedule=noam becomes inverse_sqrt with the same rates."""
    found = {
        group: {name: value for name, value in below.items() if name not in _REMOVED[group]}
        if group in _REMOVED and isinstance(below, Mapping)
        else below
        for group, below in settings.items()
    }
    optimizer, model = settings.get("optimizer"), settings.get("model")
    if isinstance(optimizer, Mapping) and optimizer.get("schedule") == "noam" and isinstance(model, Mapping):
        warmup, width = max(1, int(optimizer.get("warmup_steps", 4000))), int(model.get("d_model", 512))
        peak_lr = float(optimizer.get("noam_factor", 1.0)) * (width * warmup) ** -0.5
        as_written = type(optimizer.get("peak_lr", peak_lr))  # a number, or text in which nothing is read yet
        found["optimizer"] = found["optimizer"] | {"schedule": "inverse_sqrt", "peak_lr": as_written(peak_lr)}
    return found
