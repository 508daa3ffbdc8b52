"""The tool `file_search`: a model searches the files of vector stores."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, ToolError
from treadle.core.prompts.fence import fence
from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.knowledge.files.attribute_filters import read_filter
from treadle.knowledge.files.store_index import FoundPiece
from treadle.knowledge.files.vector_stores import VectorStores
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Tool, ToolOutput
from treadle.tools.schema.validation import ArgumentChecker, own_spec
from treadle.tools.toolset_parts import settings_of

NAME = "file_search"
_MAX_CHARS = 60_000
"""How much text the model gets. What has no room is left out."""
_MOST_RESULTS = 50


class SearchResults(Struct, frozen=True):
    """The result of a search, beside the text that the model reads."""

    queries: list[str]
    results: list[FoundPiece]


class FileSearch:
    """The tool `file_search` for some vector stores of the journal in which the run is kept. See `Toolset`."""

    takes_context = True

    def __init__(
        self,
        vector_store_ids: Sequence[str] = (),
        max_num_results: int = 10,
        filters: Json = None,
        score_threshold: float = 0.0,
    ) -> None:
        """Make the tool. Raises: `ConfigError` for a setting that cannot be used."""
        is_list = isinstance(vector_store_ids, list | tuple) and vector_store_ids
        if not is_list or not all([isinstance(name, str) for name in vector_store_ids]):
            raise ConfigError(f"{NAME} needs the ids of vector stores: vector_store_ids=['vs_...']")
        if type(max_num_results) is not int or not 1 <= max_num_results <= _MOST_RESULTS:
            raise ConfigError(f"max_num_results is {max_num_results!r:.50}; give 1 to {_MOST_RESULTS}")
        if not isinstance(score_threshold, int | float) or not 0 <= score_threshold <= 1:
            raise ConfigError(f"score_threshold is {score_threshold!r:.50}; give a number from 0 to 1")
        self._store_ids = list(dict.fromkeys(vector_store_ids))
        self._limit = max_num_results
        self._condition = None if filters is None else read_filter(filters)
        self._threshold = score_threshold
        self.spec = own_spec(NAME)
        self.find_fault = ArgumentChecker(self.spec.parameters).find_fault
        given: dict[str, Json] = {
            "vector_store_ids": self._store_ids,
            "max_num_results": max_num_results,
            "filters": filters,
            "score_threshold": score_threshold,
        }
        self.part = PartSpec(name=NAME, settings=settings_of(FileSearch, given))

    def tools(self) -> Sequence[Tool]:
        return (self,)

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        journal = context.journal
        if journal is None:
            raise ToolError("files can only be searched within a run, whose journal has them")
        table = journal.resources
        stores = table.once(VectorStores, lambda: VectorStores(table))
        queries = [str(query) for query in arguments["queries"]]
        found: list[FoundPiece] = []
        notes = []
        for store_id in self._store_ids:
            store = stores.get(store_id)
            if store is None:
                notes.append(f"The vector store {store_id!r} was deleted.")
                continue
            try:
                found += await stores.search(store, queries, self._limit, self._condition)
            except ConfigError as error:
                notes.append(f"Not searched: {error}.")
        best = sorted(found, key=lambda hit: -hit.score)[: self._limit]
        kept = [hit for hit in best if hit.score >= self._threshold]
        return _write(queries, kept, notes)


def _write(queries: list[str], found: Sequence[FoundPiece], notes: list[str]) -> ToolOutput:
    lines: list[str] = []
    results: list[FoundPiece] = []
    left = _MAX_CHARS
    for hit in found:
        left -= len(hit.text)
        if left < 0 and results:
            notes.append(f"{len(found) - len(results)} more passages had no room.")
            break
        place = hit.place or None
        lines.append(fence("document", hit.text, mark=f"[{hit.file_id}]", title=hit.filename, place=place))
        results.append(hit)
    text = "\n".join([*(lines or ["Nothing was found."]), *notes])
    return ToolOutput(text, structured=msgspec.to_builtins(SearchResults(queries, results)))
