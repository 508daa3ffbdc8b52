"""One request of a client for the next message of a conversation: a turn of a run, or the rest of one.

Nothing here drives a run in a way of its own. For a model, the run is relayed (`RunStarted.is_relayed`): its driver
asks the model once. For an agent, the agent's loop answers. Two commits are on the way of an answer: the request is
kept before the model is asked, and the answer before its end is sent.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.asking import open_questions
from treadle.core.calls import external_calls, waiting_calls
from treadle.core.errors import ConfigError, JournalError, LeaseHeldError, RunNotFoundError
from treadle.core.inbox import Cancel
from treadle.core.state import State, Status
from treadle.core.types import (
    Completion,
    Delivery,
    FinishReason,
    Json,
    Message,
    Role,
    ToolCall,
    ToolErrorKind,
    ToolResult,
)
from treadle.journal.protocol import RunWriter
from treadle.journal.run_info import QUEUE
from treadle.loop.driver import Driver
from treadle.loop.wayout import released_on_error
from treadle.models.protocol import pass_on
from treadle.models.wire.served import ServedRequest, join_words, read_form
from treadle.runs.agent_parts import AgentParts, require_trust
from treadle.runs.begin import Beginning, begin
from treadle.runs.drive import leave, open_turn
from treadle.runs.options import Given, check_history
from treadle.runs.recording import read_given, take_in_rest
from treadle.runs.resume import go_on
from treadle.runs.run import Run
from treadle.server.admission.access import ApiCaller, RequestRefused
from treadle.server.admission.idempotency import KeyedRequest, new_run_id
from treadle.server.catalog import ClientWish, check_choice
from treadle.server.gateway.conversations import OPENING, ConversationDigest, Renewal, opening_of
from treadle.server.gateway.gateway_host import GatewayHost
from treadle.server.no_answer import NoAnswerError, explain_ending
from treadle.server.responses.response_fold import ASK
from treadle.server.responses.response_ids import run_named_by, wire_call_id
from treadle.server.responses.response_turn import METADATA

_LEFT = "the client left"
_UNSTORED_SECONDS = 0.02
OnDelta = Callable[[e.Delta], None]


class RunNaming(Struct, frozen=True):
    """What the headers of a request say about its run."""

    run_id: str | None = None
    """The run that the conversation belongs to, new or not; `None`: it is found."""
    labels: Mapping[str, str] = {}
    """The labels of a new run."""
    keyed: KeyedRequest | None = None
    """The idempotency key of the request."""


class ClientTurn:
    """One request, from its run to the answer."""

    def __init__(self, host: GatewayHost, caller: ApiCaller, asked: ServedRequest, named: RunNaming) -> None:
        self._host = host
        self._caller = caller
        self._asked = asked
        self._named = named
        self._is_agent = host.offered.is_agent(asked.model)
        self._history, self._fresh = _split(asked.messages)
        self._conversation = ConversationDigest()
        self._before = self._conversation.add(self._history)
        """The digest of the conversation up to the newest answer of the model."""
        self._digest = self._conversation.add(self._fresh)
        """The digest of the conversation that the client sends."""
        self._client = f"chat/{caller.name}"
        self._has_left = self._is_over = False
        self._state: State | None = None
        """The state in which the run was left; `None` before that."""
        self._said: Sequence[Message] = ()
        """What the model has said then."""
        self._renewal: Renewal | None = None
        """How the lease that this request had is taken again."""
        self._is_renewed = False
        """True if the lease is taken with the first events."""
        self.run_id = ""
        """The run that records the request; empty before it is known."""
        self.answer_id = ""
        """The id of the answer, which names the run; no other answer has it. Empty before the run is known."""
        self.on_delta: OnDelta | None = None
        """The function that gets the pieces of the answer; `None`: it is not streamed."""

    @property
    def _schema(self) -> dict[str, Json] | None:
        """The JSON Schema that an agent's answer must fit; `None`: any text. A model's own server is sent it."""
        form = self._asked.form
        return read_form(form) if self._is_agent and form is not None else None

    def _agent(self) -> tuple[AgentParts, Given]:
        host, asked = self._host, self._asked
        wish = ClientWish(
            instructions=asked.instructions,
            tools=asked.tools,
            settings=asked.settings_for(host.offered.dialect_of(asked.model), is_agent=self._is_agent),
            schema=self._schema,
            is_relayed=not self._is_agent,
            client=self._caller.name if not self._is_agent else "",
        )
        agent = host.offered.agent(asked.model, wish)
        if self._is_agent:
            check_choice(agent, asked.tool_choice, allows_all=asked.allows_all)
        given = Given(
            agent.answer,
            agent.deps,
            keeps_events=True,
            renews_instructions=True,
            is_relayed=not self._is_agent,
        )
        return agent, given

    async def _prepare(self) -> Driver:
        """Return a driver that is ready to ask the model. Raises: as `answer` does."""
        await self._host.check_room(self._caller)
        agent, given = self._agent()
        found, seq = await self._find(agent), 0
        if found is None:
            driver = await self._begin(agent, given)
        else:
            (state, writer), seq = found, found[0].seq
            async with released_on_error(writer):
                driver = await go_on(agent, state, writer, given)
                await self._say(agent, driver)
        self._name_answer(driver.run_id, driver.state.turn.number, driver.state.step)
        self._host.note_asked(self._caller, self.run_id)
        if (keyed := self._named.keyed) is not None:
            # Before the request is stored, so that nothing is begun of which the key does not know.
            await keyed.note(f"{self.run_id} {seq}")
        if self.on_delta is not None:
            driver.pass_deltas(self._pass_delta if self._is_agent else self.on_delta)
        return driver

    def _name_answer(self, run_id: str, turn: int, step: int) -> None:
        """Note which run has the answer, and after which of its steps."""
        self.run_id, self.answer_id = run_id, f"{run_id}_{turn}_{step}"

    def _pass_delta(self, delta: e.Delta) -> None:
        """Pass a piece of the answer on. The calls of an agent are those of its own tools, or come at the end."""
        is_shown = not self._is_agent or isinstance(delta, e.TextDelta | e.ReasoningDelta)
        if self.on_delta is not None and is_shown:
            self.on_delta(delta)

    # The run.

    async def _find(self, agent: AgentParts) -> tuple[State, RunWriter] | None:
        """Return the run that the request continues, in its present state; `None` for a new conversation."""
        known, name = self._host.conversations, self._client
        history, whole = self._before, self._digest
        run_id = self._named.run_id
        if run_id is not None:
            if await self._host.find_info(self._caller, run_id) is None:
                return None
        else:
            run_id = known.take(name, whole) or (known.take(name, history) if self._history else None)
            if run_id is not None:
                return await self._take(agent, run_id, history, whole, is_own=True)
            for call_id in [message.call_id for message in self._fresh if message.call_id is not None]:
                run_id = run_named_by(call_id) or run_id
            if run_id is not None and await self._host.find_info(self._caller, run_id) is None:
                run_id = None
            if run_id is None and self._history:
                labels = self._host.visible_to(self._caller)
                run_id = await known.find(self._asked.messages, {history, whole}, labels)
            if run_id is None:
                return None
        found = await self._take(agent, run_id, history, whole, is_own=False)
        if found is None and self._named.run_id is not None:
            raise RequestRefused(
                409, f"run {run_id!r:.100} has another conversation, or is under way", "conversation_locked"
            )
        return found

    async def _take(
        self, agent: AgentParts, run_id: str, history: bytes, whole: bytes, *, is_own: bool
    ) -> tuple[State, RunWriter] | None:
        """Take the lease of a run, and return its state; `None` if it has gone on or is driven elsewhere."""
        journal, renewed = self._host.journal, self._host.conversations.renew(run_id) if is_own else None
        if renewed is not None:
            state, said, writer = renewed
            self._is_renewed = self._continues(state, said, history, whole)
            return (state, writer) if self._is_renewed else None
        if not is_own:
            await asyncio.to_thread(require_trust, journal, run_id, agent.spec, trust=False)
        try:
            writer = await journal.acquire(run_id)
        except (LeaseHeldError, RunNotFoundError):
            return None
        async with released_on_error(writer):
            found = await self._host.conversations.state_of(run_id, writer)
            if found is not None and self._continues(*found, history, whole):
                return found[0], writer
        await writer.release()
        return None

    def _continues(self, state: State, said: bytes, history: bytes, whole: bytes) -> bool:
        """Return whether the request is what a run waits for. `said` is the digest of the run's conversation."""
        if not state.is_session or state.is_relayed is self._is_agent:
            return False
        if said == whole:
            spec = state.output_spec
            if (None if spec is None else spec.schema) != self._schema:
                return False  # another answer is asked for
            return (state.turn.is_open or state.has_failed_turn) and not state.turn.calls
        if self._is_agent and self._fresh and self._fresh[0].role is Role.TOOL:
            return state.turn.is_open  # its calls name the run, and clients do not know what it did besides
        return said == history and bool(state.turn.calls) is state.turn.is_open

    async def _begin(self, agent: AgentParts, given: Given) -> Driver:
        """Begin a run with the conversation so far, and the turn of its newest message of the user."""
        asked, messages = self._asked, _with_names(self._asked.messages)
        check_history(messages)
        at = max([number for number, item in enumerate(messages) if item.role is Role.USER], default=-1)
        if at < 0 or messages[-1].role is Role.ASSISTANT:
            raise ConfigError("the newest message is neither from the user nor the result of a call")
        labels: dict[str, Json] = {**self._named.labels, **self._host.labels(self._caller, self._asked.model)}
        if not self._is_agent:
            labels.pop(QUEUE, None)  # nobody would wait for its answer
        # What has no answer of the model yet is its own beginning.
        opening = opening_of(messages) if self._history else self._digest.hex()
        labels |= {METADATA: dict(asked.labels), OPENING: opening}
        beginning = Beginning(
            self._named.run_id or new_run_id(self._named.keyed),
            metadata=labels,
            is_session=True,
            is_lazy=True,
            history=tuple(messages[:at]),
            caller=self._host.lineage(self._caller),
        )
        driver = await begin(agent, None, given, beginning)
        driver.put(await open_turn(agent, driver, messages[at]), blobs=asked.blobs or None)
        for message in messages[at + 1 :]:
            driver.put(e.MessageInjected(message=message, delivery=Delivery.STEER))
        return driver

    async def _say(self, agent: AgentParts, driver: Driver) -> None:
        """Append what the client says. Raises: `ConfigError` if a call has no result, or a result no call."""
        state, fresh, blobs = driver.state, list(self._fresh), self._asked.blobs or None
        if state.turn.is_open and not (state.turn.calls or open_questions(state)):
            return  # the same request again, which has no answer yet
        waiting = self._waiting_for(driver.run_id, state)
        while fresh and fresh[0].role is Role.TOOL:
            message = fresh.pop(0)
            target = waiting.pop(message.call_id or "", None)
            if target is None:
                raise ConfigError(f"no call {message.call_id!r:.100} waits for a result")
            if isinstance(target, ToolCall):
                driver.put(_to_completed(state, target, message), blobs=blobs)
            else:
                driver.put(read_given(state, target.question_id, message.content))
        if waiting:
            raise ConfigError(f"no tool output found for the call {next(iter(waiting))!r:.100}")
        if state.turn.is_open:
            for message in fresh:
                driver.put(e.MessageInjected(message=message, delivery=Delivery.STEER), blobs=blobs)
        elif fresh:
            driver.put(await open_turn(agent, driver, join_words(fresh)), blobs=blobs)
        else:
            raise ConfigError("there is no new message of the user")

    def _waiting_for(self, run_id: str, state: State) -> dict[str, ToolCall | e.QuestionAsked]:
        """Return the calls and questions that wait for the client, by the ids that it knows."""
        calls = [item.call for item in external_calls(state)]
        if state.is_relayed:
            known = self._history[-1].tool_calls if self._history else ()
            if len(known) == len(state.turn.calls):
                names = dict(zip(state.turn.calls, [call.call_id for call in known], strict=True))
                return {names[call.call_id]: call for call in calls}
        asked = {body.question_id: body for body in open_questions(state)}
        found: dict[str, ToolCall | e.QuestionAsked] = {call.call_id: call for call in calls}
        return {wire_call_id(run_id, key): item for key, item in (found | asked).items()}

    # The answer.

    async def answer(self) -> Completion:
        """Drive the run until it waits for the client, and return the answer as the client gets it.

        Raises: `ConfigError` and `RequestRefused` if the request cannot be asked, `NoAnswerError` if the model
        gave no answer; `JournalError`.
        """
        try:
            state, events = await self._find_answered() or await self._drive(await self._prepare())
        except LeaseHeldError:
            if not self._is_renewed:
                raise
            self._is_renewed = False  # the run has changed since it was left, and is looked for as any other
            state, events = await self._drive(await self._prepare())
        finally:
            self._is_over = True
        done = [event.body.completion for event in events if isinstance(event.body, e.InferenceCompleted)]
        self._host.note_done(self._caller, done, None if done else state.ending)
        self._state = state
        if not done or (self._is_agent and state.ending.error is not None and not state.turn.is_open):
            raise explain_ending(state.ending, hides_models=not self._caller.sees_all)
        completion = self._shown(state, done) if self._is_agent else done[-1]
        self._said = [completion.message]
        return completion

    def note(self) -> None:
        """Note which conversation the run now has, so that the next request finds it."""
        if self._state is not None:
            digest, known = self._conversation.add(self._said), self._host.conversations
            chars = self._conversation.chars
            known.note(self._client, digest, self.run_id, self._state, self._renewal, chars)

    async def _drive(self, driver: Driver) -> tuple[State, Sequence[e.Event]]:
        """Drive the run until it waits for the client, and return its state and its new events."""
        try:
            if self._has_left:
                # A turn that is left open would be gone on with, as after a crash.
                await driver.abandon(_LEFT)
                raise NoAnswerError(_LEFT, 499, "client_left")
            await driver.drive()
            state = driver.state
            if state.status is Status.RUNNING and not state.turn.is_open:
                driver.put(e.RunPaused(reason="closed"))
            await driver.leave()
        except BaseException as error:
            await leave(driver, "cancelled" if isinstance(error, asyncio.CancelledError) else None)
            raise
        if driver.mail.is_waiting:
            await take_in_rest(self._host.journal, driver.run_id, state)
        else:
            self._renewal = driver.recorder.writer.renewal()
        return state, driver.recorder.kept_events or ()

    async def _find_answered(self) -> tuple[State, Sequence[e.Event]] | None:
        """Return the state of the run that an earlier try of the request has begun before its process died, and its
        events since then, once it waits for the client; `None` if it has begun none."""
        keyed, journal = self._named.keyed, self._host.journal
        if keyed is None or keyed.kept.place is None:
            return None
        run_id, _, seq = keyed.kept.place.rpartition(" ")
        while True:
            try:
                run = await asyncio.to_thread(Run.load, run_id, journal)
            except RunNotFoundError:
                return None
            state = run.state
            if state.seq <= int(seq):
                return None
            if not state.turn.is_open or run.external_calls or run.open_questions or run.approvals:
                events = run.events[int(seq) :]
                done = [event.body.step for event in events if isinstance(event.body, e.InferenceCompleted)]
                self._name_answer(run_id, state.turn.number, min(done, default=state.step + 1) - 1)
                for event in events if self.on_delta is not None else ():
                    if isinstance(event.body, e.InferenceCompleted):
                        pass_on(event.body.completion.message, self._pass_delta)
                return state, events
            try:
                writer = await journal.acquire(run_id)
            except LeaseHeldError:  # another process goes on with it
                await asyncio.sleep(0.05)
                continue
            agent, given = self._agent()
            async with released_on_error(writer):
                driver = await go_on(agent, state, writer, given)
            await self._drive(driver)

    def _shown(self, state: State, done: list[Completion]) -> Completion:
        """Return what the client of an agent sees: the last text, the calls of its own tools and questions."""
        if waiting_calls(state):
            raise NoAnswerError("the run waits for an approval", 409, "approval_required")
        calls = [
            replace(item.call, call_id=wire_call_id(self.run_id, item.call.call_id))
            for item in external_calls(state)
        ]
        for body in open_questions(state):
            arguments = msgspec.json.encode({"question": body.text}).decode()
            calls.append(ToolCall(wire_call_id(self.run_id, body.question_id), ASK, arguments))
        last = done[-1]
        text = last.message.content if state.turn.is_open else state.ending.output
        reason = FinishReason.TOOL_CALLS if calls else last.finish_reason
        message = Message(Role.ASSISTANT, text, tuple(calls), reasoning=last.message.reasoning)
        usage = sum([item.usage for item in done[1:]], done[0].usage)
        if self.on_delta is not None:
            for number, call in enumerate(calls):
                self.on_delta(e.ToolCallDelta(number, call.call_id, call.name, call.arguments))
        return replace(last, message=message, finish_reason=reason, usage=usage, tokens=None)

    async def cancel(self) -> None:
        """Stop the run, because its client has left."""
        self._has_left = True
        while self.run_id and not self._is_over:
            with suppress(JournalError):
                await asyncio.wrap_future(self._host.journal.posting(self.run_id, Cancel(_LEFT)))
                return
            await asyncio.sleep(_UNSTORED_SECONDS)


def _split(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """Return what was said up to the newest answer of the model, and what came after it."""
    at = max([number for number, item in enumerate(messages, 1) if item.role is Role.ASSISTANT], default=0)
    return messages[:at], messages[at:]


def _with_names(messages: list[Message]) -> list[Message]:
    """Return messages in which results have the names of their tools."""
    names = {call.call_id: call.name for message in messages for call in message.tool_calls}
    return [
        replace(item, name=names.get(item.call_id or "")) if item.role is Role.TOOL else item
        for item in messages
    ]


def _to_completed(state: State, call: ToolCall, message: Message) -> e.ToolCompleted:
    result = ToolResult(
        call.call_id,
        call.name,
        message.content,
        is_error=message.is_error,
        error_kind=ToolErrorKind.FAILED if message.is_error else None,
        artifacts=message.parts,
    )
    return e.ToolCompleted(step=state.step, result=result)
