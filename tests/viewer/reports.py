"""What tests need of pages: the report in a page, and a report with all types of blocks."""

import gzip
import json
import re
from base64 import b64decode
from typing import Any

import msgspec
from msgspec import Raw

from treadle.export import report_blocks as b

EVIL = "</script><script>throw 1</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"


def read_page(page: str) -> dict[str, Any]:
    """Return the report in a page."""
    data = re.search(r'id="data">([^<]*)</script>', page)
    assert data is not None
    found: dict[str, Any] = json.loads(gzip.decompress(b64decode(data[1])))
    return found


def blocks_of(page: str, name: str) -> list[dict[str, Any]]:
    """Return the blocks of a section of the page."""
    return next(item["blocks"] for item in read_page(page)["sections"] if item["name"] == name)


def make_all(text: str) -> b.Report:
    """Return a report that has each type of block, with `text` in every text."""
    row = {
        "id": text,
        "text": text,
        "chips": [(text, "bad")],
        "keys": {"topic": f"{text} › {text}", "kind": [text]},
        "facts": [text],
        "messages": [
            {"role": text, "text": text, "thought": text},
            {"role": "assistant", "text": "", "calls": [{"name": text, "arguments": text, "result": text}]},
        ],
        "branches": [{"title": text, "ids": [1], "tokens": [text], "logprobs": [-0.5], "mask": "1"}],
        "verdicts": [{"filter": text, "is_passed": False, "reason": text}],
        "cut": text,
    }
    blocks: list[b.ReportBlock] = [
        b.TextBlock(title=text, text=text, is_mono=True),
        b.TableBlock(title=text, heads=[text], rows=[[text]]),
        b.BarBlock(title=text, items=[b.Bar(text, 3, 1, text)], unit=text, part=text),
        *b.make_histogram(text, b.Spread(b.Counter([1, 2, 2, 90])), text),
        b.LineBlock(
            title=text, series=[b.Series(text, [0.0, 1.0])], ends=(text, text), about=text, unit=text
        ),
        b.MatrixBlock(title=text, rows=[text], columns=[text], counts=[[2]], lead=text),
        b.TreemapBlock(title=text, items=[b.Leaf([text, text], 1, 1, [text])] * 2, unit=text, about=text),
        b.TreeBlock(title=text, items=[b.TreeItem(text, 0, 0, 1, 1, [text], [text], text)]),
        b.CellBlock(
            title=text, items=[b.CellLine(1, text, [(text, 0.5), (text, None)], text, text)], about=text
        ),
        b.RowBlock(
            title=text,
            items=[Raw(msgspec.json.encode(row))],
            filters=[("topic", text), ("kind", text)],
            unit=text,
            absent=text,
        ),
    ]
    figures = [b.Figure(text, text, "good", text)]
    section = b.ReportSection("all", text, text, blocks)
    return b.Report(
        title=text, name=text, lead=text, figures=figures, notes=[text], sections=[section], footer=text
    )
