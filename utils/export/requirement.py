"""Optional libraries that only exports need."""


def require_ctranslate2() -> None:
    """Check that CTranslate2 can be imported; call this before importing any module that needs it.

    Raises:
        ValueError: it is not installed, or its shared library does not load.
    """
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        raise ValueError(f"ctranslate2 cannot be loaded ({error}): `poetry install --with export`") from error
