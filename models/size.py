"""Checks for sizes with which no network or batch can be made."""


def require_at_least(config: object, **fewest: int) -> None:
    """Refuse settings that are too small.

    Args:
        config: the object that holds the settings.
        fewest: the smallest allowed value of each setting.

    Raises:
        ValueError: a setting is too small; the first one is named.
    """
    for name, least in fewest.items():
        if getattr(config, name) < least:
            raise ValueError(f"{name}={getattr(config, name)}: give at least {least}")
