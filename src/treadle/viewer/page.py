"""The page with a report in it, as one file."""

import gzip
from base64 import b64encode
from html import escape
from importlib.resources import files
from pathlib import Path

import msgspec

from treadle.export.report_blocks import Report
from treadle.export.whole import write_whole

_PLACE = '<script type="application/octet-stream" id="data"></script>'
_TITLE = "<title>Treadle</title>"


def write_page(report: Report, out: Path) -> Path:
    """Write a report as one HTML file, and return its path. Raises: `ConfigError` if no file can be made."""
    write_whole([encode_page(report)], out)
    return out


def encode_page(report: Report) -> bytes:
    """Return the page with the report in it.

    The report is JSON, compressed and in base64, so that no text in the report can end the HTML element around
    it.
    """
    page = files("treadle.viewer").joinpath("page.html").read_text("utf-8")
    data = b64encode(gzip.compress(msgspec.json.encode(report), 6, mtime=0)).decode()
    page = page.replace(_TITLE, f"<title>{escape(report.title)}</title>", 1)
    return page.replace(_PLACE, _PLACE.replace("><", f">{data}<", 1), 1).encode().rstrip()
