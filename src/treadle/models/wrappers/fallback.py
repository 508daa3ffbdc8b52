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
    UnavailableError,
    UnsupportedPartError,
    retold,
)
from treadle.core.spec import PartSpec
from treadle.core.types import Artifact, Completion, Json, OutputMode, Request, Usage
from treadle.models.protocol import (
    Model,
    Watch,
    can_call_tools,
    check_parts,
    check_vocabulary,
    context_tokens_of,
    estimate_cost_usd,
    has_price,
    identity_of,
    innermost,
    output_mode_of,
    output_tokens_of,
    takes_schema,
)

DEFAULT_ERRORS = (
    RateLimitError,
    ServerError,
    TransportError,
    AuthenticationError,
    UnavailableError,
    ContextOverflowError,
    UnsupportedPartError,
)
"""Errors after which another model is asked, beside a `ProviderError` of no narrower type, as a program's own model
may raise it. A wrong request would be wrong for every model."""


COOLDOWN_SECONDS = 30.0
"""How long a model that failed is not asked, unless its server asked for a longer wait."""
PATIENCE_SECONDS = 2.0
"""The longest wait that a server may ask for, if another model can be asked and nothing is known of its latency."""


class Rests:
    """The models that failed and are not asked for a while, by the server that they ask. Any thread may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[object, float] = {}

    def begin(self, model: Model, seconds: float) -> None:
        """Let a model rest that failed."""
        now = self._clock()
        # A copy, since other threads may read meanwhile.
        known = {key: until for key, until in list(self._until.items()) if until > now}
        self._until = known | {_key_of(model): now + seconds}

    def end(self, model: Model) -> None:
        """End the rest of a model, which has answered."""
        if self._until:
            self._until.pop(_key_of(model), None)

    def left_seconds(self, model: Model) -> float:
        """Return how long a model still rests; 0 if it does not. A `FallbackModel` rests if all its models do."""
        if not self._until:
            return 0.0
        if isinstance(model, FallbackModel):
            return min([model.rests.left_seconds(item) for item in model.models])
        return max(0.0, self._until.get(_key_of(model), 0.0) - self._clock())


def _key_of(model: Model) -> object:
    """Return what tells the servers of models apart: address, model and key, or else the object."""
    found = innermost(model)
    return getattr(found, "server", found)


RESTS = Rests()
"""The models that rest in this process."""


class FallbackModel:
    """A model that asks several models in order until one answers.

    In the journal, the other models are failed attempts. A model that failed is asked by no run of the process for
    `cooldown_seconds`, or for as long as its server asked, unless all have failed; then all are asked again in
    order. A prompt that is too long, or that has a part which a model cannot be sent, does not start this pause.
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        cooldown_seconds: float = COOLDOWN_SECONDS,
        clock: Callable[[], float] | None = None,
        part: PartSpec | None = None,
    ) -> None:
        """Make a model of several.

        `part` is the description of this model for the agent spec. With a `clock`, the pauses hold for this object
        alone.
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
        self._cooldown_seconds = cooldown_seconds
        self.rests = RESTS if clock is None else Rests(clock)
        """The models that rest."""

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
        """The output mode of the least capable model: `TEXT` if any has it, else `TOOL`, else `NATIVE`."""
        modes = {output_mode_of(model) for model in self.models}
        order = (OutputMode.TEXT, OutputMode.TOOL, OutputMode.NATIVE)
        return next(mode for mode in order if mode in modes)

    @property
    def can_call_tools(self) -> bool:
        """True if all models can call tools, since any of them may answer."""
        return all(can_call_tools(model) for model in self.models)

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

    async def check_vocabulary(self) -> None:
        """Check the renderers of all models, since any of them may answer; see `TokenModel.check_vocabulary`."""
        for model in self.models:
            await check_vocabulary(model)

    def estimate_cost_usd(self, usage: Usage) -> float | None:
        """Return what `usage` would cost with the most expensive of the models; `None` if that is not known."""
        costs = [estimate_cost_usd(model, usage) for model in self.models]
        return max([cost for cost in costs if cost is not None], default=None)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the first answer; see `Model.infer`.

        Raises: the last model's error, which says which models were asked before.
        """
        failures: list[tuple[str, ProviderError]] = []
        awake = [model for model in self.models if not self.rests.left_seconds(model)]
        order, patience = awake or self.models, watch.patience_seconds
        for index, model in enumerate(order):
            is_last = index == len(order) - 1
            watch.patience_seconds = patience if is_last else PATIENCE_SECONDS
            try:
                completion = await model.infer(request, watch)
            except ProviderError as error:
                failures.append((model.name, error))
                if not isinstance(error, DEFAULT_ERRORS) and type(error) is not ProviderError:
                    raise
                if not isinstance(error, ContextOverflowError | UnsupportedPartError):
                    seconds = max(self._cooldown_seconds, error.retry_after_seconds or 0.0)
                    self.rests.begin(model, seconds)
                if is_last:
                    raise _explain(failures) from error
                if watch.on_failure is not None:
                    error.model = model.name
                    watch.on_failure(error, len(failures), 0.0)
            else:
                self.rests.end(model)
                watch.answered_by = watch.answered_by or model.name
                return completion
        raise AssertionError("there is at least one model")

    def __repr__(self) -> str:
        return f"FallbackModel({', '.join(model.name for model in self.models)})"


def _explain(failures: list[tuple[str, ProviderError]]) -> ProviderError:
    """Return the last error, with the models that were asked before it."""
    name, last = failures[-1]
    if len(failures) == 1:
        return last
    before = "; ".join(f"{model}: {type(error).__name__}" for model, error in failures[:-1])
    told = retold(last, f"{last} (model {name}, asked after {before})")
    told.model = name
    return told
