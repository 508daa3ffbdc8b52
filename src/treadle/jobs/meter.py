"""The use of tokens, money and time by all models of a plan, and the limits on it."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import LimitReachedError, ProviderError
from treadle.core.limits import guess_cost_usd
from treadle.core.prompts.prompting import guess_next_tokens
from treadle.core.types import Completion, Message, Request, Usage
from treadle.jobs.ledger import Ledger, PlannedItem
from treadle.jobs.sections import LimitSection
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter, RunInfo
from treadle.models.protocol import Model, Watch, estimate_cost_usd, part_of
from treadle.models.wrappers.wrapper import Wrapper
from treadle.runs.run import Run

UNKNOWN_COST = "unknown_cost"
"""The name of the limit that is reached if the cost is limited and the cost of an answer is unknown."""
_LIMIT_TEXT = "the limit {} of the plan is reached"
_UNKNOWN_TEXT = "the cost of an answer is unknown, so the limit max_cost_usd of the plan cannot be kept"
_CHARS_PER_TOKEN = 3
_MIN_OUTPUT_TOKENS = 500
"""The least number of tokens that an answer is expected to have."""
_SHORT_SECONDS = 2.0
"""A wait for another attempt that is no longer goes on when the work is to stop."""


class _Need(Struct):
    """What a request may use."""

    tokens: int = 0
    cost_usd: float = 0.0


_NOTHING = _Need()


class LostUse(Struct):
    """What was reserved for requests whose answers were lost, because they may have been paid for."""

    tokens: int = 0
    cost_usd: float = 0.0
    seen: dict[str, int] = {}
    """The number of the newest event of each run that was interrupted, for which this use was counted."""


class JobMeter:
    """The use of all models of a plan. It includes the use of earlier processes."""

    def __init__(self, limits: LimitSection, *, now: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._is_limited = limits.max_tokens is not None or limits.max_cost_usd is not None
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost_usd: float | None = 0.0
        """`None` if the cost of an answer is unknown."""
        self.lost = LostUse()
        """What counts for the limits besides the use: answers that were lost."""
        self._thrown = _Need()
        """What the runs have used that were thrown away. It is counted in this process."""
        self.reached: str | None = None
        """The limit that a request did not fit in."""
        self._reserved = _Need()
        """What the requests in flight may use."""
        self._in_flight = 0
        self._most_output = _MIN_OUTPUT_TOKENS
        """The tokens of the longest answer so far."""
        self._chars_per_token = float(_CHARS_PER_TOKEN)
        """The least number of characters for each token in the requests so far."""
        self._changed = asyncio.Event()
        """Set when a request in flight has ended."""
        self.on_failure: Callable[[str, ProviderError, float], None] = lambda *_: None
        """The function to call with the name of a model, an error of its server, and the delay before the next
        attempt in seconds."""
        self.stop = asyncio.Event()
        """Set when the work is to stop: what is in flight is finished, and no longer waits for a server that fails
        again and again, or says that it will be busy for long."""
        self.seconds_before = 0.0
        """How long earlier processes worked."""
        self._now = now
        self._began = now()

    @property
    def seconds(self) -> float:
        """How long this process has worked."""
        return self._now() - self._began

    @property
    def worked_seconds(self) -> float:
        """How long all processes have worked."""
        return self.seconds_before + self.seconds

    @property
    def seconds_left(self) -> float | None:
        """How long the plan may still be worked on; `None` if there is no limit."""
        limit = self.limits.max_seconds
        return None if limit is None else limit - self.worked_seconds

    def add(self, input_tokens: int, output_tokens: int, cost_usd: float | None) -> None:
        """Count tokens and their cost."""
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        if cost_usd is None:
            self.cost_usd = None
        elif self.cost_usd is not None:
            self.cost_usd += cost_usd

    def find_limit(self) -> str | None:
        """Return the limit that is reached; `None` if there is none. Requests in flight do not count."""
        return self.reached or self._find_limit(_Need())

    def lose(self, run: Run[Any]) -> None:
        """Let later processes count the use of a run that was thrown away, which is in no outcome of the ledger."""
        self._thrown.tokens += run.usage.total_tokens
        self._thrown.cost_usd += run.cost_usd or 0.0

    def _find_limit(self, need: _Need) -> str | None:
        limits = self.limits
        tokens = self.input_tokens + self.output_tokens + self.lost.tokens
        if limits.max_tokens is not None and (
            tokens >= limits.max_tokens or tokens + need.tokens > limits.max_tokens
        ):
            return "max_tokens"
        if limits.max_cost_usd is not None:
            if self.cost_usd is None:
                return UNKNOWN_COST
            most = limits.max_cost_usd
            cost_usd = self.cost_usd + self.lost.cost_usd
            if cost_usd >= most or cost_usd + need.cost_usd > most:
                return "max_cost_usd"
        if limits.max_seconds is not None and self.worked_seconds >= limits.max_seconds:
            return "max_seconds"
        return None

    async def infer(self, model: "MeteredModel", request: Request, watch: Watch) -> Completion:
        """Return the answer of `model`, and count it.

        The tokens and the cost that it may need are reserved first. If a request fits only when the requests in
        flight use less than they have reserved, it waits for them. Raises: `LimitReachedError` at a limit, and
        in place of another attempt that is not soon once the work is to stop.
        """
        has_limits = self._is_limited or self.limits.max_seconds is not None
        need = await self._reserve(model, request) if has_limits else _NOTHING
        self._in_flight += 1
        tell, scope = watch.on_failure, asyncio.timeout(None)
        waits: list[asyncio.Task[None]] = []

        def on_failure(error: ProviderError, attempt: int, delay_seconds: float) -> None:
            if tell is not None:
                tell(error, attempt, delay_seconds)
            self._lose(error, need)
            self.on_failure(model.name, error, delay_seconds)
            if delay_seconds <= _SHORT_SECONDS:
                return
            if self.stop.is_set():
                raise _explain_stop(str(error)) from error
            waits.append(asyncio.ensure_future(self._end_wait(scope, delay_seconds)))

        try:
            watch.on_failure = on_failure
            async with scope:
                completion = await model.ask(request, watch)
        except (ProviderError, asyncio.CancelledError) as error:
            self._lose(error, need)
            raise
        except TimeoutError as error:
            if scope.expired():
                raise _explain_stop("it waited for another attempt") from error
            raise
        finally:
            watch.on_failure = tell
            for wait in waits:
                wait.cancel()
            self._in_flight -= 1
            if need is not _NOTHING:
                self._reserved = _Need(
                    self._reserved.tokens - need.tokens, self._reserved.cost_usd - need.cost_usd
                )
            self._changed.set()
        usage = completion.usage
        if not usage.is_reported:
            # The server does not say how many tokens it used.
            usage = Usage(self._guess_input(request), len(_text_of(completion.message)) // _CHARS_PER_TOKEN)
        elif self._is_limited and usage.input_tokens:
            ratio = _count_chars(request) / usage.input_tokens
            self._chars_per_token = max(1.0, min(self._chars_per_token, ratio))
        self._most_output = max(self._most_output, usage.output_tokens)
        self.add(usage.input_tokens, usage.output_tokens, completion.cost_usd)
        return completion

    async def _end_wait(self, scope: asyncio.Timeout, delay_seconds: float) -> None:
        """Let `scope` expire if the work is to stop within the next `delay_seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_seconds):
                await self.stop.wait()
            scope.reschedule(0)

    def _lose(self, error: BaseException, need: _Need) -> None:
        if not isinstance(error, ProviderError) or error.may_be_billed:
            self.lost.tokens += need.tokens
            self.lost.cost_usd += need.cost_usd

    def facts(self) -> dict[str, str]:
        """Return what a ledger keeps for the meters of later processes."""
        lost = replace(
            self.lost,
            tokens=self.lost.tokens + self._thrown.tokens,
            cost_usd=self.lost.cost_usd + self._thrown.cost_usd,
        )
        return {"worked_seconds": repr(self.worked_seconds), "lost": msgspec.json.encode(lost).decode()}

    def charge_interrupted(self, journal: Journal, infos: Iterable[RunInfo]) -> None:
        """Count what was reserved for the requests that were in flight when the processes of runs ended."""
        before, self.lost.seen = self.lost.seen, {}
        for info in infos if self._is_limited else ():
            if info.status == "finished" or info.is_driven:
                continue
            state = Run.load(info.run_id, journal).state
            if state.turn.asked is None:
                continue
            self.lost.seen[info.run_id] = state.seq
            if before.get(info.run_id) != state.seq:
                tokens = guess_next_tokens(state)
                self.lost.tokens += tokens
                self.lost.cost_usd += state.turn.asked.reserved_cost_usd or guess_cost_usd(state, tokens)

    async def _reserve(self, model: Model, request: Request) -> _Need:
        """Reserve what a request may use, and return it. Raises: `LimitReachedError`."""
        need = _Need()
        if self._is_limited:
            used = Usage(self._guess_input(request), self._most_output)
            need = _Need(used.total_tokens, estimate_cost_usd(model, used) or 0.0)
        while True:
            if (limit := self._find_limit(need)) is not None:
                self.reached = limit
                raise explain_limit(limit)
            tokens, cost_usd = self._reserved.tokens + need.tokens, self._reserved.cost_usd + need.cost_usd
            if not self._in_flight or self._find_limit(_Need(tokens, cost_usd)) is None:
                break
            self._changed.clear()
            await self._changed.wait()
        self._reserved = _Need(tokens, cost_usd)
        return need

    def _guess_input(self, request: Request) -> int:
        return round(_count_chars(request) / self._chars_per_token)

    def measure(self, model: Model) -> "MeteredModel":
        """Return `model` with its use counted here."""
        return MeteredModel(model, self)


class MeteredModel(Wrapper):
    """A model whose use is counted. It sends no request once a limit is reached."""

    CHANGES_ANSWERS = False

    def __init__(self, inner: Model, meter: JobMeter) -> None:
        super().__init__(inner)
        self._meter = meter
        self._is_free = is_free(inner)

    def infer(self, request: Request, watch: Watch) -> Coroutine[Any, Any, Completion]:
        """Return the inner model's answer; see `Model.infer`. Raises: `LimitReachedError` at a limit."""
        return self._meter.infer(self, request, watch)

    async def ask(self, request: Request, watch: Watch) -> Completion:
        """Return the inner model's answer without counting it."""
        completion = await self.inner.infer(request, watch)
        if self._is_free and completion.cost_usd is None:
            completion = replace(completion, cost_usd=0.0)
        return completion


def explain_limit(limit: str) -> LimitReachedError:
    """Return the error of a request that does not fit in a limit, given the name of the limit."""
    return LimitReachedError(_UNKNOWN_TEXT if limit == UNKNOWN_COST else _LIMIT_TEXT.format(limit))


def _explain_stop(why: str) -> LimitReachedError:
    return LimitReachedError(f"not sent again, because the work is to stop: {why}")


def is_free(model: Model) -> bool:
    """Return whether a model runs in this process and costs nothing."""
    return part_of(model).name.partition(":")[0] in ("mock", "oracle")


def _text_of(message: Message) -> str:
    return "".join(
        [message.content, message.reasoning or "", *[call.arguments for call in message.tool_calls]]
    )


def _count_chars(request: Request) -> int:
    """Return about how many characters a request has."""
    texts = [_text_of(message) for message in request.messages]
    texts += [f"{tool.name}{tool.description}{tool.parameters}" for tool in request.tools]
    return sum(map(len, texts)) + len(str(request.output_schema or ""))


def open_meter(
    limits: LimitSection,
    ledger: Ledger,
    journal: Journal,
    runs_of: Callable[[PlannedItem], RunFilter],
    others: RunFilter | None = None,
) -> JobMeter:
    """Return the meter of a job, with the use and the time of earlier processes.

    This use is the sum of three parts: the use that the ledger has counted, the further use of the runs of open
    items, which `runs_of` finds, and the use of `others`, which belong to no item. Requests that were in flight
    when an earlier process ended count for the limits too.
    """
    meter = JobMeter(limits)
    counts = ledger.counts()
    meter.add(counts.input_tokens, counts.output_tokens, counts.cost_usd)
    meter.seconds_before = float(ledger.get("worked_seconds") or 0.0)
    meter.lost = msgspec.json.decode(ledger.get("lost") or "{}", type=LostUse)
    infos = [] if others is None else journal.runs(others)
    for item in ledger.open_items():
        infos += journal.runs(runs_of(item))
        known = ledger.spent(item.number)
        meter.add(-known.input_tokens, -known.output_tokens, -known.cost_usd)
    for info in infos:
        meter.add(info.input_tokens, info.output_tokens, info.cost_usd)
    meter.charge_interrupted(journal, infos)
    ledger.keep(meter.facts())
    return meter
