"""Single-file web pages from templates."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


def page_template(file: Path) -> Template:
    """Load a template that escapes the values it is given, and raises an error if one is missing."""
    environment = Environment(
        loader=FileSystemLoader(file.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(file.name)
