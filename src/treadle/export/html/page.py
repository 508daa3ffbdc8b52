"""The frame of a page: head, navigation, sections, data and script in one file that loads nothing."""

from collections.abc import Mapping
from html import escape
from importlib.resources import files

import msgspec
from msgspec import Struct

from treadle.core.types import Json

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The page's own rule for the browser: nothing may be loaded."""


class Page(Struct, frozen=True, kw_only=True):
    """The parts of a page. All of them but `title` and `footer` are HTML whose texts are escaped already."""

    title: str
    """The title of the browser's window, as text."""
    head: str
    sections: Mapping[str, str]
    """The sections by anchor. Empty ones are left out."""
    titles: Mapping[str, str]
    """The names of the sections in the navigation, by anchor."""
    footer: str
    """The line at the end, as text."""
    package: str
    """The package that has the page's own `page.css` and `page.js`."""
    data: Json = None
    """What the script reads from the element `rows`, as JSON."""


def write_page(page: Page) -> str:
    """Return the HTML of a page."""
    own = files(page.package)
    shared = files("treadle.export.html").joinpath("page.css").read_text("utf-8")
    style = shared + own.joinpath("page.css").read_text("utf-8")
    script = own.joinpath("page.js").read_text("utf-8")
    shown = [key for key, content in page.sections.items() if content]
    links = "".join(f'<a href="#{key}">{page.titles[key]}</a>' for key in shown)
    # In a script element, only "<" can end the text.
    data = msgspec.json.encode(page.data).decode().replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(page.title)}</title><style>{style}</style></head><body>"
        f"<header>{page.head}<nav>{links}</nav></header><main>{''.join(page.sections.values())}</main>"
        f"<footer>{escape(page.footer)}</footer>"
        f'<script type="application/json" id="rows">{data}</script><script>{script}</script></body></html>'
    )
