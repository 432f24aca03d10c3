"""Refusing sizes that make no network, and no batch."""


def require_at_least(config: object, **fewest: int) -> None:
    """Refuse settings that are too small.

    Args:
        config: has them.
        fewest: the smallest value of each.

    Raises:
        ValueError: names the first that is smaller.
    """
    for name, least in fewest.items():
        if getattr(config, name) < least:
            raise ValueError(f"{name}={getattr(config, name)}: give at least {least}")
