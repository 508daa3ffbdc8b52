"""Journals whose token ids are known in advance: events that are written by hand, for property tests."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.lineage import Caller, Child, Parent
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.tokens.packed import ID_BYTES, as_packed, count_shared, pack_ids
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, Fault, FinishReason, Message, Role, ToolResult, Usage


class Sampled(Struct, frozen=True):
    """What was sampled by one inference, as the trajectories must deliver it."""

    run_id: str
    seq: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    forced: tuple[int, ...] = ()
    is_cached: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt + self.output


class Writer:
    """A writer of one run's events, with the sharing of prompt ids that the loop does."""

    def __init__(
        self,
        run_id: str,
        *,
        version: str = e.VERSION,
        caller: Caller | None = None,
        model: str = "policy",
        is_packed: bool = True,
    ) -> None:
        self.run_id = run_id
        self.parent = ""
        """The run that this one was forked from; empty if it is no fork."""
        self.model = model
        self.is_packed = is_packed
        self.events: list[e.Event] = []
        self.sampled: list[Sampled] = []
        """The inferences with ids that belong to this run, in order."""
        self.full: list[tuple[int, ...]] = []
        """Prompt and answer of all inferences with ids, those that were copied included."""
        self.previous = b""
        self.step = 0
        spec = AgentSpec(model=PartSpec(name=model))
        self.put(e.RunStarted(version=version, agent=spec, caller=caller))
        self.put(e.TurnStarted(turn=1, message=Message(Role.USER, "Go on.")))

    def put(self, *bodies: Any) -> None:
        for body in bodies:
            self.events.append(e.Event(self.run_id, len(self.events) + 1, body))

    def ask(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        logprobs: Sequence[float] | None = None,
        *,
        message: Message | None = None,
        finish: FinishReason = FinishReason.TOOL_CALLS,
        forced: tuple[int, ...] = (),
        is_cached: bool = False,
        tokenizer: str | None = None,
        weight_version: str | None = None,
        versions: tuple[tuple[int, str], ...] = (),
    ) -> int:
        """Write an inference with ids and return the number of its event."""
        if message is None and not output:
            message = Message(Role.ASSISTANT)
        record = TokenRecord.of(
            prompt=prompt,
            output=output,
            logprobs=logprobs,
            forced=forced,
            tokenizer=tokenizer,
            versions=versions,
        )
        whole = as_packed(record.prompt_token_ids)
        shared = count_shared(whole, self.previous)
        if not self.is_packed:
            record = replace(
                record,
                prompt_token_ids=tuple(prompt[shared:]),
                token_ids=tuple(output),
                logprobs=None if logprobs is None else tuple(logprobs),
            )
        else:
            record = replace(record, prompt_token_ids=whole[shared * ID_BYTES :])
        record = replace(record, prompt_shared_tokens=shared)
        self.previous = whole + pack_ids(output)
        self.full.append((*prompt, *output))
        self._complete(record, message, finish=finish, is_cached=is_cached, weight_version=weight_version)
        known = None if logprobs is None else tuple(logprobs)
        self.sampled.append(
            Sampled(self.run_id, len(self.events), tuple(prompt), tuple(output), known, forced, is_cached)
        )
        return len(self.events)

    def say(self, record: TokenRecord | None = None, message: Message | None = None) -> int:
        """Write an inference whose ids are not known and return the number of its event."""
        self._complete(record, message)
        return len(self.events)

    def _complete(
        self,
        record: TokenRecord | None,
        message: Message | None,
        *,
        finish: FinishReason = FinishReason.TOOL_CALLS,
        is_cached: bool = False,
        weight_version: str | None = None,
    ) -> None:
        self.step += 1
        self.put(e.InferenceStarted(step=self.step, messages=1, model=self.model))
        answer = message or Message(Role.ASSISTANT, f"answer {self.step}")
        done = Completion(answer, finish, tokens=record, is_cached=is_cached, weight_version=weight_version)
        self.put(e.InferenceCompleted(step=self.step, completion=done))

    def fail(self) -> None:
        """Write an attempt whose answer was complete and thrown away."""
        self.put(e.InferenceStarted(step=self.step + 1, messages=1, model=self.model))
        failed = e.InferenceFailed(
            step=self.step + 1,
            error="too weak",
            error_type="Escalated",
            fault=Fault.MODEL,
            usage=Usage(10, 5),
            cost_usd=0.0,
        )
        self.put(failed)

    def compact(self) -> None:
        """Write a compaction."""
        summary = Message(Role.USER, f"summary at {self.step}")
        self.put(e.ContextCompacted(messages=1, replacement=(summary,)))

    def call(self, child: str) -> None:
        """Write the result of a call that a sub-agent answered."""
        result = ToolResult(f"call_{child}", "agent", "done")
        self.put(e.ToolCompleted(step=self.step, result=result, child=Child(child)))

    def fork(self, run_id: str, at: int) -> "Writer":
        """Return the writer of a fork that has copied the first `at` events."""
        started = self.events[0].body
        assert isinstance(started, e.RunStarted)
        new = Writer(run_id, model=self.model)
        new.parent = self.run_id
        head = replace(started, parent=Parent(self.run_id, at), caller=None)
        new.events = [e.Event(run_id, 1, head)]
        new.events += [e.Event(run_id, event.seq, event.body) for event in self.events[1:at]]
        new.put(e.RunResumed())
        copied = [event.body for event in self.events[:at] if isinstance(event.body, e.InferenceCompleted)]
        new.step = copied[-1].step if copied else 0
        counted = [body for body in copied if body.completion.tokens is not None]
        known = [body for body in counted if _has_ids(body.completion.tokens)]
        new.full = self.full[: len(known)]
        new.previous = pack_ids(new.full[-1]) if new.full else b""
        return new


def _has_ids(record: TokenRecord | None) -> bool:
    return record is not None and record.prompt_token_ids is not None and record.token_ids is not None


def join(writers: Iterable[Writer]) -> list[e.Event]:
    """Return the events of several runs."""
    return [event for writer in writers for event in writer.events]
