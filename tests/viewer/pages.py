"""What tests need of pages: whether the viewer is built, what a file holds, and what a person does in a browser."""

import gzip
import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import Chromium
from tests.conftest import IS_FULL

from treadle.viewer.bundle import is_built

EVIL = "</script><script>throw 1</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"
AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
IS_BUILT = is_built()
NEEDS_VIEWER = pytest.mark.skipif(not IS_BUILT, reason="the viewer is not built: `make viewer` builds it")


def read_answers(page: str) -> dict[str, Any]:
    """Return the answers of the API in a page, by their addresses, each of which is a text of JSON."""
    data = re.search(r'id="data">([^<]*)</script>', page)
    assert data is not None
    found = json.loads(gzip.decompress(b64decode(data[1])))["answers"]
    return {address: json.loads(text) for address, text in found.items()}


class Screen:
    """A browser that shows one page."""

    def __init__(self, browser: Chromium) -> None:
        self.browser = browser
        self._is_checked = False

    def open(self, page: Path | str, place: str = "", width: int = 1200, *, is_dark: bool = False) -> None:
        """Open a page, and wait until it is drawn."""
        self.browser.requests.clear()
        self.browser.complaints.clear()
        address = page.as_uri() if isinstance(page, Path) else page
        self.browser.open(f"{address}{place}", width, 900, is_dark=is_dark)
        waits = "/^(Loading|Reading)/.test(document.querySelector('main .status')?.textContent ?? '')"
        self.wait(f"document.querySelector('main') && !{waits}")

    def wait(self, condition: str) -> None:
        """Wait until a condition in the page holds."""
        self.browser.evaluate(
            "new Promise((done, fail) => { const end = Date.now() + 20000; const look = () => { let is; "
            f"try {{ is = {condition}; }} catch (error) {{ is = false; }} if (is) done(1); "
            "else if (Date.now() > end) fail(new Error('it never held')); else setTimeout(look, 15); }; look(); })"
        )

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        return self.browser.evaluate(script)

    def type(self, selector: str, text: str) -> None:
        """Put a text into a field as a person does."""
        self.run(
            f"(box => {{ Object.getOwnPropertyDescriptor(Object.getPrototypeOf(box), 'value').set.call(box, "
            f"{json.dumps(text)}); box.dispatchEvent(new Event('input', {{bubbles: true}})); "
            f"box.dispatchEvent(new Event('change', {{bubbles: true}})); }})(document.querySelector('{selector}'))"
        )

    def press(self, *keys: str) -> None:
        """Press keys one after another."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            self.browser.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.browser.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def check(self, page: Path | None = None) -> None:
        """Check that nothing complained, nothing was loaded, nothing is too wide, and no rule of axe is broken. The
        gate asks axe, which takes longer than the rest, only at the first check of a test."""
        assert not self.browser.complaints, self.browser.complaints
        if page is not None:
            loaded = {url.partition("#")[0] for url in self.browser.requests if not url.startswith("about:")}
            assert loaded == {page.as_uri()}, loaded
        assert self.run("document.querySelectorAll('img').length") == 0
        assert self.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        if AXE.is_file() and (IS_FULL or not self._is_checked):
            self._is_checked = True
            self.run(f"{AXE.read_text()};0")
            found = self.run(_VIOLATIONS)
            assert not found, found


_VIOLATIONS = """
axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations.map(item =>
  item.id + ": " + item.nodes.slice(0, 3).map(node => node.html.slice(0, 120)).join(" | ")))
"""
