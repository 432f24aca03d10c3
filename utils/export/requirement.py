"""Libraries that only exporting needs, and that may not be there."""


def require_ctranslate2() -> None:
    """To be called before anything is imported that imports CTranslate2.

    Raises:
        ValueError: it is not installed, or its own library does not load.
    """
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        raise ValueError(f"ctranslate2 cannot be loaded ({error}): `poetry install --with export`") from error
