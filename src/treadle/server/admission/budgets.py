"""What the runs of each key have cost in its period, as the journal's listing says it.

Sums are kept. A run that this process drives is read again at the next request after it has changed, and runs of
other processes are looked for every `LOOK_SECONDS`.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import RunNotFoundError
from treadle.journal.listing import Facts
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter, RunInfo
from treadle.models.config.tables import KeyTable
from treadle.server.admission.access import RequestRefused

LOOK_SECONDS = 30.0
"""How late this process may count what other processes have spent."""
_SKEW_SECONDS = 60.0
"""How far the clocks of machines may differ."""
_MAX_CHANGED = 1000
OWNER = "treadle.owner"
"""The label with the name of the key that began a run."""


class _Spending(Struct):
    """What the runs of one key have spent since `since`."""

    since: float
    looked_at: float = 0.0
    is_complete: bool = False
    """False if runs of this process may have changed that nobody has noted."""
    runs: dict[str, tuple[float | None, int]] = {}
    """The cost, `None` if it is not known, and the tokens of each run."""
    before: dict[str, tuple[float | None, int]] = {}
    """What the events of runs say that are older than `since`, or copied from another run."""
    cost_usd: float = 0.0
    tokens: int = 0
    unknown: int = 0
    """How many runs have an unknown cost."""

    def note(self, run_id: str, cost_usd: float | None, tokens: int) -> None:
        """Count a run in place of what was counted for it before."""
        old_cost, old_tokens = self.runs.get(run_id, (0.0, 0))
        self.runs[run_id] = cost_usd, tokens
        self.cost_usd += (cost_usd or 0.0) - (old_cost or 0.0)
        self.tokens += tokens - old_tokens
        self.unknown += (cost_usd is None) - (old_cost is None)


class Budgets:
    """The budgets of a server's keys. It is a hook of the server's agents. See `Hook`."""

    def __init__(self, journal: Journal, keys: Mapping[str, KeyTable]) -> None:
        self._journal = journal
        self._keys = {
            name: key
            for name, key in keys.items()
            if key.max_cost_usd is not None or key.max_tokens is not None
        }
        self._spent: dict[str, _Spending] = {}
        self._changed: set[str] = set()
        """The runs that this process has changed since they were counted."""
        self._lock = asyncio.Lock()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __call__(self, event: e.Event) -> None:
        self.take(event.run_id, event.seq, (event.body,))

    def take(self, run_id: str, first_seq: int, bodies: Iterable[e.DurableBody]) -> None:
        self._changed.add(run_id)
        if len(self._changed) > _MAX_CHANGED:
            self._changed.clear()
            for spent in self._spent.values():
                spent.is_complete = False

    async def check(self, name: str) -> None:
        """Check that a key has not spent its budget. Raises: `RequestRefused`."""
        key = self._keys.get(name)
        if key is None:
            return
        since, until = _period(key.budget_period, datetime.now(UTC))
        async with self._lock:
            spent = self._spent.get(name)
            if spent is None or spent.since != since:
                spent = self._spent[name] = _Spending(since)
            now = time.time()
            is_due = not spent.is_complete or not 0 <= now - spent.looked_at < LOOK_SECONDS
            changed, self._changed = self._changed, set()
            try:
                if changed or is_due:
                    await asyncio.to_thread(self._look, changed, name if is_due else None)
            except BaseException:
                self._changed |= changed
                raise
            if is_due:
                spent.looked_at, spent.is_complete = now, True
        if (said := _find_exceeded(key, spent)) is not None:
            after = {} if until is None else {"retry-after": f"{max(1.0, until - time.time()):.0f}"}
            raise RequestRefused(429, said, "budget_exceeded", {**after, "x-should-retry": "false"})

    def _look(self, changed: Collection[str], name: str | None) -> None:
        """Count runs that have changed, and what is new of the key `name`. Blocks."""
        found = self._journal.runs(RunFilter(run_ids=changed)) if changed else []
        if name is not None:
            spent = self._spent[name]
            since = max(spent.since, spent.looked_at - _SKEW_SECONDS)
            found += self._journal.runs(RunFilter(labels={OWNER: name}, updated_since=since))
        for info in found:
            owned = self._spent.get(info.labels.get(OWNER, ""))
            if owned is not None and info.updated_at >= owned.since:
                cost, tokens = self._before(owned, info)
                known = None if info.cost_usd is None or cost is None else info.cost_usd - cost
                owned.note(info.run_id, known, info.input_tokens + info.output_tokens - tokens)

    def _before(self, spent: _Spending, info: RunInfo) -> tuple[float | None, int]:
        """Return what a run has not spent itself in the period."""
        if info.created_at >= spent.since and info.parent_run_id is None:
            return 0.0, 0
        if info.run_id not in spent.before:
            facts, copied = Facts(), 0
            try:
                for event in self._journal.scan(info.run_id):
                    if isinstance(event.body, e.RunStarted) and event.body.parent is not None:
                        copied = event.body.parent.seq
                    if event.seq > copied and event.body.at >= spent.since:
                        break
                    facts.add((event.body,))
            except RunNotFoundError:
                return info.cost_usd, info.input_tokens + info.output_tokens
            spent.before[info.run_id] = facts.cost_usd, facts.input_tokens + facts.output_tokens
        return spent.before[info.run_id]


def _period(name: str, now: datetime) -> tuple[float, float | None]:
    """Return when the period began in which `now` is, and when it ends, in seconds since the epoch."""
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if name == "day":
        return day.timestamp(), (day + timedelta(days=1)).timestamp()
    if name == "month":
        first = day.replace(day=1)
        return first.timestamp(), (first + timedelta(days=32)).replace(day=1).timestamp()
    return 0.0, None


def _find_exceeded(key: KeyTable, spent: _Spending) -> str | None:
    """Return which budget is spent; `None` if none is."""
    when = {"day": "today", "month": "this month", "total": "in total"}[key.budget_period]
    if key.max_tokens is not None and spent.tokens >= key.max_tokens:
        return f"this key has spent {spent.tokens:,} of its {key.max_tokens:,} tokens {when}"
    if key.max_cost_usd is None:
        return None
    if spent.cost_usd >= key.max_cost_usd:
        return f"this key has spent {spent.cost_usd:.4f} of its {key.max_cost_usd:g} US dollars {when}"
    if spent.unknown:
        return (
            f"the cost of {spent.unknown} of this key's runs is not known; the server's operator has to give the "
            "model a price, or limit max_tokens instead of max_cost_usd"
        )
    return None
