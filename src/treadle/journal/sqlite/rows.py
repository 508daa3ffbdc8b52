"""Facts as columns of the tables `runs` and `heads`, and filling these columns in files of older versions."""

import sqlite3
from typing import Any

import msgspec

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.journal.facts import Facts, facts_of

RUN_COLUMNS = (
    "status", "stop_reason", "fault", "error", "created_at", "model", "task_set", "task_id", "parent_run_id",
    "labels", "input", "is_session", "is_turn_open", "waiting", "turns", "reward", "has_failed",
)  # fmt: skip
"""The facts in `runs`: they change with a turn at most. `labels` and `waiting` are JSON, NULL if empty."""

HEAD_COLUMNS = (
    "events", "updated_at", "steps", "input_tokens", "cached_input_tokens", "output_tokens", "cost_usd",
    "context_chars",
)  # fmt: skip
"""The facts in `heads`: they change with every commit of the run."""

COLUMNS = ", ".join([*[f"runs.{name}" for name in RUN_COLUMNS], *[f"heads.{name}" for name in HEAD_COLUMNS]])
"""The columns of all facts for a SELECT, in the order that `facts_from` expects."""

_FILL_RUN = f"UPDATE runs SET {', '.join(f'{name}=?' for name in RUN_COLUMNS)} WHERE id=?"
_FILL_HEAD = f"UPDATE heads SET {', '.join(f'{name}=?' for name in HEAD_COLUMNS)} WHERE run=?"

_encode = msgspec.json.Encoder().encode
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_decode_waiting = msgspec.json.Decoder(tuple[str, ...]).decode


def run_values(facts: Facts) -> tuple[object, ...]:
    """Return the values of `RUN_COLUMNS`."""
    return (
        facts.status,
        facts.stop_reason,
        facts.fault,
        facts.error,
        facts.created_at,
        facts.model,
        facts.task_set,
        facts.task_id,
        facts.parent_run_id,
        _encode(facts.labels).decode() if facts.labels else None,
        facts.input,
        facts.is_session,
        facts.is_turn_open,
        _encode(facts.waiting).decode() if facts.waiting else None,
        facts.turns,
        facts.reward,
        facts.has_failed,
    )


def head_values(facts: Facts) -> tuple[object, ...]:
    """Return the values of `HEAD_COLUMNS`. `events` is NULL if the facts must be computed again."""
    return (
        facts.events if facts.is_exact else None,
        facts.updated_at,
        facts.steps,
        facts.input_tokens,
        facts.cached_input_tokens,
        facts.output_tokens,
        facts.cost_usd,
        facts.context_chars,
    )


def facts_from(row: tuple[Any, ...]) -> Facts:
    """Return the facts that a row of `COLUMNS` holds."""
    values: dict[str, Any] = dict(zip((*RUN_COLUMNS, *HEAD_COLUMNS), row, strict=True))
    values["labels"] = _decode_labels(values["labels"]) if values["labels"] else {}
    values["waiting"] = _decode_waiting(values["waiting"]) if values["waiting"] else ()
    for name in ("is_session", "is_turn_open", "has_failed"):
        values[name] = bool(values[name])
    return Facts(**values)


def fill_facts(db: sqlite3.Connection, *, key: int | None = None, limit: int = 200) -> int:
    """Compute the facts of runs that have none yet, and return the number of these runs.

    Looks at the run with the row `key`, or else at the first `limit` runs without facts.
    """
    where = "heads.run = ?" if key is not None else "1 ORDER BY heads.run LIMIT ?"
    rows = db.execute(
        "SELECT heads.run, runs.status, runs.stop_reason, runs.created_at FROM heads "
        f"JOIN runs ON runs.id = heads.run WHERE heads.events IS NULL AND {where}",
        (limit if key is None else key,),
    ).fetchall()
    for run, status, stop_reason, created_at in rows:
        frames = db.execute(CHAIN, (run, 1)).fetchall()
        try:
            facts = facts_of([e.decode_body(raw) for _, body in frames for raw in body.splitlines()])
        except JournalError:  # the listing shows the run; reading it raises the error
            count = sum(len(body.splitlines()) for _, body in frames)
            facts = Facts(status=status, stop_reason=stop_reason, created_at=created_at, events=count)
        db.execute(_FILL_RUN, (*run_values(facts), run))
        db.execute(_FILL_HEAD, (*head_values(facts), run))
    return len(rows)


CHAIN = (
    "WITH RECURSIVE chain(id) AS ("
    "SELECT frame FROM heads WHERE run=? UNION ALL "
    "SELECT previous FROM frames JOIN chain USING(id) WHERE previous > 0 AND seq > ?"
    ") SELECT seq, body FROM chain JOIN frames USING(id) ORDER BY id"
)
"""The frames of a run that hold the events from a seq on, in order."""
