"""Recordings: runs in files that a repository keeps, as JSON with an event each, without secrets.

The file has the events of an exported run, indented so that a diff can be read, and without checksums, so that a
person may edit it. Exact tokens are left out. It is read by the same code that imports a journal.
"""

import asyncio
import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError
from treadle.core.state import Status
from treadle.core.texts.masking import hide_keys, mask_of
from treadle.core.types import StopReason
from treadle.export.whole import write_whole
from treadle.journal.jsonl import export_run, import_lines
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.runs.run import Run

B = TypeVar("B", bound=e.Body)
ENDING = ".run.json"
"""The ending of the names of recordings."""
_KEPT_NAMES = frozenset(
    ("type", "name", "call_id", "parent_call_id", "run_id", "question_id", "digest", "snapshot_id", "role")
)
"""The fields that are names and ids, in which nothing is replaced."""
_UNUSABLE = (StopReason.ERROR, StopReason.CANCELLED, StopReason.DEADLINE, StopReason.REFUSED)
"""How turns end that did not get the answers of the model that they asked for."""
_EVENT = re.compile(r'^ \{|^\{"', re.MULTILINE)


class Redaction:
    """The removal of secrets from texts: keys of servers, values of secret variables, and the user's patterns."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """Raises: `ConfigError` for a pattern that is no regular expression."""
        self._patterns = compile_patterns("redact", patterns)
        self._mask = mask_of(os.environ)

    def hide(self, text: str) -> str:
        """Return `text` without secrets."""
        text = hide_keys(self._mask.hide(text))
        for pattern in self._patterns:
            text = pattern.sub("***", text)
        return text

    def check(self, recorded: "RecordedRun") -> None:
        """Check that a recording has no secrets. Raises: `ConfigError` that names the event."""
        for event in recorded.events:
            value = json.loads(event.to_json())
            if self.hide_event(value) != value:
                raise ConfigError(
                    f"event {event.seq} of {str(recorded.path)!r} has what looks like a secret, at line "
                    f"{recorded.line_of(event.seq)}; replace it by *** in the file, and revoke it if it is one"
                )

    def hide_event(self, value: Any) -> Any:
        """Return the JSON of an event without secrets. Raises: `ConfigError` if a file has one."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, list):
            return [self.hide_event(item) for item in value]
        if not isinstance(value, dict):
            return value
        for digest, text in (value.get("contents") or {}).items():
            self._check_content(value, digest, base64.b64decode(text))
        return {
            key: item if key in _KEPT_NAMES or key == "contents" else self.hide_event(item)
            for key, item in value.items()
        }

    def _check_content(self, event: dict[str, Any], digest: str, content: bytes) -> None:
        with suppress(UnicodeDecodeError):
            if self.hide(text := content.decode()) != text:
                changed = (event.get("delta") or {}).get("changed") or {}
                what = next(
                    (f"the file {path!r}" for path, known in changed.items() if known == digest), "a file"
                )
                raise ConfigError(
                    f"{what} of the run has a secret, which a recording must not have; record a run without it"
                )


def compile_patterns(key: str, patterns: Iterable[str]) -> list[re.Pattern[str]]:
    """Return compiled patterns. Raises: `ConfigError` that names the key of treadle.toml."""
    found = []
    for pattern in patterns:
        try:
            found.append(re.compile(pattern))
        except re.error as error:
            raise ConfigError(
                f"test.{key} has {pattern!r}, which is no regular expression: {error}"
            ) from error
    return found


class RecordedRun(Struct, frozen=True):
    """A recording that was read."""

    path: Path
    name: str
    """The name of the recording."""
    run_id: str
    events: Sequence[e.Event]
    journal: MemoryJournal
    """The journal that has this run alone."""
    lines: Sequence[int]
    """The line of the file in which each event begins, from 1."""

    @property
    def started(self) -> e.RunStarted:
        """The first event."""
        started = self.events[0].body
        assert isinstance(started, e.RunStarted)
        return started

    def bodies_of(self, kind: type[B]) -> list[B]:
        return [event.body for event in self.events if isinstance(event.body, kind)]

    @property
    def run(self) -> Run[Any]:
        """The run in its last state."""
        return Run.load(self.run_id, self.journal)

    def line_of(self, seq: int) -> int:
        """Return the line of the file in which the event with this number begins."""
        return self.lines[seq - 1] if 0 < seq <= len(self.lines) else 1


async def read_recording(path: Path, name: str = "") -> RecordedRun:
    """Return the recording in a file, with its name by default. Raises: `ConfigError` for a wrong file."""
    try:
        text = await asyncio.to_thread(path.read_text, "utf-8")
        events = json.loads(text)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no recording {str(path)!r}; make it with `treadle test record RUN`"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} is no recording: {error}; record the run again") from error
    if not isinstance(events, list) or not events or not all(isinstance(event, dict) for event in events):
        raise ConfigError(f"{str(path)!r} is no recording: it is not a list of events; record the run again")
    journal = MemoryJournal()
    try:
        run_ids = (await import_lines(journal, [json.dumps(event).encode() for event in events])).added
    except (JournalError, TypeError) as error:
        place = re.sub(r"^line (\d+)", r"event \1", str(error))
        raise ConfigError(f"{str(path)!r} cannot be read: {place}") from error
    if len(run_ids) != 1:
        raise ConfigError(f"{str(path)!r} has {len(run_ids)} runs; a recording has one")
    lines = [text.count("\n", 0, found.start()) + 1 for found in _EVENT.finditer(text)]
    name = name or path.name.removesuffix(ENDING)
    recorded = RecordedRun(path, name, run_ids[0], journal.read(run_ids[0]), journal, lines)
    check_usable(recorded.run, [event.body for event in recorded.events], f"the recording {str(path)!r}")
    return recorded


def check_usable(run: Run[Any], bodies: Sequence[e.DurableBody], what: str) -> None:
    """Check that all turns of a run have ended with answers. Raises: `ConfigError`."""
    ended = [body for body in bodies if isinstance(body, e.TurnCompleted)]
    if (
        run.state.turn.is_open
        or not ended
        or (run.status is not Status.FINISHED and not run.state.is_session)
    ):
        raise ConfigError(
            f"{what} has not ended; finish it with `treadle resume {run.run_id}`, then record it"
        )
    for body in ended:
        if body.stop_reason in _UNUSABLE:
            why = f" ({body.error:.200})" if body.error else ""
            raise ConfigError(
                f"turn {body.turn} of {what} ended with {body.stop_reason.value!r}{why}, so the model's answer is "
                "missing; record a run whose turns have ended with an answer"
            )
    if run.state.is_relayed:
        raise ConfigError(
            f"{what} is of another program that only asked for answers, such as an environment that plays its "
            "tasks itself; its prompts and tools are that program's, so it has no agent to test"
        )


def write_recording(journal: Journal, run_id: str, path: Path, redaction: Redaction) -> None:
    """Write a run as a recording, in place of one that is there. Blocks.

    Raises: `RunNotFoundError`; `ConfigError` if the run has not ended with an answer, or if a file has a secret.
    """
    run = Run.load(run_id, journal)
    check_usable(run, [event.body for event in journal.read(run_id)], f"run {run_id!r}")
    events = []
    for line in export_run(journal, run_id):
        event = json.loads(line)
        event.pop("export", None)
        if event["type"] == "inference_completed":
            event["completion"].pop("tokens", None)
        events.append(redaction.hide_event(event))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole([json.dumps(events, indent=1, ensure_ascii=False).encode()], path)


def find_recordings(folder: Path, matches: Callable[[str], bool]) -> list[Path]:
    """Return the recordings in a folder and its folders whose names match, sorted."""
    found = sorted(folder.rglob(f"*{ENDING}"))
    return [path for path in found if matches(path.relative_to(folder).as_posix().removesuffix(ENDING))]
