"""Documents for a session: small ones whole in the prompt, large ones in pieces in the memory.

The text of plain text, Markdown, HTML and PDF is read in sections with their place.
"""

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from html import unescape
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.prompts.estimates import guess_tokens
from treadle.core.prompts.fence import fence
from treadle.core.registry import require
from treadle.journal.named_files import explain_unread
from treadle.knowledge.memory.protocol import Author, Draft, Store

if TYPE_CHECKING:
    from treadle.knowledge.memory import Memory

MAX_BYTES = 64 * 1024 * 1024
_HEADING = re.compile(r" {0,3}(#{1,6})\s+(\S.*)")
_CODE_FENCE = re.compile(r"^ {0,3}(`{3,}(?![^`]*+`)|~{3,})")
_PLACE_CHARS = 200
"""How much of a heading is in the place of a section, which each of its pieces has."""
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_CHARSET = re.compile(
    rb"""(?:charset|encoding)\s*+=\s*+["']?+(windows-125[0-8]|iso-8859-(?:[2-9]|1[013-6])|koi8-[ru]|"""
    rb"""euc-(?:jp|kr)|gbk|gb2312|gb18030|big5|shift_jis)\b""",
    re.IGNORECASE,
)
"""How a page names its encoding, if it is a usual one besides UTF-8 and that of Windows for western Europe."""
_CHARSET_BYTES = 4096
_HTML = re.compile(
    rb"\A\s*+(?:<!--.*?-->\s*+)*+<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)


class DocumentSection(Struct, frozen=True):
    """A part of a document."""

    place: str
    """The place of the part, such as `page 3` or `Setup > Linux`; empty if the document has no parts."""
    text: str


class ReadDocument(Struct, frozen=True):
    """The text of a file."""

    source: str
    """The path as it was given."""
    title: str
    sections: tuple[DocumentSection, ...]
    digest: str
    """The SHA-256 of the file."""

    @property
    def text(self) -> str:
        return "\n\n".join(section.text for section in self.sections)


def read_document(path: str | Path) -> ReadDocument:
    """Read a file of text, Markdown, HTML or PDF.

    Raises: `ConfigError` for a file that cannot be read, is too large, is not text, is encrypted or has no text,
    and for a PDF if the extra `pdf` is not installed.
    """
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ConfigError(
                f"the document {str(path)!r} is larger than {MAX_BYTES // 1024**2} MiB; split it"
            )
        content = file.read_bytes()
    except OSError as error:
        raise explain_unread("the document ", path, error) from error
    return parse_document(content, str(path))


def parse_document(content: bytes, path: str) -> ReadDocument:
    """Return the text of a file's content. `path` is its name. Raises: as `read_document`."""
    name = PurePath(path).name
    title, ending = name, PurePath(name).suffix.lower()
    sections: tuple[DocumentSection, ...]
    if content.startswith(b"%PDF-"):
        title, sections = _read_pdf(content, path, name)
    else:
        text = _decode(content, path)
        if is_html(content, name):
            title, sections = _read_html(text, name)
        elif ending in (".md", ".markdown"):
            sections = tuple(_read_markdown(text))
        else:
            sections = (DocumentSection("", text.strip()),)
    sections = tuple(section for section in sections if section.text.strip())
    if not sections:
        raise ConfigError(
            f"the document {path!r} has no text; if it is scanned, give a version with recognised text"
        )
    return ReadDocument(path, title, sections, hashlib.sha256(content).hexdigest())


def is_html(content: bytes, name: str) -> bool:
    """Return whether a file is a page of HTML, by its name or its beginning."""
    return name.lower().endswith((".html", ".htm", ".xhtml")) or _HTML.match(content) is not None


def _decode(content: bytes, path: str) -> str:
    """Return the text of a file. Raises: `ConfigError` for one that is not text."""
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    if encoding is None and b"\0" in content:
        raise ConfigError(
            f"the document {path!r} is not text, Markdown, HTML or PDF; convert it to one of these"
        )
    try:
        text = content.decode(encoding or "utf-8")
    except UnicodeDecodeError:
        found = _CHARSET.search(content[:_CHARSET_BYTES])
        # Else it is a file of an older Windows program.
        text = content.decode(found[1].decode() if found else "cp1252", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _read_markdown(text: str) -> Iterator[DocumentSection]:
    """Yield the sections below each heading; lines in blocks of code are no headings."""
    path: list[tuple[int, str]] = []
    lines: list[str] = []
    code = ""
    for line in text.split("\n"):
        heading = None if code else _HEADING.match(line)
        if mark := _CODE_FENCE.match(line):
            is_end = line.strip().startswith(code) and not line.strip().strip(code[:1])
            code = "" if code and is_end else code or mark[1]
        if heading is None:
            lines.append(line)
            continue
        yield DocumentSection(_join(path), "\n".join(lines).strip())
        level, title = len(heading[1]), heading[2].rstrip().rstrip("#").rstrip()
        path = [item for item in path if item[0] < level] + [(level, title)]
        lines = [line]
    yield DocumentSection(_join(path), "\n".join(lines).strip())


def _join(path: list[tuple[int, str]]) -> str:
    return " > ".join(title[:_PLACE_CHARS] for _, title in path)


_BLANK = "\0"
"""A blank within `pre`, which is kept. Decoded texts have no such character."""


class _Html(HTMLParser):
    """The visible text of a page, by headings. What follows a tag that is not closed is kept, as in a browser."""

    _HIDDEN = frozenset(("script", "style", "template", "noscript", "svg"))
    _HEADING = re.compile("h[1-6]")
    _BLOCKS = re.compile(
        "p|div|br|li|ul|ol|tr|table|section|article|header|footer|main|aside|nav|blockquote|pre|dt|dd|hr"
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.sections: list[tuple[list[tuple[int, str]], list[str]]] = [([], [])]
        self._hidden: list[str] = []
        self._is_title = False
        self._level = 0
        """The level of the open heading; 0 if none is open."""
        self._heading = ""
        self._pre = 0
        """How many `pre` are open."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_block, is_heading = self._BLOCKS.fullmatch(tag), self._HEADING.fullmatch(tag)
        if (is_block or is_heading) and self._hidden[-1:] == ["svg"]:
            self._hidden.pop()  # nothing of this kind is in a picture
        if tag in self._HIDDEN:
            self._hidden.append(tag)
        elif tag == "title":
            self._is_title = True
        elif is_heading:
            self._end_heading()
            self._level = int(tag[1])
        elif is_block or tag == "body":
            self._break(tag)
            self._pre += tag == "pre"
        elif tag in ("td", "th"):
            self._add(" | ")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden and tag == self._hidden[-1]:
            self._hidden.pop()
        elif tag in ("title", "head"):
            self._is_title = False
        elif self._HEADING.fullmatch(tag):
            self._end_heading()
        elif self._BLOCKS.fullmatch(tag):
            self._pre = max(0, self._pre - (tag == "pre"))
            self._break(tag)

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if self._is_title:
            self.title += data
        elif self._level:
            self._heading += data
        else:
            self._add(data.expandtabs(4).replace(" ", _BLANK) if self._pre else data)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """See `HTMLParser`, which raises an error for sections of unknown kinds."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i, report)

    def close(self) -> None:
        super().close()
        self._end_heading()

    def _break(self, tag: str) -> None:
        """Begin a new line, at the begin or end of a block."""
        self._is_title = False
        if tag != "br" and self._heading.strip():
            self._end_heading()
        elif self._level:
            self._heading += " "
        self._add("\n")

    def _end_heading(self) -> None:
        """Begin the section below the open heading, if there is one."""
        heading = " ".join(self._heading.split())
        if self._level and heading:
            path = [item for item in self.sections[-1][0] if item[0] < self._level]
            self.sections.append(([*path, (self._level, heading)], [heading, "\n"]))
        self._level, self._heading = 0, ""

    def _add(self, text: str) -> None:
        self.sections[-1][1].append(text)


def _read_html(text: str, name: str) -> tuple[str, tuple[DocumentSection, ...]]:
    page = _Html()
    # No tag ends in what follows the last ">", and looking for one takes the cube of its length.
    tags, end, rest = text.rpartition(">")
    page.feed(tags + end)
    page.handle_data(unescape(rest))
    page.close()
    sections = []
    for path, pieces in page.sections:
        lines = [" ".join(line.split()).replace(_BLANK, " ").rstrip() for line in "".join(pieces).split("\n")]
        whole = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
        sections.append(DocumentSection(_join(path), whole))
    return " ".join(page.title.split()) or name, tuple(sections)


def _read_pdf(content: bytes, path: str, name: str) -> tuple[str, tuple[DocumentSection, ...]]:
    pypdf = require("pypdf", "pdf")
    # What it logs about damaged files is in the error, or does not matter.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = pypdf.PdfReader(BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ConfigError(f"the document {path!r} is encrypted; save it without a password")
        title = str((reader.metadata or {}).get("/Title") or "").strip() or name
        pages = [page.extract_text() or "" for page in reader.pages]
    except ConfigError:
        raise
    except Exception as error:  # pypdf raises many kinds for damaged files
        raise ConfigError(f"the document {path!r} is a PDF that cannot be read: {error}") from error
    return title, tuple(
        DocumentSection(f"page {number}", text.strip()) for number, text in enumerate(pages, 1)
    )


_INTRODUCTION = (
    "Documents that are too large to stand here whole. Parts of them that fit a message come with it; call recall "
    "with what you look for to read others:"
)
_FRAME_TOKENS = guess_tokens(_INTRODUCTION) + 30
PIECE_CHARS = 1200
"""The length of a piece: short enough that several are recalled for a message, and long enough to make sense."""


class LoadedDocuments(Struct, frozen=True):
    """The result of `load_documents`."""

    text: str
    """The small documents, fenced, for the prompt, and a list of the others; empty if there are none."""
    whole: tuple[str, ...]
    """The paths of the documents in `text`."""
    in_pieces: tuple[str, ...]
    """The paths of the documents whose pieces are recalled when they fit a message."""


def load_documents(
    paths: Sequence[str | Path],
    memory: "Memory | None",
    *,
    max_tokens: int = 4000,
) -> LoadedDocuments:
    """Read documents. The smallest ones stay whole, as far as they fit into `max_tokens` together. The others
    are stored in `memory` in pieces, once for each content, and the text says how large they are and how to read
    them. Blocks.

    Raises: `ConfigError` for a document that cannot be read, and for a large one without a memory.
    """
    documents = [read_document(path) for path in paths]
    fenced = {item.source: fence("document", item.text, title=item.title) for item in documents}
    costs = {source: guess_tokens(text) for source, text in fenced.items()}
    lines = {item.source: _describe(item) for item in documents}
    listed = {source: guess_tokens(line) for source, line in lines.items()}
    whole: list[str] = []
    is_all = sum(costs.values()) <= max_tokens
    left = max_tokens if is_all else max_tokens - _FRAME_TOKENS - sum(listed.values())
    for source in sorted(costs, key=costs.__getitem__):
        spent = costs[source] if is_all else costs[source] - listed[source]
        if spent <= left:
            whole.append(source)
            left -= spent
    large = [item for item in documents if item.source not in whole]
    if large and memory is None:
        raise ConfigError(
            f"the document {large[0].source!r} has about {costs[large[0].source]:,} tokens, and there is room for "
            f"{max_tokens:,}; documents are only stored in pieces where there is a memory"
        )
    for item in large:
        assert memory is not None
        memory.store.replace_document(item.source, item.digest, list(pieces_of(item)), memory.clock.time())
    kept = [item.source for item in documents if item.source in whole]
    texts = [fenced[source] for source in kept]
    if large:
        texts.append(
            _list(
                [lines[item.source] for item in large], max_tokens - sum([costs[source] for source in kept])
            )
        )
    return LoadedDocuments("\n".join(texts), tuple(kept), tuple(item.source for item in large))


def _describe(document: ReadDocument) -> str:
    """Return a line about a document: its title, its file and its size."""
    title, name = document.title, Path(document.source).name
    named = name if title == name else f"{title} ({name})"
    return f"- {named}: {len(document.text):,} characters"


def _list(lines: Sequence[str], tokens: int) -> str:
    """Return the list of the documents that are too large for the prompt, in at most about `tokens`."""
    shown: list[str] = []
    for line in lines:
        tokens -= guess_tokens(line)
        if tokens < _FRAME_TOKENS:
            shown.append(f"- and {len(lines) - len(shown)} more")
            break
        shown.append(line)
    # The titles are as foreign as the documents.
    listed = fence("document", "\n".join(shown))
    return f"{_INTRODUCTION}\n{listed}"


def pieces_of(document: ReadDocument, chars: int = PIECE_CHARS, overlap_chars: int = 0) -> Iterator[Draft]:
    """Yield the pieces of a document of at most `chars` characters, which overlap, with title and place."""
    for section in document.sections:
        parts = list(_split(section.text, chars, overlap_chars))
        for number, part in enumerate(parts, 1):
            place = (
                section.place if len(parts) == 1 else f"{section.place} ({number} of {len(parts)})".strip()
            )
            named = {"title": document.title} | ({"place": place} if place else {})
            yield Draft(store=Store.DOCUMENTS, text=part, author=Author.FILE, metadata=named)


def _split(text: str, chars: int, overlap_chars: int) -> Iterator[str]:
    """Yield the parts of a section: whole paragraphs where they fit, else lines, sentences or words."""
    start = 0
    while len(text) - start > chars:
        end = _find_end(text, start, chars)
        if part := text[start:end].strip():
            yield part
        start = max(end - overlap_chars, start + 1)
    if rest := text[start:].strip():
        yield rest


def _find_end(text: str, start: int, chars: int) -> int:
    window = text[start : start + chars]
    for mark in ("\n\n", "\n", ". ", " "):
        place = window.rfind(mark, chars // 3)
        if place >= 0:
            return start + place + len(mark)
    return start + chars
