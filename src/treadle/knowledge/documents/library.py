"""Documents for a session: small ones whole in the prompt, large ones in pieces in the memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.estimates import guess_tokens
from treadle.core.fence import fence
from treadle.knowledge.documents.extract import ReadDocument, read_document
from treadle.knowledge.memory import Author, Draft, Memory, Store

_HEADING = (
    "Documents that are too large to stand here whole. Parts of them that fit a message come with it; call recall "
    "with what you look for to read others:"
)
_FRAME_TOKENS = guess_tokens(_HEADING) + 30
_PIECE_CHARS = 1200
"""The length of a piece: short enough that several are recalled for a message, and long enough to make sense."""


class LoadedDocuments(Struct, frozen=True):
    """The result of `load_documents`."""

    text: str
    """The documents that are small enough for the prompt, fenced, and a list of the others; empty if there are
    none."""
    whole: tuple[str, ...]
    """The paths of the documents in `text`."""
    in_pieces: tuple[str, ...]
    """The paths of the documents whose pieces are recalled when they fit a message."""


def load_documents(
    paths: Sequence[str | Path],
    memory: Memory | None,
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
    return f"{_HEADING}\n{listed}"


def pieces_of(document: ReadDocument) -> Iterator[Draft]:
    """Yield the pieces of a document, each with its title and place."""
    for section in document.sections:
        parts = list(_split(section.text))
        for number, part in enumerate(parts, 1):
            place = (
                section.place if len(parts) == 1 else f"{section.place} ({number} of {len(parts)})".strip()
            )
            named = {"title": document.title} | ({"place": place} if place else {})
            yield Draft(store=Store.DOCUMENTS, text=part, author=Author.FILE, metadata=named)


def _split(text: str) -> Iterator[str]:
    """Yield the parts of a section: whole paragraphs where they fit, else lines, sentences or words."""
    start = 0
    while len(text) - start > _PIECE_CHARS:
        end = _find_end(text, start)
        if part := text[start:end].strip():
            yield part
        start = end
    if rest := text[start:].strip():
        yield rest


def _find_end(text: str, start: int) -> int:
    window = text[start : start + _PIECE_CHARS]
    for mark in ("\n\n", "\n", ". ", " "):
        place = window.rfind(mark, _PIECE_CHARS // 3)
        if place >= 0:
            return start + place + len(mark)
    return start + _PIECE_CHARS
