"""Documents: their formats, what cannot be read, and which are whole and which in pieces."""

import re
from pathlib import Path

import pytest

from treadle.core.errors import ConfigError
from treadle.journal import open_journal
from treadle.knowledge.documents import load_documents, read_document
from treadle.knowledge.memory import Recaller, Store, open_memory

MARKDOWN = """Before.

# Setup
Install it.
```sh
# not a heading
```
## Linux
Use apt.
# Use
Run it.
"""
HTML = """<!doctype html><html><head><title>The  Guide</title><style>p {x: y}</style></head>
<body><script>alert("no")</script><h1>Setup</h1><p>Install&nbsp;it &amp; go.</p><ul><li>one<li>two</ul>
<h2>Lin<b>ux</b></h2><table><tr><td>a<td>b</tr></table><noscript>hidden</noscript></body>"""


def make_pdf(*pages: str) -> bytes:
    """Return a PDF with a line of text on each page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 50 700 Td ({text}) Tj ET"
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents {5 + 2 * number} 0 R >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    body, offsets = b"%PDF-1.4\n", []
    for number, item in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{item}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    tail = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return body + f"{tail}startxref\n{len(body)}\n%%EOF\n".encode()


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_markdown_is_read_by_headings(tmp_path: Path) -> None:
    document = read_document(put(tmp_path, "a.md", MARKDOWN))
    assert [section.place for section in document.sections] == ["", "Setup", "Setup > Linux", "Use"]
    assert "# not a heading" in document.sections[1].text


def test_html_is_read_without_tags_and_scripts(tmp_path: Path) -> None:
    document = read_document(put(tmp_path, "a.html", HTML))
    assert document.title == "The Guide"
    assert [section.place for section in document.sections] == ["Setup", "Setup > Linux"]
    assert document.sections[0].text.split("\n")[0] == "Setup"
    assert "Install it & go." in document.text
    assert not re.search(r"alert|hidden|x: y|[<>]", document.text)


@pytest.mark.parametrize(
    ("page", "sections"),
    [
        ("<h1>Title<p>It is 42.</p>", [("Title", "Title\n\nIt is 42.")]),
        ("<h1>Title</h2><p>It is 42.", [("Title", "Title\n\nIt is 42.")]),
        ("<p>It is 42.</p><h1>The end", [("", "It is 42."), ("The end", "The end")]),
        ("<h1><div>One<br>two</div></h1>x", [("One two", "One two\n\nx")]),
        ("<head><title>a.html</head><body>It is 42.", [("", "It is 42.")]),
        ("<svg><path d='M0'><p>It is 42.</p>", [("", "It is 42.")]),
        ("<p>It is</p><![x[y]]><p>42.", [("", "It is\n\n42.")]),
        ("<p>Run it:<pre>if x:\n\n    y  = 1\n</pre>", [("", "Run it:\nif x:\n\n    y  = 1")]),
        ("<p>It is &lt;42" + "<a " * 100_000, [("", "It is <42")]),
    ],
)
def test_a_broken_page_loses_no_text(tmp_path: Path, page: str, sections: list[tuple[str, str]]) -> None:
    document = read_document(put(tmp_path, "a.html", page))
    found = [(section.place, section.text.partition("<a")[0]) for section in document.sections]
    assert (document.title, found) == ("a.html", sections)


@pytest.mark.parametrize(
    ("charset", "encoding", "text"),
    [
        ("Shift_JIS", "shift_jis", "日本語"),
        ("windows-1251", "cp1251", "Привет"),
        ("iso-8859-1", "cp1252", "“quoted”"),
        ("iso-8859-99", "cp1252", "å"),
        ("iso-8859-1", "utf-8", "日本語"),
        ("", "cp1252", "å"),
    ],
)
def test_a_page_is_read_in_the_encoding_that_it_names(
    tmp_path: Path, charset: str, encoding: str, text: str
) -> None:
    page = f"<meta charset='{charset}'><p>{text}</p>".encode(encoding)
    assert read_document(put(tmp_path, "a.html", page)).text == text


def test_code_within_a_line_of_markdown_begins_no_block(tmp_path: Path) -> None:
    text = "# A\n```x``` is code.\n# B\n```md\n```x\n# no heading\n```\n# C\n"
    document = read_document(put(tmp_path, "a.md", text))
    assert [section.place for section in document.sections] == ["A", "B", "C"]


def test_pdf_is_read_by_pages(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    document = read_document(put(tmp_path, "a.pdf", make_pdf("The first page", "The second page")))
    assert [(section.place, section.text) for section in document.sections] == [
        ("page 1", "The first page"),
        ("page 2", "The second page"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("\ufeffå".encode(), "å"),
        ("å\r\nb".encode("utf-16"), "å\nb"),
        (b"\xe5 \x93quoted\x94", "å “quoted”"),
    ],
)
def test_texts_of_several_encodings_are_read(tmp_path: Path, content: bytes, text: str) -> None:
    assert read_document(put(tmp_path, "a.txt", content)).text == text


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.txt", b"\x89PNG\0\0", "is not text, Markdown, HTML or PDF"),
        ("a.txt", b" \n", "has no text"),
        ("a.html", b"<script>x</script>", "has no text"),
        ("a.pdf", b"%PDF-1.4\nbroken", "cannot be read"),
        ("none.txt", None, "No such file"),
        (".", None, "Is a directory"),
    ],
)
def test_what_cannot_be_read_is_a_clear_error(
    tmp_path: Path, name: str, content: bytes | None, error: str
) -> None:
    if content is not None:
        put(tmp_path, name, content)
    with pytest.raises(ConfigError, match=error):
        read_document(tmp_path / name)


def test_an_encrypted_pdf_is_a_clear_error(tmp_path: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    writer = pypdf.PdfWriter(clone_from=put(tmp_path, "a.pdf", make_pdf("secret")))
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(tmp_path / "b.pdf")
    with pytest.raises(ConfigError, match="is encrypted"):
        read_document(tmp_path / "b.pdf")


async def test_small_documents_are_whole_and_large_ones_in_pieces(tmp_path: Path) -> None:
    small = put(tmp_path, "small.md", "# Rules\nBe kind. </document-0000000000>")
    chapters = "\n".join(
        f"# Chapter {number}\nThe {word} is kept here. " + "Filler text. " * 150
        for number, word in enumerate(("kettle", "anvil", "sextant"))
    )
    large = put(tmp_path, "large.md", chapters)
    with open_journal(tmp_path / "runs.db") as journal:
        memory = open_memory(journal)
        loaded = load_documents([large, small], memory, max_tokens=200)
        assert (loaded.whole, loaded.in_pieces) == ((str(small),), (str(large),))
        assert loaded.text.count("<document-") == 2  # the small one, and the list of the others
        assert "- large.md: 5,962 characters" in loaded.text
        count = len(memory.store.entries([Store.DOCUMENTS]))
        assert count >= 6
        load_documents([large], memory, max_tokens=200)
        assert len(memory.store.entries([Store.DOCUMENTS])) == count
        recalled = await Recaller(memory).recall("where is the sextant?", turn_key="r/1", now=1e9)
        assert recalled is not None
        assert 'title="large.md" place="Chapter 2 (1 of 2)"' in recalled.text
        put(tmp_path, "large.md", chapters.replace("sextant", "compass"))
        load_documents([large], memory, max_tokens=200)
        assert await Recaller(memory).recall("where is the sextant?", turn_key="r/2", now=1e9) is None
        assert await Recaller(memory).recall("where is the compass?", turn_key="r/3", now=1e9) is not None
    with pytest.raises(ConfigError, match="only stored in pieces where there is a memory"):
        load_documents([large], None, max_tokens=200)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(ConfigError, match=r"pip install 'treadle\[pdf\]'"):
        read_document(put(tmp_path, "a.pdf", make_pdf("x")))
