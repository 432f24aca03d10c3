"""The web page: a single file that contacts only the server it came from."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

_FILE = Path(__file__).with_name("page.html")


class Page(NamedTuple):
    """The page as sent to a browser."""

    html: str
    headers: dict[str, str]


@cache
def page() -> Page:
    """Return the page, with a policy that lets the browser run only its own script and style."""
    html = _FILE.read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hashes("script", html),
        "style-src": _hashes("style", html),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # an old page might not fit an updated server
    }
    return Page(html, headers)


def _hashes(tag: str, html: str) -> str:
    bodies = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.S)
    digests = [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies]
    return " ".join(f"'sha256-{digest}'" for digest in digests)
