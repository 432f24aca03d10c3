"""The file of the page; its behaviour is tested in a browser."""

import base64
import hashlib
import re

from utils.serve.api import page

HTML = page().html
(SCRIPT,) = re.findall(r"<script>(.*?)</script>", HTML, re.S)
(STYLE,) = re.findall(r"<style>(.*?)</style>", HTML, re.S)


def test_it_asks_nobody_else() -> None:
    assert not re.findall(r"(?:src|href)=\"(?!data:|docs|metrics)[^\"]*", HTML)
    addresses = set(re.findall(r"https?://[\w./]+", HTML))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a format
    assert "@import" not in STYLE
    assert "url(" not in STYLE


def test_a_browser_is_told_to_run_this_and_nothing_else() -> None:
    policy = dict(part.split(" ", 1) for part in page().headers["Content-Security-Policy"].split("; "))
    for name, body in (("script-src", SCRIPT), ("style-src", STYLE)):
        assert policy[name] == f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)


def test_no_text_becomes_markup() -> None:
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", SCRIPT)
    assert not re.findall(r"\son\w+=\"|\sstyle=\"", HTML)  # the policy would not run them


def test_every_word_is_there_in_both_languages() -> None:
    blocks = dict(re.findall(r"^  (en|ja): \{\n(.*?)^  \},$", SCRIPT, re.S | re.M))
    known = {speech: set(re.findall(r"(?:^|, )\s*(\w+): (?=[\"`(s])", block, re.M)) for speech, block in blocks.items()}
    used = set(re.findall(r"words\(\)\.(\w+)", SCRIPT)) | set(re.findall(r"data-(?:word|label)=\"(\w+)\"", HTML))
    assert len(used) > 20
    assert known["en"] == known["ja"] == used


def test_every_element_that_the_script_names_is_there() -> None:
    named = set(re.findall(r"\$\(\"([\w-]+)\"\)", SCRIPT))
    there = re.findall(r"\bid=\"([\w-]+)\"", HTML)
    assert named <= set(there)
    assert len(there) == len(set(there))
