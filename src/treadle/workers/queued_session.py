"""A session whose turns are driven by workers."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from treadle.agent.agent import Agent
from treadle.agent.session import Session
from treadle.core.errors import RunExistsError
from treadle.core.events.narrowing import Event
from treadle.core.types import Usage
from treadle.journal.run_info import QUEUE
from treadle.runs.agent_parts import refuse_missing
from treadle.runs.begin import Beginning, begin
from treadle.runs.options import Given, SessionOptions
from treadle.runs.resume import hand_over
from treadle.runs.run import Run


def used_since(before: tuple[Usage, float | None], run: Run[Any]) -> tuple[Usage, float | None]:
    """Return the tokens and the cost that a run has used after the use `before`; the cost is `None` if it is
    unknown."""
    usage, cost_usd = before
    used = Usage(run.usage.input_tokens - usage.input_tokens, run.usage.output_tokens - usage.output_tokens)
    return used, None if cost_usd is None or run.cost_usd is None else run.cost_usd - cost_usd


def load_run(agent: Agent[Any], run_id: str) -> Run[Any]:
    """Return a run as it is in the journal. Blocks."""
    return Run(run_id, Run.load(run_id, agent.journal).state, agent.journal, agent.answer)


class QueuedSession:
    """A session with the methods of `workers.protocol.WorkedSession`. It holds no lease between its calls.

    A session that was begun without the queue is driven here, because no worker takes it.
    """

    def __init__(
        self,
        agent: Agent[Any],
        run_id: str,
        options: SessionOptions,
        queue: str,
        ended: Callable[[str], Awaitable[None]],
        on_used: Callable[[Usage, float | None], None],
    ) -> None:
        """Make the session. `ended` waits until workers have ended its open turn, and `on_used` is told what they
        have used."""
        refuse_missing(agent.spec, has_model=False, has_tools=False)
        self._agent = agent
        self._run_id = run_id
        self._options = options
        self._queue = queue
        self._ended = ended
        self._on_used = on_used
        self._given = Given(agent.answer, agent.deps)
        self._task = options.get("task")
        self._here = contextlib.AsyncExitStack()
        self._local: Session[Any] | None = None

    async def __aenter__(self) -> "QueuedSession":
        metadata = {**(self._options.get("metadata") or {}), QUEUE: self._queue}
        beginning = Beginning(self._run_id, self._options.get("files"), metadata, is_session=True)
        try:
            driver = await begin(self._agent, self._task, self._given, beginning)
            await driver.leave()
        except RunExistsError:
            if (await self._load()).metadata.get(QUEUE) != self._queue:
                session = self._agent.session(self._run_id, **self._options)
                self._local = await self._here.enter_async_context(session)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._here.aclose()

    async def finish_turn(self) -> Run[Any]:
        """See `Session.finish_turn`. A turn that ended with an error is tried again."""
        if self._local is not None:
            return await self._local.finish_turn()
        run = await self._load()
        if run.state.turn.is_open:
            return await self._await(run.usage, run.cost_usd)
        return await self._hand_over(None) if run.state.has_failed_turn else run

    async def send(self, text: str) -> Run[Any]:
        """See `Session.send`."""
        if self._local is not None:
            return await self._local.send(text)
        return await self._hand_over(text)

    async def grade(self) -> float | None:
        """See `Session.grade`."""
        if self._local is not None:
            return await self._local.grade()
        async with self._agent.session(self._run_id, **self._options) as session:
            return await session.grade()

    async def read_events(self) -> Sequence[Event]:
        """See `Session.read_events`."""
        found = await asyncio.to_thread(self._agent.journal.read, self._run_id)
        return cast("Sequence[Event]", tuple(found))

    async def _await(self, usage: Usage, cost_usd: float | None) -> Run[Any]:
        """Wait for the end of the open turn, and return the run, which had used so much before."""
        await self._ended(self._run_id)
        run = await self._load()
        self._on_used(*used_since((usage, cost_usd), run))
        return run

    async def _hand_over(self, text: str | None) -> Run[Any]:
        """Open the next turn, or the one that failed, and leave it to the workers. Return the run at its end."""
        state = await hand_over(self._agent, self._run_id, self._given, self._task, text)
        return await self._await(state.usage, state.cost_usd)

    async def _load(self) -> Run[Any]:
        return await asyncio.to_thread(load_run, self._agent, self._run_id)
