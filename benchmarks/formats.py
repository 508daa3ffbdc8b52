"""The speed of parsing each text format on one core, relative to `json.loads` of the same messages as JSON."""

import gc
import json
import time
from collections.abc import Callable
from statistics import median

from benchmarks.common import Figure
from treadle.core.types import Message, Role, ToolCall, ToolSpec
from treadle.formats import FORMATS, IncrementalParser, find_format, parse, render

ROUNDS = 7
CHUNK = 24
"""The length of a streamed piece in characters, which is a few tokens."""

_TEXT = (
    "I will look at the file first, then write the change and run the tests again. The error is about `count`, "
    "which is compared with a list.\n\nLet me check both places where it is used."
)
_REASONING = "The user wants the build to pass. The first failure is in the parser, so I start there." * 3
_CODE = "def add(left, right):\n    '''Adds.'''\n    return left + right  # ünïcode\n" * 6
_CALLS = (
    ToolCall("call00001", "write_file", json.dumps({"path": "src/add.py", "text": _CODE, "mode": 420})),
    ToolCall(
        "call00002", "search", json.dumps({"query": "compare count", "limit": 20, "paths": ["src", "tests"]})
    ),
    ToolCall(
        "call00003",
        "book",
        json.dumps(
            {"guests": [{"name": "Ada", "age": 36}, {"name": "Max", "age": 7}], "nights": 3, "late": True}
        ),
    ),
)
_TOOLS = (
    ToolSpec(
        "write_file",
        "Writes.",
        {"properties": {"path": {"type": "string"}, "text": {"type": "string"}, "mode": {"type": "integer"}}},
    ),
    ToolSpec(
        "search",
        "Searches.",
        {
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer"},
                "paths": {"type": "array"},
            }
        },
    ),
    ToolSpec(
        "book",
        "Books.",
        {
            "properties": {
                "guests": {"type": "array"},
                "nights": {"type": "integer"},
                "late": {"type": "boolean"},
            }
        },
    ),
)
_FILE = ToolCall(
    "call00004",
    "write_file",
    json.dumps({"path": "src/add.py", "text": _CODE * 12, "mode": 420}, ensure_ascii=False),
)
_SHORT = (
    Message(Role.ASSISTANT, _TEXT, _CALLS, reasoning=_REASONING),
    Message(Role.ASSISTANT, "", _CALLS[:1]),
    Message(Role.ASSISTANT, _TEXT, _CALLS[1:2]),
    Message(Role.ASSISTANT, _TEXT * 4),
)
"""Messages of 0.7 kB each."""
_SHAPES = (*_SHORT, Message(Role.ASSISTANT, _TEXT, (_FILE,), reasoning=_REASONING * 4))
"""The same messages, and one that writes a file of 6 kB after 1 kB of reasoning."""


async def measure() -> list[Figure]:
    """Return one figure for each format, read as a whole. Reading in pieces is reported without a condition."""
    return [_measure(name) for name in FORMATS.names()]


def _measure(name: str) -> Figure:
    texts, plain = [], []
    for shape in _SHAPES:
        message = shape
        try:
            text = render(message, name, _TOOLS)
        except ValueError:
            # Some formats cannot express text beside a call, or reasoning, or several calls.
            message = Message(Role.ASSISTANT, "", shape.tool_calls[:1])
            text = render(message, name, _TOOLS)
        assert parse(text, name, _TOOLS).errors == ()
        texts.append(text)
        calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in message.tool_calls]
        said = {"reasoning": message.reasoning, "content": message.content, "tool_calls": calls}
        plain.append(json.dumps(said, ensure_ascii=False))
    repeats = 100

    def ours(count: int) -> None:
        for _ in range(repeats):
            for text in texts[:count]:
                parse(text, name, _TOOLS)

    def streamed() -> None:
        for _ in range(repeats // 10):
            for text in texts:
                parser = IncrementalParser(name, _TOOLS)
                for at in range(0, len(text), CHUNK):
                    parser.feed(text[at : at + CHUNK])
                parser.close()

    def baseline(count: int) -> None:
        for _ in range(repeats):
            for text in plain[:count]:
                json.loads(text)

    def speed(texts: list[str], work: Callable[[], None], times: int) -> float:
        """Return the speed in MB/s."""
        return sum(len(text.encode()) for text in texts) * times / 1e6 / _timed(work)

    found = []
    for _ in range(ROUNDS):
        theirs = speed(plain, lambda: baseline(len(texts)), repeats)
        mine = speed(texts, lambda: ours(len(texts)), repeats)
        short = speed(texts[: len(_SHORT)], lambda: ours(len(_SHORT)), repeats)
        short /= speed(plain[: len(_SHORT)], lambda: baseline(len(_SHORT)), repeats)
        pieces = speed(texts, streamed, repeats // 10)
        found.append((mine / theirs, mine, short, pieces / theirs))
    ratio, fast, short, pieces = (median(column) for column in zip(*found, strict=True))
    detail = (
        f"{fast:.1f} MB/s; of short messages alone {short:.2f}; in pieces of {CHUNK} characters {pieces:.2f}"
    )
    return Figure(f"MB/s of the format {name} over json.loads'", ratio, ">= 0.2", detail)


_LINEAR_CHARS = 1_000_000


async def measure_marks() -> list[Figure]:
    """Return how much longer 1 MB of a repeated mark takes than 0.25 MB, for the worst mark of each format."""
    return [_measure_marks(name) for name in FORMATS.names()]


def _measure_marks(name: str) -> Figure:
    found = find_format(name)
    marks = {mark for kind in ("openers", "noise", "sections", "ends") for mark in getattr(found, kind, ())}
    marks |= {tag for pair in (*found.reasoning, ("<think>", "</think>")) for tag in pair}
    marks |= {"`", "```", "~~~", " ", "\n", "{", "[", '"', "\u2028"}
    units = [*sorted(marks), *[f"<think>{mark}" for mark in sorted(marks)]]
    worst, detail = 0.0, ""
    for unit in units:
        for step in (_LINEAR_CHARS, 400):
            few, many = (
                _read_repeated(name, unit, size, step) for size in (_LINEAR_CHARS // 4, _LINEAR_CHARS)
            )
            # A few milliseconds say nothing.
            if (ratio := many / max(few, 0.02)) > worst:
                worst, detail = ratio, f"{unit!r} in pieces of {step} characters, {many:.2f} s"
    return Figure(f"time of 1 MB of marks of {name} over that of 0.25 MB", worst, "<= 6", detail)


def _read_repeated(name: str, unit: str, size: int, step: int) -> float:
    text = "x " + unit * (size // len(unit))

    def read() -> None:
        parser = IncrementalParser(name)
        for at in range(0, len(text), step):
            parser.feed(text[at : at + step])
        parser.close()

    # The pieces of one text would make the garbage collector count in the next.
    gc.collect()
    return min(_timed(read) for _ in range(2))


def _timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
