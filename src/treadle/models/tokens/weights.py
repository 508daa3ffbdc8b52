"""Weights that change while models answer: which version answered, and what an update does to answers under way."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Protocol

from msgspec.structs import replace

from treadle.core.errors import ConfigError, ServerError
from treadle.core.types import Completion

_HELD_SECONDS = 2.0
"""How long the answers that an engine aborts may be on their way."""


class UpdateMode(StrEnum):
    """The treatment of answers under way during an update. In every mode, new requests wait for its end."""

    WAIT = "wait"
    """Answers under way are finished first, with the old weights."""
    ABORT = "abort"
    """Answers under way are aborted. What was sampled is kept if the model is sent token ids, and sampling goes
    on after it with the new weights; other models answer again from the beginning."""
    KEEP = "keep"
    """The engine stops sampling for the update and goes on with the new weights. Only answers of engines that tell
    which weights sampled which token are kept; others are waited for."""


class EngineControl(Protocol):
    """The commands to an engine during an update of its weights."""

    async def pause(self, mode: UpdateMode) -> None:
        """Stop sampling, and do to requests under way what `mode` says. Raises: `ProviderError`."""

    async def resume(self) -> None:
        """Let the engine sample again, after `pause`. Raises: `ProviderError`."""

    async def set_version(self, version: str) -> None:
        """Give the weights a version that answers report, if the engine can. Raises: `ProviderError`."""


class AbortedError(ServerError):
    """Raised if a request was aborted for an update of the weights. It can be made again."""


class Weights:
    """The weights of one or more engines, as the trainer that updates them knows them.

    Models take part by `attach`. Each of their answers has the version of the weights that gave it, unless the
    engine itself says another one.
    """

    def __init__(self, version: str | None = None, controls: Sequence[EngineControl] = ()) -> None:
        """Make weights with their first version, and with the engines that have them.

        Without `controls`, `abort` closes connections, and `keep` is not possible.
        """
        self.version = version
        """The version of the weights; `None` if it is not known."""
        self._controls = tuple(controls)
        self._under_way: set[Sampling] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._left = asyncio.Event()
        self._updating = asyncio.Lock()

    def attach(self, model: object) -> None:
        """Make a model, with all its wrappers, wait for updates and record the version in its answers.

        Raises: `ConfigError` if it is not a model behind one server.
        """
        found: object | None = model
        while found is not None and not hasattr(found, "weights"):
            found = getattr(found, "inner", None) or getattr(found, "engine", None)
        if found is None:
            raise ConfigError(f"{model!r} is not a model behind one server, so its weights cannot change")
        found.weights = self

    def sampling(self, *, tells_versions: bool = False) -> "Sampling":
        """Return a context in which one request is made.

        It begins when no update is under way. `tells_versions` is true if the engine tells which weights sampled
        which token.
        """
        return Sampling(self, tells_versions)

    async def update(
        self, version: str, load: Callable[[], Awaitable[object]], mode: UpdateMode | str = UpdateMode.WAIT
    ) -> None:
        """Change the weights by `load`, and give them a version.

        If `load` raises an exception, the version stays. The engines go on in any case.

        Raises: `ConfigError` for an unknown mode, and for `keep` without engines that can pause.
        """
        try:
            mode = UpdateMode(mode)
        except ValueError:
            raise ConfigError(f"the mode of an update is {mode!r}; use 'wait', 'abort' or 'keep'") from None
        if mode is UpdateMode.KEEP and not self._controls:
            raise ConfigError(
                "an update can only keep answers under way if the engines can pause: give controls"
            )
        async with self._updating:
            self._open.clear()
            try:
                await self._settle(mode)
                await load()
                for control in self._controls:
                    await control.set_version(version)
                self.version = version
                for item in self._under_way:
                    item.version, item.is_changed = None, True
            finally:
                await self._resume()

    async def _settle(self, mode: UpdateMode) -> None:
        """Wait until only the requests that are kept are under way."""
        if mode is UpdateMode.WAIT:
            await self._wait_for_answers(is_all=True)
        if mode is UpdateMode.KEEP:
            await self._wait_for_answers(is_all=False)
        for control in self._controls:
            await control.pause(mode)
        if mode is UpdateMode.ABORT:
            if self._controls:
                # What the engine sampled arrives at once. A request that it got only after the pause is held back
                # until it goes on, which would be for ever.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HELD_SECONDS):
                        await self._wait_for_answers(is_all=True)
            for item in self._under_way:
                item.abort()
            await self._wait_for_answers(is_all=True)

    async def _wait_for_answers(self, *, is_all: bool) -> None:
        """Wait for the answers under way: for all, or for those whose engine does not tell the versions."""
        while any(is_all or not item.tells_versions for item in self._under_way):
            self._left.clear()
            await self._left.wait()

    async def _resume(self) -> None:
        """Let the engines go on, each of them even if another one fails, and then new requests."""
        try:
            results = await asyncio.gather(
                *[control.resume() for control in self._controls], return_exceptions=True
            )
        finally:
            self._open.set()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def enter(self, sampling: "Sampling") -> None:
        """Wait until no update is under way, and begin a request."""
        while not self._open.is_set():
            await self._open.wait()
        self._under_way.add(sampling)

    def leave(self, sampling: "Sampling") -> None:
        """End a request."""
        self._under_way.discard(sampling)
        self._left.set()


class Sampling:
    """One request under way."""

    def __init__(self, weights: Weights, tells_versions: bool) -> None:
        self.tells_versions = tells_versions
        self.version: str | None = None
        """The version of the weights that sample; `None` if it is not known, or if they were changed."""
        self.is_changed = False
        """True if the weights were changed while the request was under way."""
        self._weights = weights
        self._task: asyncio.Task[object] | None = None
        self._is_aborted = False

    async def __aenter__(self) -> "Sampling":
        await self._weights.enter(self)
        self._task = asyncio.current_task()
        self.version = self._weights.version
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._weights.leave(self)
        if not self._is_aborted or self._task is None:
            return
        is_cancelled = self._task.uncancel() > 0
        if kind is asyncio.CancelledError and not is_cancelled:
            raise AbortedError("the request was aborted, because the weights are updated") from None

    def abort(self) -> None:
        """End the request with an `AbortedError`."""
        if self._task is not None and not self._is_aborted:
            self._is_aborted = True
            self._task.cancel()

    def sign(self, completion: Completion) -> Completion:
        """Return the completion with the version of the weights, unless the server says one."""
        if completion.weight_version is not None:
            return completion
        return replace(completion, weight_version=self.version)
