"""A session: a conversation of any number of turns in one journal."""

import asyncio
import time
from types import TracebackType
from typing import TYPE_CHECKING

from treadle.agent.agent import RunStream, turn_started
from treadle.agent.run import Run
from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError, RunNotFoundError
from treadle.core.state import Status
from treadle.http.background import run_blocking
from treadle.journal.protocol import RunWriter
from treadle.loop.driver import Driver, Emit

if TYPE_CHECKING:
    from treadle.agent.agent import Agent, Files


class Session:
    """Use it with `async with` (or `with` and the `_sync` methods). It holds the run's lease until closed.

    The limits of the policy count for each turn. A turn that fails leaves the session as it is.
    """

    def __init__(self, agent: "Agent", run_id: str | None, files: "Files | None") -> None:
        self._agent = agent
        self._files = files
        self._driver: Driver | None = None
        self._writer: RunWriter | None = None
        self._lock = asyncio.Lock()
        self.run_id = run_id

    async def open(self) -> "Session":
        """Begin, or go on where the journal stops.

        Raises: `LeaseHeldError` if it is open elsewhere; `ConfigError` if the run is no session.
        """
        agent = self._agent
        if self.run_id is not None:
            try:
                state, self._writer = await agent._open(self.run_id)
            except RunNotFoundError:
                pass
            else:
                if state.started is None or not state.started.is_session:
                    await self._writer.release()
                    raise ConfigError(f"run {self.run_id!r} is not a session; fork it to go on from it")
                self._driver = agent._driver(state, self._writer, agent._restore(state), None)
                if state.status is not Status.NEW:
                    self._driver.record(e.RunResumed(at=time.time()))
                await self._driver.sync()
                return self
        self._driver, self._writer = agent._begin(
            None,
            run_id=self.run_id,
            files=self._files,
            metadata=None,
            schema=agent.schema,
            is_session=True,
            emit=None,
        )
        self.run_id = self._writer.run_id
        await self._driver.sync()
        return self

    @property
    def is_turn_open(self) -> bool:
        """The last turn was interrupted; `finish_turn` goes on with it."""
        return self._open_driver().state.is_turn_open

    async def send(self, text: str, *, on_event: Emit | None = None) -> Run:
        """One turn. A turn that was interrupted is finished first. Turns sent at once follow each other.

        Raises: `ConfigError` if the turn before waits for the user's answer to a question.
        """
        async with self._lock:
            driver = self._open_driver()
            if driver.state.is_turn_open:
                await self._drive(on_event)
            if driver.state.is_turn_open:
                raise ConfigError(
                    f"session {self.run_id!r} waits for an answer or a yes; close it and give it with "
                    "`agent.resume(run_id, answers=..., approvals=...)`"
                )
            driver.listen(on_event)
            driver.record(turn_started(driver.state, text))
            return await self._drive(on_event)

    def stream(self, text: str) -> "RunStream":
        """The turn's events and deltas."""
        return RunStream(lambda emit: self.send(text, on_event=emit))

    async def finish_turn(self, *, on_event: Emit | None = None) -> Run:
        """Go on with a turn that was interrupted."""
        async with self._lock:
            return await self._drive(on_event)

    async def close(self) -> None:
        """Give the run back; it can be opened again, here or in another process. Idempotent."""
        driver, writer = self._driver, self._writer
        self._driver = self._writer = None
        if driver is None or writer is None:
            return
        try:
            await driver.close()
            await driver.pause("closed")
        except JournalError:
            # Whoever drives it now, or the store's trouble, has been met by the turn itself.
            return
        finally:
            await writer.release()

    def send_sync(self, text: str, *, on_event: Emit | None = None) -> Run:
        """`send`, blocking."""
        return run_blocking(self.send(text, on_event=on_event))

    async def __aenter__(self) -> "Session":
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> "Session":
        return run_blocking(self.open())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_blocking(self.close())

    def _open_driver(self) -> Driver:
        if self._driver is None:
            raise ConfigError(
                "the session is not open; use it within `async with agent.session() as session`"
            )
        return self._driver

    async def _drive(self, emit: Emit | None) -> Run:
        driver = self._open_driver()
        driver.listen(emit)
        try:
            state = await driver.drive()
            await driver.sync()
        except asyncio.CancelledError:
            await asyncio.shield(driver.abandon("cancelled"))
            raise
        finally:
            driver.listen(None)
        assert self.run_id is not None
        return Run(self.run_id, state, self._agent.journal)
