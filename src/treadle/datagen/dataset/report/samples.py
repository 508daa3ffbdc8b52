"""The rows that can be read in the report: all of a small dataset, and a random sample of a large one."""

import heapq
from hashlib import blake2b

import msgspec
from msgspec import Struct, field

from treadle.core.types import Json, Message, Role
from treadle.datagen.dataset.entries import RowEntry

_MAX_TEXT = 4_000
_MAX_RESULT = 2_500
_MAX_MESSAGES = 80


class Drawn(Struct):
    """A sample of rows, drawn by a hash of their ids, so that it does not depend on their order."""

    size: int
    """The most rows of the sample."""
    max_bytes: int
    """How large the sample may be as JSON."""
    is_rejected: bool = False
    seen: int = 0
    """How many rows there were to draw from."""
    _heap: list[tuple[int, int, RowEntry]] = field(default_factory=list)

    def add(self, entry: RowEntry) -> None:
        """Consider a row, and add it to the sample if it is drawn."""
        self.seen += 1
        name = f"{entry.row_id}\x1f{entry.row.lineage.run_id}".encode()
        key = -int.from_bytes(blake2b(name, digest_size=8).digest())
        if len(self._heap) < self.size:
            heapq.heappush(self._heap, (key, self.seen, entry))
        elif key > self._heap[0][0]:
            heapq.heapreplace(self._heap, (key, self.seen, entry))

    def rows(self) -> list[dict[str, Json]]:
        """Return the rows of the sample for the page, in their order in the dataset."""
        found: list[tuple[int, dict[str, Json]]] = []
        size = 0
        for _, number, entry in sorted(self._heap, reverse=True):
            row = _write(entry, is_rejected=self.is_rejected)
            size += len(msgspec.json.encode(row))
            if size > self.max_bytes and found:
                break
            found.append((number, row))
        return [row for _, row in sorted(found, key=lambda item: item[0])]


def _write(entry: RowEntry, *, is_rejected: bool) -> dict[str, Json]:
    lineage, sample = entry.row.lineage, entry.row.lineage.sample
    messages = entry.row.messages
    facts = [f"run {lineage.run_id}", lineage.model or "", f"ended with {lineage.stop_reason}"]
    verdicts: list[Json] = [
        {"filter": item.filter, "passed": item.is_passed, "reason": item.reason[:_MAX_TEXT]}
        for item in entry.verdicts
    ]
    if sample is not None:
        facts = [" › ".join(sample.topic), sample.difficulty, sample.persona, *facts, f"seed {sample.seed}"]
        facts.append(f"{sample.input_tokens + sample.output_tokens:,} tokens")
        if not verdicts:
            verdicts = [
                {"filter": name, "passed": True, "reason": note[:_MAX_TEXT]}
                for name, note in sample.filters.items()
            ]
    shown = messages[:_MAX_MESSAGES]
    asked = next((message.content for message in messages if message.role is Role.USER), "")
    return {
        "id": entry.row_id,
        "run": lineage.run_id,
        "status": "rejected" if is_rejected else "kept",
        "topic": [] if sample is None else sample.topic,
        "kind": (None if sample is None else sample.kind) or "",
        "verified": sample is not None and sample.is_verified,
        "tools": sorted({call.name for message in messages for call in message.tool_calls}),
        "asked": _cut(" ".join(asked.split()), 300),
        "facts": [_cut(fact, 300) for fact in facts if fact],
        "messages": _write_messages(shown, set(lineage.simulated)),
        "verdicts": verdicts,
        "cut": f"{len(messages) - len(shown):,} more messages" if len(shown) < len(messages) else "",
    }


def _write_messages(messages: tuple[Message, ...], simulated: set[str]) -> list[Json]:
    """Return the messages with the result of each call beside it."""
    results = {message.call_id: message for message in messages if message.role is Role.TOOL}
    written: list[Json] = []
    for message in messages:
        if message.role is Role.TOOL:
            continue
        raw: dict[str, Json] = {"role": message.role, "text": _cut(message.content, _MAX_TEXT)}
        if message.reasoning:
            raw["thought"] = _cut(message.reasoning, _MAX_TEXT)
        if message.tool_calls:
            raw["calls"] = []
        for call in message.tool_calls:
            shown: dict[str, Json] = {"name": call.name, "arguments": _cut(call.arguments, _MAX_RESULT)}
            if (result := results.get(call.call_id)) is not None:
                shown["result"] = _cut(result.content, _MAX_RESULT)
                shown["error"] = result.is_error
            shown["simulated"] = call.call_id in simulated
            raw["calls"].append(shown)
        written.append(raw)
    return written


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars]}… ({len(text) - chars:,} more characters)"
