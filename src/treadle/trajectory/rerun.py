"""The running of recorded calls again: how inner calls and questions are answered, and how results are compared."""

import calendar
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate
from time import gmtime
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.core import events as e
from treadle.core.asking import AskNow, Question, QuestionDecision, RefuseToAsk, decide_question
from treadle.core.calls import InnerDecision, RunInner, SettleInner
from treadle.core.texts.json_text import is_deep
from treadle.core.types import Json, ToolCall, ToolErrorKind, ToolResult
from treadle.loop.calls.questions import Rules
from treadle.loop.calls.results import failed
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.protocol import Tool

if TYPE_CHECKING:
    from treadle.trajectory.run_verification import Verifier


UNREACHED = "what runs the tool does not answer"


class Difference(Struct, frozen=True):
    """One result that differs from the recorded one."""

    seq: int
    """The number of the event that holds the recorded result."""
    call: str
    """The tool and the call's id."""
    recorded: str
    found: str
    run_id: str | None = None
    """The run of a sub-agent that the result belongs to; `None` if it belongs to the verified run itself."""

    @property
    def tool(self) -> str:
        return self.call.partition(" (")[0]

    def __str__(self) -> str:
        place = f"seq {self.seq}" if self.run_id is None else f"seq {self.seq} of run {self.run_id!r}"
        return f"{self.call} at {place}: recorded {self.recorded!r:.200}, now {self.found!r:.200}"


class Inner(Struct, frozen=True):
    """A recorded inner call."""

    seq: int
    """The number of the event that holds its result."""
    result: ToolResult
    started: e.ToolStarted | None
    """The event with which the call was started; `None` if the call was not run."""

    def is_call(self, name: str, arguments: str) -> bool:
        """Return whether this call is a call of the tool `name` with these arguments."""
        if self.started is None:
            return self.result.name == name
        return (self.started.name, self.started.arguments) == (name, arguments)


class Rerun(Struct):
    """The outcome of making the calls of one group again, in one order."""

    sandbox: MemorySandbox
    matched: int = 0
    skips: list[str] = []
    differences: list[Difference] = []

    def compare(
        self,
        seq: int,
        recorded: ToolResult,
        found: ToolResult | str,
        tool: Tool | None,
        span: tuple[float, float],
    ) -> bool:
        """Compare and count one result; return whether it is equal.

        `found` is a result, or a reason to skip it. `span` is the time in which the recorded call ran.
        """
        name = f"{recorded.name} ({recorded.call_id})"
        rules = () if tool is None else tool.spec.may_differ
        if (
            isinstance(found, ToolResult)
            and "timestamps" not in rules
            and is_same(recorded, found, (*rules, "timestamps"))
            and shows_clock(recorded.content, *span)
        ):
            found = "its result has the time at which it ran"
        if isinstance(found, ToolResult) and found.error_kind is ToolErrorKind.IN_DOUBT:
            found = f"{UNREACHED}: {found.content}"
        if isinstance(found, str):
            self.skips.append(f"{name}: {found}")
            return False
        same = is_same(recorded, found, rules)
        if not same:
            self.differences.append(Difference(seq, name, recorded.content, found.content))
        self.matched += same
        return same


class RecordedRules(Rules):
    """The rules of an attempt: inner calls are made again if that is harmless, otherwise answered as recorded, and
    questions are answered from the journal."""

    def __init__(self, record: "Verifier", attempt: Rerun) -> None:
        self._record = record
        self._attempt = attempt
        self._settled: set[str] = set()
        """The ids of calls that need no further comparison."""

    def decide_inner(self, parent_id: str, number: int, name: str, arguments: str) -> InnerDecision:
        """Decide about an inner call; see `Rules`."""
        call = ToolCall(f"{parent_id}/{number}", name, arguments)
        known = self._record.inner_of(parent_id).get(call.call_id)
        if known is None or not known.is_call(name, arguments):
            text = f"the recorded run did not call {name}({arguments}) here"
            return SettleInner(failed(call, ToolErrorKind.FAILED, text))
        reason = self._record.find_reason(call, known.result)
        if reason is None:
            return RunInner(call, 1)
        self._attempt.compare(known.seq, known.result, reason, None, (0.0, 0.0))
        self._settled.add(call.call_id)
        return SettleInner(known.result, is_recorded=True)

    def decide_question(
        self, question: Question, asker_id: str, call_id: str, number: int
    ) -> QuestionDecision:
        """Answer a question from the journal. Nobody else is asked."""
        decided = decide_question(self._record.state, question, asker_id, call_id, number)
        return RefuseToAsk("The journal has no answer.") if isinstance(decided, AskNow) else decided

    def compare(self, parent_id: str, bodies: Sequence[e.DurableBody]) -> None:
        """Compare the results of a call's inner calls. Recorded ones that it did not make are differences."""
        found = {
            body.result.call_id: body.result
            for body in bodies
            if isinstance(body, e.ToolCompleted) and body.parent_call_id is not None
        }
        for call_id, known in self._record.inner_of(parent_id).items():
            if call_id in self._settled:
                continue
            absent = ToolResult(call_id, known.result.name, "not called", is_error=True)
            tool = self._record.tool_of(known.result.name)
            span = self._record.span_of(call_id)
            self._attempt.compare(known.seq, known.result, found.get(call_id, absent), tool, span)


_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)?,? ?(?:\d{1,2} )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
    r" (?:\d{1,2},? )?(?:\d{4} )?\d\d:\d\d(?::\d\d)?(?: \d{4})?"
    r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
    r"|\b1[0-9]{9}(?:\.\d+|[0-9]{3}|[0-9]{6}|[0-9]{9})?\b"
)
"""A pattern for dates and times: ISO 8601, the formats of `date` and of mail, times of day, and seconds,
milliseconds, microseconds or nanoseconds since 1970."""
_TIME_OF_DAY = re.compile(r"\d:\d\d|1\d{9}")
"""What times of day and numbers of seconds since 1970 have. Most texts have neither, which is found quickly."""
_CLOCK_SLACK = 1.5
"""By how many seconds the clock of a tool's server may differ, and how coarse its times may be."""


def is_same(recorded: ToolResult, found: ToolResult, may_differ: Sequence[str] = ()) -> bool:
    """Return whether `found` equals `recorded`, except for differences that `ToolSpec.may_differ` allows."""
    if recorded.is_error != found.is_error:
        return False
    if recorded.content == found.content and (may_differ or recorded.artifacts == found.artifacts):
        return True
    return bool(may_differ) and normalize(recorded.content, may_differ) == normalize(
        found.content, may_differ
    )


def shows_clock(text: str, begin: float, end: float) -> bool:
    """Return whether `text` has a date with a time of day between `begin` and `end`, in seconds since the epoch.

    Such a result is equal to a later one only if both were made in the same second. A date without an offset may be
    in any time zone. A time of day without a date does not count, because many texts have such a time by chance.
    """
    if _TIME_OF_DAY.search(text) is None:
        return False
    begin, end = begin - _CLOCK_SLACK, end + _CLOCK_SLACK
    for found in _TIMESTAMP.finditer(text):
        time = _read_time(found[0], gmtime(begin).tm_year)
        if time is None:
            continue
        at, is_local = time
        if begin <= at <= end:
            return True
        # All offsets of time zones are multiples of 15 minutes, up to 14 hours.
        shift = round((at - begin) / 900) * 900
        if is_local and abs(shift) <= 14 * 3600 and begin <= at - shift <= end:
            return True
    return False


def _read_time(text: str, year: int) -> tuple[float, bool] | None:
    """Return a time in seconds since the epoch, and whether its offset is unknown; `None` if it has no time of day.
    `year` is the year of a date that has none."""
    if text.isdecimal() or text.replace(".", "", 1).isdecimal():
        whole = text.partition(".")[0]
        return float(text) / 10 ** (len(whole) - 10), False
    if len(text) < len("Jan 01 00:00:00"):
        return None
    try:
        found = datetime.fromisoformat(text.replace(" UTC", "Z").replace(" GMT", "Z").replace(",", "."))
    except ValueError:
        parts = parsedate(text) or parsedate(f"{text} {year}")
        return None if parts is None else (calendar.timegm(parts), True)
    is_local = found.tzinfo is None
    return (found.replace(tzinfo=UTC) if is_local else found).timestamp(), is_local


def normalize(text: str, may_differ: Sequence[str]) -> str:
    """Return `text` with every part that may differ replaced by a fixed text."""
    is_ordered = True
    for rule in may_differ:
        if rule == "order":
            is_ordered = False
        else:
            text = (_TIMESTAMP if rule == "timestamps" else re.compile(rule)).sub("…", text)
    return text if is_ordered else _sort(text)


def _sort(text: str) -> str:
    try:
        value = None if is_deep(text) else json.loads(text)
        if isinstance(value, list | dict):
            return json.dumps(_sort_json(value), sort_keys=True)
    except ValueError:
        pass
    return "\n".join(sorted(text.splitlines()))


def _sort_json(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _sort_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((_sort_json(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value
