"""Changes of rows: turns that are not trained on are left out, parallel calls split, and tools chosen."""

import random
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import compress, count

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ExportError
from treadle.core.types import Message, Role, ToolSpec
from treadle.export.rows import Lineage, Row, call_ids_of, hash_tools, write_object

_CALL = re.compile(r"(?<=the arguments of )\S+ \([^()]*\)")
_DETAIL = re.compile(r" \([^()]*\)")
_NAME = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
"""The parts of an error that are of one row: the call, what is in brackets, and quoted names and numbers."""


def without_untrained(row: Row, numbers: Collection[int] | None = None) -> Row:
    """Return the row without turns that are not trained on, for a format that has no place for them.

    `numbers` are those of the assistant messages to leave out; `None` means all of `row.untrained`. Of a message
    with several calls only those whose result is an error are left out, with their results; the others are trained
    on. Raises: `ExportError` if no answer is left to train on, or one that has no calls stands before others.
    """
    gone = set(row.untrained if numbers is None else numbers)
    if not gone:
        return row
    if not row.weight:
        raise ExportError("its weight is 0, so that no answer is left to train on")
    failed = {message.call_id for message in row.messages if message.is_error}
    messages: list[Message] = []
    kept: list[bool] = []
    left_out: set[str] = set()
    for message in row.messages:
        if message.role is Role.TOOL and message.call_id in left_out:
            continue
        if message.role is not Role.ASSISTANT:
            messages.append(message)
            continue
        is_gone, calls = len(kept) in gone, message.tool_calls
        if is_gone:
            good = tuple([call for call in calls if call.call_id not in failed])
            good = () if len(good) == len(calls) else good
            left_out |= {call.call_id for call in calls if call not in good}
            message = replace(message, tool_calls=good)
        kept.append(not is_gone or bool(message.tool_calls))
        if kept[-1]:
            messages.append(message)
        elif not calls and len(kept) < sum(item.role is Role.ASSISTANT for item in row.messages):
            raise ExportError("an answer that is not to be trained on stands before others")
    while messages and messages[-1].role is Role.USER:
        messages.pop()
    untrained = [number not in gone and number in row.untrained for number in range(len(kept))]
    if not any(is_kept and not is_not for is_kept, is_not in zip(kept, untrained, strict=True)):
        raise ExportError("no answer is left to train on: each has a call that failed, or is marked so")
    return Row(
        tuple(messages),
        row.tools,
        _keep_calls(row.lineage, messages, kept),
        tuple(compress(row.tokens, kept)),
        tuple([number for number, is_not in enumerate(compress(untrained, kept)) if is_not]),
        row.weight,
    )


def keep_messages(row: Row, messages: Sequence[Message]) -> Row:
    """Return the row with only these messages of it, which keep the mark that they are not trained on."""
    said = [message for message in row.messages if message.role is Role.ASSISTANT]
    marked = {id(said[number]) for number in row.untrained}
    kept = [message for message in messages if message.role is Role.ASSISTANT]
    untrained = tuple([number for number, message in enumerate(kept) if id(message) in marked])
    return replace(row, messages=tuple(messages), untrained=untrained)


def _keep_calls(lineage: Lineage, messages: Sequence[Message], kept: Sequence[bool]) -> Lineage:
    """Return a lineage without what it says about calls and answers that are no longer in the row."""
    ids = set(call_ids_of(messages))
    models = tuple(compress(lineage.models, kept)) if lineage.models else ()
    return replace(
        lineage,
        models=models,
        **{
            name: tuple([call_id for call_id in getattr(lineage, name) if call_id in ids])
            for name in ("tool_errors", "simulated", "in_doubt")
        },
    )


def find_unwritable(row: Row) -> tuple[int, ...]:
    """Return the untrained answers with a call that most formats cannot hold: of a tool that the row does not have,
    or with arguments that are not a JSON object."""
    known = {tool.name for tool in row.tools}
    said = [message for message in row.messages if message.role is Role.ASSISTANT]
    return tuple([number for number in row.untrained if _is_unwritable(said[number], known)])


def _is_unwritable(message: Message, known: Collection[str]) -> bool:
    try:
        return any(call.name not in known or not write_object(call) for call in message.tool_calls)
    except ExportError:
        return True


def describe_reason(error: ExportError) -> str:
    """Return the reason for which a row is left out, without what is of this row alone, so that rows can be
    counted by it."""
    return _NAME.sub("…", _DETAIL.sub("", _CALL.sub("a call", str(error))))[:300]


class RowOptions(Struct, frozen=True):
    """The options by which rows are changed before they are written."""

    tools: str | None = None
    """`used` for the tools that a row calls, `used+N` for N others besides; `None` for all."""
    splits_calls: bool = False
    """Whether each call has a step of its own, for chat templates that allow one call in a step."""

    has_lineage: bool = True
    """Whether rows say where they come from."""

    def __post_init__(self) -> None:
        self.count_others()

    def count_others(self) -> int:
        """Return how many tools a row has besides those that it calls. Raises: `ConfigError`."""
        word, plus, number = ("used" if self.tools is None else self.tools).partition("+")
        if word.strip() != "used" or (plus and not number.strip().isdecimal()):
            raise ConfigError(
                f"--tools {self.tools!r} is not known; give 'used', or 'used+3' for three others"
            )
        return int(number) if plus else 0

    def change(self, row: Row) -> Row:
        """Return the row with these options."""
        row = row if self.tools is None else keep_tools(row, self.count_others())
        return split_calls(row) if self.splits_calls else row


def keep_tools(row: Row, others: int) -> Row:
    """Return the row with the tools that it calls and `others` more, in their order. The same row always keeps the
    same ones."""
    used = {call.name for message in row.messages for call in message.tool_calls}
    rest = [tool.name for tool in row.tools if tool.name not in used]
    drawn = random.Random(row.lineage.run_id).sample(rest, min(others, len(rest)))
    tools: tuple[ToolSpec, ...] = tuple([tool for tool in row.tools if tool.name in used.union(drawn)])
    return replace(row, tools=tools, lineage=replace(row.lineage, tools_hash=hash_tools(tools)))


def split_calls(row: Row) -> Row:
    """Return the row with one call in each step: the text and the reasoning stand beside the first one.

    The results follow their calls. Of a step that is not trained on, the calls that failed are not. A row with
    token ids loses them, since they are those of whole steps.
    """
    if all(len(message.tool_calls) < 2 for message in row.messages):
        return row
    numbers = count()
    untrained: list[int] = []
    models: list[str] = []
    results = {message.call_id: message for message in row.messages if message.role is Role.TOOL}

    def split(message: Message) -> Iterator[Message]:
        number = next(numbers)
        for index, call in enumerate(message.tool_calls):
            if index == 0:
                yield replace(message, tool_calls=(call,))
            else:
                yield Message(Role.ASSISTANT, tool_calls=(call,))
            yield results[call.call_id]
        if not message.tool_calls:
            yield message
        steps = max(1, len(message.tool_calls))
        if number in row.untrained:
            wrong = [index for index, call in enumerate(message.tool_calls) if results[call.call_id].is_error]
            untrained.extend([len(models) + index for index in (wrong or range(steps))])
        models.extend([row.lineage.models[number] if row.lineage.models else ""] * steps)

    messages: list[Message] = []
    for message in row.messages:
        if message.role is Role.ASSISTANT:
            messages.extend(split(message))
        elif message.role is not Role.TOOL:
            messages.append(message)
    lineage = replace(row.lineage, models=tuple(models) if row.lineage.models else ())
    return Row(tuple(messages), row.tools, lineage, untrained=tuple(untrained), weight=row.weight)
