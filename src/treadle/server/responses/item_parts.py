"""Parts of the items of a response: searches of files, the places where an answer cites what they found, errors."""

import re
from collections.abc import Mapping

import msgspec

from treadle.core.types import Json, Usage
from treadle.knowledge.files.file_search import SearchResults

_MARK = re.compile(r"\[(file-[0-9a-f]{24})\]")
_decode_queries = msgspec.json.Decoder(dict[str, list[str]]).decode


def queries_in(arguments: str) -> list[Json]:
    """Return the queries of a call; none if its arguments cannot be read."""
    try:
        return list(_decode_queries(arguments).get("queries", ()))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []


def _read(structured: Json) -> SearchResults:
    try:
        return msgspec.convert(structured, SearchResults)
    except msgspec.ValidationError:  # the tool failed, or another one has its name
        return SearchResults([], [])


def results_of(structured: Json) -> Json:
    """Return the results of a search as its item shows them."""
    found: Json = msgspec.to_builtins(_read(structured).results)
    return found


def names_of_found(structured: Json) -> dict[str, str]:
    """Return the names of the files that a search found, by id."""
    return {item.file_id: item.filename for item in _read(structured).results}


def citations_in(text: str, found: Mapping[str, str]) -> list[Json]:
    """Return an annotation for each mark of a file that was found."""
    return [
        {"type": "file_citation", "file_id": mark[1], "filename": found[mark[1]], "index": mark.start()}
        for mark in _MARK.finditer(text)
        if mark[1] in found
    ]


def reasoning_part(text: str) -> Json:
    """Return the content of an item of reasoning."""
    return {"type": "reasoning_text", "text": text}


def error_of(text: str) -> Json:
    """Return the error of an `mcp_call` whose tool has failed."""
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}


def write_usage(usage: Usage) -> dict[str, Json]:
    """Return the tokens of a response."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
