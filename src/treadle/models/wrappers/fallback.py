"""A model that asks the next one where one fails."""

import time
from collections.abc import Callable, Sequence

from treadle.core.errors import (
    AuthenticationError,
    ConfigError,
    ContextOverflowError,
    ProviderError,
    RateLimitError,
    ServerError,
    TransportError,
)
from treadle.core.types import Completion, Json, OutputMode, Request
from treadle.models.protocol import Model, Watch, identity_of, output_mode_of, takes_schema

DEFAULT_ERRORS = (RateLimitError, ServerError, TransportError, AuthenticationError, ContextOverflowError)
"""What another server may do better; a request that is wrong is wrong elsewhere too."""


class FallbackModel:
    """Asks models in order, until one answers. What was tried is in the journal, as failed attempts.

    A model that failed is left out for `cooldown_seconds`, unless all have failed; then it is asked again first.
    A prompt that is too long says nothing of its server, and leaves nobody out.
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        on: tuple[type[ProviderError], ...] = DEFAULT_ERRORS,
        cooldown_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on` are the errors after which the next model is asked; any other is raised at once."""
        if not models:
            raise ConfigError("a fallback needs at least one model")
        if cooldown_seconds < 0:
            raise ConfigError(f"cooldown_seconds is {cooldown_seconds!r}; give at least 0")
        self.models = tuple(models)
        self._on = on
        self._cooldown_seconds = cooldown_seconds
        self._clock = clock
        self._rests_until = [0.0] * len(self.models)

    @property
    def name(self) -> str:
        """The first model's."""
        return self.models[0].name

    @property
    def identity(self) -> str:
        """All models', since any may answer."""
        return " | ".join(identity_of(model) for model in self.models)

    @property
    def output_mode(self) -> OutputMode:
        """What all of them can do: text can be asked of any model, and a tool of more than decode in a schema."""
        modes = {output_mode_of(model) for model in self.models}
        order = (OutputMode.TEXT, OutputMode.TOOL, OutputMode.NATIVE)
        return next(mode for mode in order if mode in modes)

    def takes_schema(self, schema: dict[str, Json], *, has_tools: bool) -> bool:
        """Whether all of them do."""
        return all(takes_schema(model, schema, has_tools=has_tools) for model in self.models)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`. Raises: the last model's error, which says what was tried before it."""
        failures: list[tuple[str, ProviderError]] = []
        order = self._order()
        for index in order:
            model = self.models[index]
            try:
                completion = await model.infer(request, watch)
            except ProviderError as error:
                failures.append((model.name, error))
                if not isinstance(error, self._on):
                    raise
                if not isinstance(error, ContextOverflowError):
                    self._rests_until[index] = self._clock() + self._cooldown_seconds
                if index == order[-1]:
                    raise _explain(failures) from error
                if watch.on_failure is not None:
                    error.model = model.name
                    watch.on_failure(error, len(failures), 0.0)
            else:
                self._rests_until[index] = 0.0
                return completion
        raise AssertionError("there is at least one model")

    def _order(self) -> list[int]:
        """Who is asked: those that do not rest, in order; all, if everybody does."""
        now = self._clock()
        awake = [index for index, until in enumerate(self._rests_until) if until <= now]
        return awake or list(range(len(self.models)))

    def __repr__(self) -> str:
        return f"FallbackModel({', '.join(model.name for model in self.models)})"


def _explain(failures: list[tuple[str, ProviderError]]) -> ProviderError:
    """The last error, which names those before it."""
    name, last = failures[-1]
    if len(failures) == 1:
        return last
    before = "; ".join(f"{model}: {type(error).__name__}" for model, error in failures[:-1])
    told = type(last)(
        f"{last} (model {name}, asked after {before})",
        status=last.status,
        retry_after_seconds=last.retry_after_seconds,
    )
    told.model = name
    return told
