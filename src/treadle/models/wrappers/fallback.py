"""A model that asks several models in turn until one answers."""

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
    UnsupportedPartError,
)
from treadle.core.spec import PartSpec
from treadle.core.types import Artifact, Completion, Json, OutputMode, Request, Usage
from treadle.models.protocol import (
    Model,
    Watch,
    check_parts,
    context_tokens_of,
    estimate_cost_usd,
    has_price,
    identity_of,
    output_mode_of,
    output_tokens_of,
    takes_schema,
)

DEFAULT_ERRORS = (
    RateLimitError,
    ServerError,
    TransportError,
    AuthenticationError,
    ContextOverflowError,
    UnsupportedPartError,
)
"""Errors after which another model is asked. A wrong request would be wrong for every model."""


class FallbackModel:
    """A model that asks several models in order until one answers.

    In the journal, the other models are failed attempts. A model that failed is not asked for `cooldown_seconds`,
    unless all have failed; then all are asked again in order. A prompt that is too long, or that has a part which
    a model cannot be sent, does not start this pause.
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        on: tuple[type[ProviderError], ...] = DEFAULT_ERRORS,
        cooldown_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        part: PartSpec | None = None,
    ) -> None:
        """Make a model of several.

        `on` are the errors after which the next model is asked; any other is raised at once. `part` is the
        description of this model for the agent spec.
        """
        if not models:
            raise ConfigError("a fallback needs at least one model")
        if cooldown_seconds < 0:
            raise ConfigError(f"cooldown_seconds is {cooldown_seconds!r}; give at least 0")
        self.models = tuple(models)
        self.part = part or PartSpec(
            name=self.models[0].name, missing="the program made a FallbackModel of several models"
        )
        """The description of this model for the agent spec."""
        self._on = on
        self._cooldown_seconds = cooldown_seconds
        self._clock = clock
        self._rests_until = [0.0] * len(self.models)

    @property
    def name(self) -> str:
        """The first model's name."""
        return self.models[0].name

    @property
    def identity(self) -> str:
        """The identities of all models, since any of them may answer."""
        return " | ".join(identity_of(model) for model in self.models)

    @property
    def output_mode(self) -> OutputMode:
        """The output mode of the least capable model: `TEXT` if any model has it, else `TOOL` if any has it,
        else `NATIVE`."""
        modes = {output_mode_of(model) for model in self.models}
        order = (OutputMode.TEXT, OutputMode.TOOL, OutputMode.NATIVE)
        return next(mode for mode in order if mode in modes)

    @property
    def context_tokens(self) -> int | None:
        """The smallest context window of the models, since any of them may answer; `None` if none is known."""
        return min([size for model in self.models if (size := context_tokens_of(model))], default=None)

    @property
    def max_output_tokens(self) -> int | None:
        """The longest answer that one of the models asks for; `None` if all leave that to the server."""
        return max([size for model in self.models if (size := output_tokens_of(model))], default=None)

    @property
    def has_price(self) -> bool:
        """True if all models have a price, since any of them may answer."""
        return all(has_price(model) for model in self.models)

    def takes_schema(self, schema: dict[str, Json], *, has_tools: bool) -> bool:
        """Return whether the servers of all models decode within `schema`."""
        return all(takes_schema(model, schema, has_tools=has_tools) for model in self.models)

    def check_part(self, part: Artifact) -> None:
        """Check that one of the models can be sent `part`. Raises: `UnsupportedPartError` if none can."""
        refusal: UnsupportedPartError | None = None
        for model in self.models:
            try:
                return check_parts(model, [part])
            except UnsupportedPartError as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    def estimate_cost_usd(self, usage: Usage) -> float | None:
        """Return what `usage` would cost with the most expensive of the models; `None` if that is not known."""
        costs = [estimate_cost_usd(model, usage) for model in self.models]
        return max([cost for cost in costs if cost is not None], default=None)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the first answer; see `Model.infer`.

        Raises: the last model's error, which says which models were asked before.
        """
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
                if not isinstance(error, ContextOverflowError | UnsupportedPartError):
                    self._rests_until[index] = self._clock() + self._cooldown_seconds
                if index == order[-1]:
                    raise _explain(failures) from error
                if watch.on_failure is not None:
                    error.model = model.name
                    watch.on_failure(error, len(failures), 0.0)
            else:
                self._rests_until[index] = 0.0
                watch.answered_by = watch.answered_by or model.name
                return completion
        raise AssertionError("there is at least one model")

    def _order(self) -> list[int]:
        """Return the indices of the models to ask: those that are not left out, or all if every one is."""
        now = self._clock()
        awake = [index for index, until in enumerate(self._rests_until) if until <= now]
        return awake or list(range(len(self.models)))

    def __repr__(self) -> str:
        return f"FallbackModel({', '.join(model.name for model in self.models)})"


def _explain(failures: list[tuple[str, ProviderError]]) -> ProviderError:
    """Return the last error, with the models that were asked before it."""
    name, last = failures[-1]
    if len(failures) == 1:
        return last
    before = "; ".join(f"{model}: {type(error).__name__}" for model, error in failures[:-1])
    told = type(last)(
        f"{last} (model {name}, asked after {before})",
        status=last.status,
        retry_after_seconds=last.retry_after_seconds,
    )
    told.model, told.was_sent = name, last.was_sent
    return told
