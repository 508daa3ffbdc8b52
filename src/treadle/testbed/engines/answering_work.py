"""The work on one answer of a mock engine: how long it takes, and which ids have appeared so far.

The ids of an answer appear at a constant rate. If the engine aborts the answer, the answer has the ids that
have appeared so far. After a change of the weights, the new weights sample the rest.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.tasks.draws import fraction
from treadle.testbed.engines.token_policy import DrawnToken
from treadle.testbed.server.oracle_app import HttpReply

if TYPE_CHECKING:
    from treadle.testbed.engines.engine_app import EngineApp


class IdsRequest(Struct, kw_only=True):
    """A request for ids, from any of the endpoints."""

    prompt_ids: Sequence[int]
    model: str
    limit: int | None
    """The largest number of ids in the answer; `None`: as many as fit."""
    seed: int | None = None
    temperature: float = 1.0
    request_id: str = ""
    """The id that the client gave; empty if the engine chooses one."""
    prefix: str = ""
    """The beginning of an id that the engine chooses."""
    stop_ids: Sequence[int] = ()
    """Ids that end the answer, besides those of the template."""
    number: int = 0
    """How often the same prompt was asked before."""


class SampledAnswer(Struct, frozen=True):
    """The ids that an engine sampled for one request, with further data about them."""

    request_id: str
    model: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """The logprob of each id of `token_ids`."""
    versions: tuple[tuple[int, str], ...]
    """For each version of the weights, the number of successive ids that it sampled, and the version."""
    finish: str
    """`stop`, `length` or `abort`."""

    @property
    def version(self) -> str:
        """The version of the weights that sampled the last id."""
        return self.versions[-1][1]


class AnswerWork:
    """The work on one answer. See `PendingReply`."""

    def __init__(
        self,
        app: "EngineApp",
        ask: IdsRequest,
        write: Callable[[SampledAnswer], HttpReply],
        seed: str,
        room: int,
        seconds: float,
    ) -> None:
        self.ask = ask
        self.seconds = seconds
        """How long the work takes."""
        self.watchers: list[Callable[[AnswerWork], None]] = []
        """Functions to call when the work is done."""
        self._app = app
        self._write = write
        self._seed = seed
        self._room = room if ask.limit is None else min(room, ask.limit)
        self._end = app.policy(ask.model).template.end
        self._drawn = app.draw(ask, (), seed, app.version, self._room)
        self._versions = [app.version] * len(self._drawn)
        self._kept = 0
        """How many ids had appeared when the weights changed last."""
        self._spent = 0.0
        self._since: float | None = None
        """When the work was last continued; `None` while it is paused."""
        self._timer: asyncio.TimerHandle | None = None
        self._done: Callable[[HttpReply], None] | None = None

    def start(self, done: Callable[[HttpReply], None]) -> None:
        self._done = done
        self._app.add(self)
        if not self._app.is_paused:
            self.go()

    def go(self) -> None:
        """Continue the work."""
        loop = asyncio.get_running_loop()
        if self._since is None:
            self._since = loop.time()
            self._timer = loop.call_later(max(0.0, self.seconds - self._spent), self._deliver)

    def stop(self) -> None:
        """Pause the work."""
        if self._since is not None:
            self._spent += asyncio.get_running_loop().time() - self._since
        self._since = None
        if self._timer is not None:
            self._timer.cancel()

    def cancel(self) -> None:
        self._done = None
        self._deliver(is_aborted=True)

    def abort(self) -> None:
        """End the work with the ids that have appeared. With all its ids an answer is complete."""
        self.stop()
        self._deliver(is_aborted=self._count() < len(self._drawn))

    def renew(self, version: str) -> None:
        """Sample the ids that have not appeared yet with the weights of `version`."""
        self.stop()
        self._kept = count = self._count()
        kept = [item.token_id for item in self._drawn[:count]]
        fresh = self._app.draw(self.ask, kept, self._seed, version, self._room - count)
        self._drawn[count:] = fresh
        self._versions[count:] = [version] * len(fresh)
        if not self._app.is_paused:
            self.go()

    def _count(self) -> int:
        """Return how many ids have appeared so far."""
        share = min(1.0, self._spent / self.seconds) if self.seconds else 1.0
        return max(self._kept, int(len(self._drawn) * share))

    def _deliver(self, *, is_aborted: bool = False) -> None:
        self.stop()
        self._app.remove(self)
        reply = self.finish(self._count() if is_aborted else None)
        if self._done is not None:
            self._done(reply)
        for tell in self.watchers:
            tell(self)

    def finish(self, count: int | None = None) -> HttpReply:
        """Return the response with all ids, or with the first `count` if the work was aborted."""
        settings, total = self._app.settings, len(self._drawn)
        finish = "stop" if self._is_whole() else "length"
        for rate, name, reason in (
            (settings.cut_rate, "cut", "length"),
            (settings.abort_rate, "abort", "abort"),
        ):
            # A client that asks with a seed asks again for the same answer, which must not be aborted for ever.
            again = (self.ask.number,) if self.ask.number and reason == "abort" else ()
            if rate and count is None and fraction(settings.seed, name, self._seed, *again) < rate:
                at = int(total * fraction(settings.seed, name, "at", self._seed))
                total, finish = max(at, 1 if reason == "length" or again else 0), reason
        if count is not None:
            total, finish = count, "abort"
        answer = self._answer(self._drawn[:total], self._versions[:total], finish)
        self._app.sampled.append(answer)
        return self._write(answer)

    def _is_whole(self) -> bool:
        return bool(self._drawn) and self._drawn[-1].token_id in (self._end, *self.ask.stop_ids)

    def _answer(self, drawn: Sequence[DrawnToken], versions: Sequence[str], finish: str) -> SampledAnswer:
        return SampledAnswer(
            self.ask.request_id,
            self.ask.model,
            tuple(self.ask.prompt_ids),
            tuple([item.token_id for item in drawn]),
            tuple([item.logprob for item in drawn]),
            tuple([(len(list(group)), version) for version, group in groupby(versions)])
            or ((0, self._app.version),),
            finish,
        )
