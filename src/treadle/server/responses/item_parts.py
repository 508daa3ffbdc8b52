"""What a response repeats of its request, and parts of its items: calls and questions, lists of
tools, searches of files, citations and errors."""

import re
from collections.abc import Container, Iterable, Mapping

import msgspec
from msgspec import Struct, field

from treadle.core.events import QuestionAsked
from treadle.core.types import Json, ToolSpec
from treadle.knowledge.files.file_search import SearchResults

REPEATED = (
    *("temperature", "top_p", "max_output_tokens", "max_tool_calls", "parallel_tool_calls", "reasoning"),
    *("user", "truncation", "service_tier", "tool_choice", "top_logprobs"),
    *("prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
)
"""The fields of a request that its response repeats as they are."""


class Echo(Struct, kw_only=True, omit_defaults=True):
    """The fields of a response that repeat its request. One is stored with each response, so it is kept small."""

    model: str
    created_at: float
    instructions: str | None = None
    tools: list[Json] = field(default_factory=list)
    metadata: dict[str, Json] = field(default_factory=dict)
    previous_response_id: str | None = None
    system: list[str] = field(default_factory=list)
    """The system messages among the items of the conversation until then. They also hold for later responses."""
    is_background: bool = False
    shows_results: bool = True
    """True if the items of file searches have their results."""
    shows_logprobs: bool = False
    """True if the texts of answers have the log probabilities of their tokens, as far as they are known."""
    shows_compactions: bool = False
    """True if the output has an item for each compaction of the context."""
    conversation: str | None = None
    """The id of the conversation; `None`: the one of the run."""
    rest: dict[str, Json] = field(default_factory=dict)
    """Other fields, such as `temperature`, as far as they were given. See `REPEATED`."""


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
        for mark in (_MARK.finditer(text) if found else ())
        if mark[1] in found
    ]


def error_of(text: str) -> Json:
    """Return the error of an `mcp_call` whose tool has failed."""
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}


def arguments_of_question(body: QuestionAsked) -> str:
    """Return the arguments of the call as which a question is shown."""
    arguments: dict[str, Json] = {"question": body.text}
    if body.options:
        arguments["options"] = [option.label for option in body.options]
    if body.schema is not None:
        arguments["schema"] = body.schema
    return msgspec.json.encode(arguments).decode()


def lists_of(tools: Iterable[ToolSpec], listed: Container[str]) -> dict[str, list[Json]]:
    """Return the tools of the servers that the client named, by label, without those of `listed` servers."""
    found: dict[str, list[Json]] = {}
    for tool in tools:
        if tool.origin is not None and tool.origin.server not in listed:
            about = {"name": tool.origin.name, "description": tool.description}
            found.setdefault(tool.origin.server, []).append({**about, "input_schema": tool.parameters})
    return found
