"""A session: a conversation of any number of turns in one journal."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Generic, Unpack, cast

from treadle.agent.outgoing import Outgoing, count_waits, waiting_seqs
from treadle.agent.overview import SessionSummary, summarize_session
from treadle.agent.run_stream import RunStream
from treadle.agent.sync import block, iterate_blocking
from treadle.core.asking import Answerable
from treadle.core.errors import ConfigError, JournalError, RunExistsError, RunNotFoundError
from treadle.core.events import ContextCompacted, RunPaused, TurnStarted
from treadle.core.events.narrowing import Event, Item
from treadle.core.inbox import Withdraw
from treadle.core.registry import check_options
from treadle.core.state import Status, clone
from treadle.core.types import Delivery, Message, Role
from treadle.loop.driver import Driver
from treadle.loop.listener import Emit
from treadle.loop.wayout import released_on_error, see_through
from treadle.runs.agent_parts import AgentParts
from treadle.runs.begin import Beginning, begin, check_message, make_run_id, read_attachments
from treadle.runs.drive import grade_run, leave, next_queued, open_turn, takes_time, write_back
from treadle.runs.options import (
    Attachable,
    DeliveryName,
    Given,
    SendOptions,
    SessionOptions,
    check_given,
    check_history,
    check_new_run_id,
    check_text,
)
from treadle.runs.recording import user_message
from treadle.runs.resume import go_on, load_task_of, reopen, resume_turn
from treadle.runs.run import Run, T_co
from treadle.tools.protocol import Decision

_STOPPING = ("cancel", "interrupt")
"""The tags of the messages that end what is under way."""


class Session(Generic[T_co]):
    """A conversation. Use it with `async with`, or with `with` and the `_sync` methods.

    A session holds the run's lease until it is closed. The limits of the policy apply to each turn. A session
    can still be used after a turn that failed. If it is opened again, a turn that ended with an error is open
    again.
    """

    def __init__(
        self, agent: AgentParts, run_id: str | None, given: Given, options: SessionOptions | None = None
    ) -> None:
        self._agent = agent
        self._given = given
        self._options = options or {}
        self._task = self._options.get("task")
        self._driver: Driver | None = None
        self._lock = asyncio.Lock()
        """Held while a turn is driven, and until a cancelled turn has recorded its pause."""
        self._users = 0
        """How many tasks hold the lock or wait for it."""
        self._turn: asyncio.Task[Any] | None = None
        """The task that drives a turn."""
        self._opening: asyncio.Task[TurnStarted] | None = None
        """The task that recalls what the next turn needs, or judges its message."""
        self._is_forgotten = False
        """True if the newest turn may not be remembered, because its writing back was stopped."""
        self._outgoing: list[Outgoing[T_co]] = []
        """The messages of this session that were not taken in, or whose senders wait for their turns."""
        self._reopened_turn: int | None = None
        """The number of the turn that had ended with an error and was open again when the session was opened."""
        self._is_called = False
        """True if a message was taken in that somebody else has sent."""
        self._is_last = False
        """True if the session is closed after the newest turn; see `SendOptions.is_last`."""
        self._serving: asyncio.Task[None] | None = None
        """The task that answers messages of other processes while no turn is running."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.run_id = run_id

    async def open(self) -> "Session[T_co]":
        """Begin the session, or continue it from its journal.

        A new session with a given id is in the journal at once, unless it `begins_with_message`; a session without
        a given id is in the journal from its first message on, so that a session without messages leaves nothing
        behind.

        Raises: `LeaseHeldError` if it is open elsewhere; `ConfigError` if the run is not a session, or if a tool
        needs `deps` that were not given; `UntrustedError` if it comes from elsewhere and nobody trusts it.
        """
        run_id = self.run_id or make_run_id()
        is_lazy = self.run_id is None or self._options.get("begins_with_message", False)
        expects_new = is_lazy or self._options.get("expects_new", False)
        driver = None if expects_new else await self._reopen(run_id)
        if driver is None:
            try:
                driver = await self._begin(run_id, is_lazy=is_lazy)
            except RunExistsError:
                driver = await self._reopen(run_id)
                if driver is None:
                    raise
        self.run_id, self._driver, self._loop = run_id, driver, asyncio.get_running_loop()
        driver.mail.on_idle, driver.mail.on_taken = self._hear, self._note_taken
        driver.mail.idle()
        if self._is_called:
            self._wake("")
        return self

    @property
    def is_turn_open(self) -> bool:
        """True if the last turn was interrupted; `finish_turn` continues it."""
        return self._open_driver().state.turn.is_open

    @property
    def has_reopened_turn(self) -> bool:
        """True if the last turn had ended with an error when the session was opened, and is open again."""
        return self.is_turn_open and self._open_driver().state.turn.number == self._reopened_turn

    @property
    def run(self) -> Run[T_co]:
        """The run of the session in its present state."""
        return self._make_run(self._open_driver())

    @property
    def messages(self) -> list[Message]:
        """The whole transcript so far, with the system message and what the model no longer sees."""
        return list(self._open_driver().state.transcript)

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the session as of now: path to content."""
        sandbox = self._open_driver().bench.sandbox
        return {} if sandbox is None else {path: sandbox.read(path) for path in sandbox.paths()}

    @property
    def queued(self) -> list[Message]:
        """The messages that wait for their turns, in order, and those that this session has sent and nobody has
        seen. `send` and `finish_turn` answer those that were left when the session was last closed or its process
        ended."""
        waiting = [message for _, message in self._open_driver().state.queued]
        return waiting + [item.message for item in self._outgoing if item.is_unseen]

    async def send(self, text: str, **options: Unpack[SendOptions]) -> Run[T_co]:
        """Run one turn with `text` as the user's message, and return the run. See `SendOptions`.

        Other tasks may call it while a turn is running. The message is then stored at once, and delivered as
        `delivery` says. The returned run has the outcome of the turn that answers the message: for `steer` the
        running one, or the next if the running one ends before the model has seen the message. If no turn is
        running, an interrupted one is finished first; `interrupt` ends it instead, also if it waits for an answer
        or an approval.

        Cancelling ends the turn. A message that is still waiting for its turn is kept, and answered with the next.

        Raises: `ConfigError` if the previous turn waits for an answer or an approval, or if the model cannot be
        sent an attachment; the session is then unchanged. A message is kept if the turn before it begins to wait
        only when it is finished.
        """
        check_options(options, SendOptions.__optional_keys__, "send")
        check_given(options)
        check_text(text)
        attach, on_event = options.get("attach", ()), options.get("on_event")
        delivery = Delivery(options.get("delivery") or Delivery.QUEUE)
        parts, blobs = await asyncio.to_thread(read_attachments, attach) if attach else ((), {})
        own = options.get("is_own", False)
        driver, message = self._open_driver(), Message(Role.USER, text, parts=parts, is_own=own)
        check_message(self._agent, message)
        blobs = {**blobs, **options.get("blobs", {})}
        state, is_quiet = driver.state, self._users == 0 and not driver.mail.is_waiting
        if is_quiet and delivery is not Delivery.INTERRUPT:
            self._check_waits_for_nobody(driver)
        if not is_quiet or state.queued or state.turn.is_open or takes_time(self._agent):
            return await self._await_turn(message, blobs, delivery, on_event)
        async with self._alone():
            driver.listen(on_event)
            driver.put(await open_turn(self._agent, driver, message), blobs=blobs or None)
            return await self._drive(on_event, is_last=options.get("is_last", False))

    def post(self, text: str, delivery: Delivery | DeliveryName = Delivery.QUEUE) -> None:
        """Store a message for the running turn or the next one, without waiting for its answer.

        It is called in the session's event loop. `finish_turn` and the next `send` answer messages that wait.
        """
        check_given({"delivery": delivery})
        self._post(Message(Role.USER, check_text(text)), {}, Delivery(delivery), is_awaited=False)

    async def withdraw(self, message: Message) -> None:
        """Take back a message of `queued`, unless a turn has begun with it by then."""
        driver = self._open_driver()
        self._agent.journal.posting(driver.run_id, Withdraw(message))
        if self._users == 0:
            async with self._alone():
                await driver.mail.take_in()

    def stream(
        self, text: str, *, attach: Sequence[Attachable] = (), blobs: Mapping[str, bytes] = {}
    ) -> RunStream[T_co]:
        """Return an async iterator that runs a turn as `send` does, and yields its events and deltas."""
        return RunStream(
            lambda emit: self.send(text, attach=attach, blobs=blobs, on_event=emit),
            lambda text: self.post(text, Delivery.STEER),
        )

    async def finish_turn(
        self,
        *,
        answers: Mapping[str, Answerable] | None = None,
        approvals: Mapping[str, Decision | bool] | None = None,
        on_event: Emit | None = None,
    ) -> Run[T_co]:
        """Continue a turn that was interrupted, or that waits for an answer or an approval, and return the run.

        Then messages that were left in the queue are answered, each in a turn, and the returned run has the
        outcome of the last one. `answers` and `approvals` are as for `Agent.resume`. For approvals that are not
        given, the agent's approver is asked again. Raises: `ConfigError` for an answer or an approval that the
        turn does not wait for.
        """
        async with self._alone():
            driver = self._open_driver()
            if driver.state.status is Status.PAUSED or answers or approvals:
                driver.listen(on_event)
                resume_turn(self._agent, driver, self._task, answers, approvals)
            run = await self._drive(on_event)
            while next_queued(driver.state) is not None and not self._has_senders:
                run = await self._drive(on_event, next_queued(driver.state))
            return run

    async def retry_turn(self, *, on_event: Emit | None = None) -> Run[T_co]:
        """Try the last turn again, which ended with an error, and return the run. Messages in the queue still wait.

        Raises: `ConfigError` if it did not end with an error.
        """
        async with self._alone():
            driver = self._open_driver()
            if not (driver.state.has_failed_turn or self.has_reopened_turn):
                raise ConfigError(f"the last turn of session {self.run_id!r} did not end with an error")
            driver.listen(on_event)
            resume_turn(self._agent, driver, self._task, None, None)
            return await self._drive(on_event)

    async def compact(self, *, is_whole: bool = False) -> ContextCompacted | None:
        """Compact the context now: old results are cut, and all but the newest turns are summarised. If it
        `is_whole`, one summary replaces everything but the user's messages, however short the conversation is.

        Return the event that says what was cut and summarised; `None` if there is nothing to compact. Contexts
        are also compacted by themselves when they become too long; see `Policy.compact_at`. Raises:
        `ConfigError` if a turn is open.
        """
        async with self._alone():
            driver = self._open_driver()
            if driver.state.turn.is_open:
                raise ConfigError(
                    f"a turn of session {self.run_id!r} is open; finish it with `session.finish_turn()`"
                )
            return await driver.compact(is_whole=is_whole)

    async def grade(self) -> float | None:
        """Grade the last turn with the check of the session's task, and return the reward.

        A turn that was graded is not graded again. The result is `None` if the session has no task, or its turn is
        open or failed through no fault of the model.
        """
        async with self._alone():
            driver = self._open_driver()
            if self._task is not None and driver.state.turn.number and not driver.state.turn.is_open:
                if "check" not in driver.state.turn.rewards:
                    await grade_run(driver, self._task)
                await self._settle(driver)
            return driver.state.turn.rewards.get("check")

    async def read_events(self) -> Sequence[Event]:
        """Return the events so far. They are read from the journal, unless this session began the run and
        `keeps_events`."""
        driver = self._open_driver()
        await self._settle(driver)
        found = driver.recorder.kept_events
        if not driver.recorder.is_held and (found is None or len(found) != driver.state.seq):
            await driver.kept()
            found = await asyncio.to_thread(self._agent.journal.read, driver.run_id)
        return cast("Sequence[Event]", tuple(found or ()))

    async def summary(self) -> SessionSummary:
        """Return what happened in the session so far: its title, counts, tokens, cost and open questions."""
        driver = self._open_driver()
        events = await self.read_events()
        return await asyncio.to_thread(
            lambda: summarize_session(driver.run_id, [event.body for event in events])
        )

    async def close(self) -> None:
        """Wait for the running turn and for the turns of messages that were sent, then release the run, so that
        any process can open it again.

        A `close` that is cancelled while it waits cancels the turn. Calling it again does nothing.
        """
        try:
            await self._lock.acquire()
            while self._has_senders:
                self._lock.release()
                await self._lock.acquire()
        except asyncio.CancelledError:
            # Turns that wait find the session closed.
            driver, self._driver = self._driver, None
            if self._turn is not None:
                self._turn.cancel()
            await see_through(lambda: self._leave(driver))
            raise
        try:
            driver, self._driver = self._driver, None
            if driver is not None:
                await self._close(driver)
        finally:
            self._lock.release()

    async def _close(self, driver: Driver) -> None:
        """Record the pause and release the run, in one write. Raises: `JournalError` if the end of the last turn
        cannot be stored."""
        state, bench = driver.state, driver.bench
        is_at_rest = state.turn.asked is None and state.status is Status.RUNNING
        with suppress(JournalError):  # `leave` gives the lease back all the same
            if is_at_rest and not driver.recorder.is_held:
                driver.put(RunPaused(reason="closed"))
                if bench.scope.is_empty and not bench.hooks and not driver.mail.is_waiting:
                    # A cancellation does not keep the write with the release from being stored.
                    await driver.recorder.writer.release()
                    await driver.kept()
                    if not driver.mail.is_waiting:
                        return
        await leave(driver, None if state.status is Status.PAUSED else "closed")
        if self._is_last:
            await driver.kept()

    async def _leave(self, driver: Driver | None) -> None:
        async with self._lock:
            if driver is not None:
                await leave(driver, "closed")

    def send_sync(self, text: str, **options: Unpack[SendOptions]) -> Run[T_co]:
        """Call `send` and block until it returns. Any thread but that of the session's loop may call it."""
        return block(lambda: self.send(text, **options), "await session.send(...)", self._loop)

    def finish_turn_sync(
        self,
        *,
        answers: Mapping[str, Answerable] | None = None,
        approvals: Mapping[str, Decision | bool] | None = None,
        on_event: Emit | None = None,
    ) -> Run[T_co]:
        """Call `finish_turn` and block until it returns. Any thread may call it, as `send_sync`."""
        return block(
            lambda: self.finish_turn(answers=answers, approvals=approvals, on_event=on_event),
            "await session.finish_turn(...)",
            self._loop,
        )

    def retry_turn_sync(self, *, on_event: Emit | None = None) -> Run[T_co]:
        """Call `retry_turn` and block until it returns. Any thread may call it, as `send_sync`."""
        return block(lambda: self.retry_turn(on_event=on_event), "await session.retry_turn()", self._loop)

    def stream_sync(self, text: str, *, attach: Sequence[Attachable] = ()) -> Iterator[Item]:
        """Return the items of `stream` as a plain iterator. Any thread may call it, as `send_sync`."""
        stream = self.stream(text, attach=attach)
        return iterate_blocking(stream, "async for event in session.stream(...)", self._loop)

    async def __aenter__(self) -> "Session[T_co]":
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> "Session[T_co]":
        return block(self.open, "async with agent.session()")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block(self.close, "async with agent.session()")

    async def _begin(self, run_id: str, *, is_lazy: bool) -> Driver:
        check_new_run_id(run_id)
        beginning = Beginning(
            run_id,
            self._options.get("files"),
            self._options.get("metadata"),
            is_session=True,
            is_lazy=is_lazy,
            history=check_history(self._options.get("history", ())),
        )
        return await _keep(await begin(self._agent, self._task, self._given, beginning))

    async def _reopen(self, run_id: str) -> Driver | None:
        """Return a driver for a session that exists, or `None` if the journal has no such run."""
        try:
            state, writer = await reopen(self._agent, run_id, trust=self._given.trust)
        except RunNotFoundError:
            return None
        async with released_on_error(writer):
            if state.started is None or not state.started.is_session:
                raise ConfigError(f"run {run_id!r} is not a session; fork it to go on from it")
            self._task = self._task or load_task_of(state.started)
            self._reopened_turn = state.turn.number if state.has_failed_turn else None
            driver = await go_on(self._agent, state, writer, self._given, self._task)
            # A process that was killed after the turn may not have remembered it.
            await write_back(self._agent, run_id, driver.state)
        self._is_called = driver.mail.is_waiting
        return await _keep(driver)

    def _open_driver(self) -> Driver:
        if self._driver is None:
            raise ConfigError(
                "the session is not open; use it within `async with agent.session() as session`"
            )
        return self._driver

    @property
    def _has_senders(self) -> bool:
        return any([item.is_awaited for item in self._outgoing])

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Wait until no other task drives a turn, and let no other drive one meanwhile."""
        self._users += 1
        try:
            async with self._lock:
                yield
        finally:
            self._users -= 1

    def _post(
        self, message: Message, blobs: Mapping[str, bytes], delivery: Delivery, *, is_awaited: bool
    ) -> Outgoing[T_co]:
        """Send a message to the inbox of the session's run."""
        driver = self._open_driver()
        driver.recorder.append_held()
        number = self._agent.journal.posting(driver.run_id, user_message(message, delivery), blobs or None)
        self._outgoing.append(item := Outgoing[T_co](message, number, is_awaited=is_awaited))
        return item

    def _note_taken(self, number: int, seq: int | None) -> None:
        """Note that a message was taken in. `seq` is the number of its event."""
        for item in self._outgoing:
            if item.is_unseen and item.number.done() and item.number.result() == number:
                item.is_unseen, item.seq = False, seq
                if not item.is_awaited:
                    self._outgoing.remove(item)
                return
        self._is_called = True

    def _hear(self, kind: str) -> None:
        """Answer messages that arrive while no turn is running. Any thread may call this."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake, kind)

    def _wake(self, kind: str) -> None:
        if self._opening is not None and kind in _STOPPING:
            self._opening.cancel()
        elif self._driver is not None and (self._serving is None or self._serving.done()):
            self._serving = asyncio.ensure_future(self._answer_mail())

    async def _answer_mail(self) -> None:
        """Take in what has arrived, go on with a turn that waited for it, and answer messages of others."""
        async with self._alone():
            driver = self._driver
            if driver is None:
                return
            waits = count_waits(driver.state)
            if driver.mail.is_waiting:
                await driver.mail.take_in()
            if driver.state.status is Status.PAUSED and count_waits(driver.state) < waits:
                resume_turn(self._agent, driver, self._task, None, None)
                await self._drive(None)
            while self._is_called and not self._has_senders and next_queued(driver.state) is not None:
                await self._drive(None, next_queued(driver.state))
            self._is_called = False

    async def _await_turn(
        self, message: Message, blobs: Mapping[str, bytes], delivery: Delivery, emit: Emit | None
    ) -> Run[T_co]:
        """Store a message, and return the run of the turn that answers it."""
        # Nothing is awaited before this task waits for the lock, so each sender holds it or waits for it.
        own = self._post(message, blobs, delivery, is_awaited=True)
        try:
            while True:
                async with self._alone():
                    if (driver := self._driver) is None:
                        raise ConfigError(
                            f"session {self.run_id!r} was closed before its message {message.content!r:.80} was "
                            "answered; it is kept, and answered when the session is opened again"
                        )
                    if driver.mail.is_waiting:
                        await driver.mail.take_in()
                    if own.is_unseen:
                        own.number.result()  # raises the error of the store
                    state, waiting = driver.state, next_queued(driver.state)
                    if own.seq not in waiting_seqs(state):
                        return own.run or self._make_run(driver)
                    if waiting is None:
                        await self._drive(emit)
                        self._check_waits_for_nobody(driver)
                    elif waiting[0] == own.seq:
                        # From here on the turn is this task's, as if it had found no turn running.
                        return await self._drive(emit, waiting)
                    elif waiting[0] not in [item.seq for item in self._outgoing]:
                        await self._drive(emit, waiting)
        finally:
            own.is_awaited = False
            if not own.is_unseen:
                self._outgoing.remove(own)

    def _check_waits_for_nobody(self, driver: Driver) -> None:
        """Raise a `ConfigError` if the turn waits for somebody."""
        if driver.state.turn.is_open and driver.state.status is Status.PAUSED:
            raise ConfigError(
                f"session {self.run_id!r} waits for an answer or an approval; give it with "
                "`session.finish_turn(answers=..., approvals=...)`"
            )

    async def _drive(
        self, emit: Emit | None, waiting: tuple[int, Message] | None = None, *, is_last: bool = False
    ) -> Run[T_co]:
        """Drive the open turn, or begin and drive that of a message which is `waiting` in the queue."""
        driver, self._turn = self._open_driver(), asyncio.current_task()
        self._is_last = is_last and emit is None and self._agent.known is None
        driver.listen(emit)
        try:
            if waiting is not None:
                await self._begin_turn(driver, waiting)
            await driver.drive()
            await self._settle(driver)
            await self._remember(driver)
        except asyncio.CancelledError:
            driver.give_up_listener()
            stop = driver.pause if self._options.get("pauses_when_cancelled") else driver.abandon
            await see_through(lambda: stop("cancelled"))
            raise
        finally:
            self._turn = None
            driver.listen(None)
            run, left = self._make_run(driver), waiting_seqs(driver.state)
            for item in self._outgoing:
                if not item.is_unseen and item.seq not in left and item.run is None:
                    item.run = run
        return run

    async def _settle(self, driver: Driver) -> None:
        """Wait until all is durable, unless the session is closed next, which waits too."""
        if not self._is_last:
            await driver.kept()

    async def _begin_turn(self, driver: Driver, waiting: tuple[int, Message]) -> None:
        """Begin the turn of a message that waits. If it is stopped meanwhile, nothing is recalled for it."""
        if self._is_forgotten:
            await self._remember(driver)
        seq, message = waiting
        opened = TurnStarted(turn=driver.state.turn.number + 1, message=message, queued_seq=seq)
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._opening = asyncio.ensure_future(open_turn(self._agent, driver, message, queued_seq=seq))
        try:
            opened = await self._opening
        except asyncio.CancelledError:
            driver.put(opened)
            if task.cancelling() > before:  # and not only by a message
                raise
        else:
            driver.put(opened)
        finally:
            self._opening = None

    async def _remember(self, driver: Driver) -> None:
        """Write the newest turn to the agent's memory. If this is stopped, it is done before the next turn."""
        self._is_forgotten = self._agent.known is not None
        await write_back(self._agent, driver.run_id, driver.state)
        self._is_forgotten = False

    def _make_run(self, driver: Driver) -> Run[T_co]:
        return Run(driver.run_id, clone(driver.state), self._agent.journal, self._given.answer)


async def _keep(driver: Driver) -> Driver:
    """Wait until the driver's events are durable, take in the messages that wait, and return it. If the store
    fails, give the run up."""
    try:
        await driver.kept()
        if driver.mail.is_waiting:
            await driver.mail.take_in()
    except BaseException:
        await leave(driver, None)
        raise
    return driver
