"""Documents for a session: small ones whole in the prompt, large ones in pieces in the memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.estimates import guess_tokens
from treadle.core.fence import fence
from treadle.knowledge.documents.extract import ReadDocument, read_document
from treadle.knowledge.memory import Author, Draft, Memory, Store

_PIECE_CHARS = 1200
"""The length of a piece: short enough that several are recalled for a message, and long enough to make sense."""


class LoadedDocuments(Struct, frozen=True):
    """The result of `load_documents`."""

    text: str
    """The documents that are small enough for the prompt, fenced; empty if there are none."""
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
    are stored in `memory` in pieces, once for each content. Blocks.

    Raises: `ConfigError` for a document that cannot be read, and for a large one without a memory.
    """
    documents = [read_document(path) for path in paths]
    fenced = {item.source: fence("document", item.text, title=item.title) for item in documents}
    costs = {source: guess_tokens(text) for source, text in fenced.items()}
    whole: list[str] = []
    left = max_tokens
    for source in sorted(costs, key=costs.__getitem__):
        if costs[source] <= left:
            whole.append(source)
            left -= costs[source]
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
    return LoadedDocuments(
        "\n".join(fenced[source] for source in kept), tuple(kept), tuple(item.source for item in large)
    )


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
