"""What the API says of itself, as a page that asks no network for scripts, as FastAPI's own do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def documentation(schema: Mapping[str, Any]) -> str:
    """A page of an OpenAPI schema: each endpoint with the fields that it takes."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("documentation.html").render(schema=schema)
