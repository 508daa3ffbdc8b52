"""The protocol `Model`, and the functions by which other packages of Treadle use models.

`models.config.recipe.make_model` makes a model from a name or a part.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from treadle.core.errors import ProviderError
from treadle.core.events import Delta, ReasoningDelta, ServerCallDelta, TextDelta, ToolCallDelta
from treadle.core.spec import PartSpec
from treadle.core.types import Artifact, Completion, Json, Message, OutputMode, Request, Usage


class RateLimits(Struct, frozen=True, omit_defaults=True):
    """The rate limits of a server, as its answers report them. `None`: not reported."""

    requests: int | None = None
    """How many requests a window allows."""
    requests_left: int | None = None
    requests_reset_seconds: float | None = None
    """How long until all requests of the window are available again."""
    tokens: int | None = None
    tokens_left: int | None = None
    tokens_reset_seconds: float | None = None


class Hold(Struct, frozen=True):
    """A wait that a server asked for."""

    model: str | None
    """The name of the model that was asked."""
    seconds: float
    """The rest of the wait, in seconds."""


class Watch(Struct, eq=False):
    """The callbacks by which a model reports while it works. The loop makes one for each inference."""

    on_delta: Callable[[Delta], None] | None = None
    """The function to call with each piece of the answer when it arrives. `None`: the answer is not streamed."""
    on_failure: Callable[[ProviderError, int, float], None] | None = None
    """The function that a wrapper calls before it tries again, with the error, the attempt's number (from 1; 0 for
    a wait before an attempt) and the delay before the next attempt in seconds. Pieces that the failed attempt
    streamed no longer count. If it raises the error, the wrapper must not try again."""
    on_rate_limits: Callable[[RateLimits], None] | None = None
    """The function to call with the server's rate limits, if the headers of an answer report them."""
    left_seconds: float | None = None
    """How long the caller waits for the answer. If a request would wait longer, it fails at once. `None`: no
    limit."""
    patience_seconds: float | None = None
    """The longest wait that a server may ask for; beyond it another model can be asked. `None`: no limit."""
    held: "Hold | None" = None
    """The wait that a server asked for before the run was resumed; `None` if there is none."""
    answered_by: str | None = None
    """The name of the model that answered, which a wrapper of several models sets; `None`: there is only one."""
    on_token_ids: Callable[[Sequence[int]], None] | None = None
    """What an engine of `models.tokens` calls with its newest ids, in place of `on_delta`. `None`: no stream."""
    begun: dict[object, list[Any]] = {}
    """The pieces of answers that failed on the way, by what was asked: the model that keeps them here goes on with
    its answer when a wrapper tries again."""


class Model(Protocol):
    """A model that answers requests. A wrapper is a model that passes requests on to another model."""

    @property
    def name(self) -> str:
        """The name of the model as its user writes it, for the journal."""

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the answer to one request. Cancelling closes the connection.

        Raises: `ProviderError` if the server fails, refuses or does not answer; its subclass
        `UnsupportedPartError`, before anything is sent, if a message has a part that cannot be sent to this
        model.
        """


def innermost(model: object) -> object:
    """Return the model within all wrappers of `model`."""
    while (inner := getattr(model, "inner", None)) is not None:
        model = inner
    return model


def identity_of(model: Model) -> str:
    """Return a text that identifies `model`: its server, name and settings, without the API key.

    Equal requests to models with the same identity may share a cached answer. It is the model's attribute
    `identity`, or its name if it has no such attribute.
    """
    return str(getattr(model, "identity", model.name))


def output_mode_of(
    model: Model, schema: dict[str, Json] | None = None, *, has_tools: bool = False
) -> OutputMode:
    """Return how `model` is best made to give answers that fit `schema`, or any schema, with or without tools.

    It is the model's attribute `output_mode`. A model without that attribute is assumed to decode within a
    schema.
    """
    mode = OutputMode(getattr(model, "output_mode", OutputMode.NATIVE))
    if (
        mode is OutputMode.NATIVE
        and schema is not None
        and not takes_schema(model, schema, has_tools=has_tools)
    ):
        return OutputMode.TOOL
    return mode


def takes_schema(model: Model, schema: dict[str, Json], *, has_tools: bool) -> bool:
    """Return whether the server of `model` can decode within `schema`: true unless `takes_schema` says no."""
    takes = getattr(model, "takes_schema", None)
    return True if takes is None else bool(takes(schema, has_tools=has_tools))


def can_call_tools(model: Model) -> bool:
    """Return whether `model` can call tools: true unless its attribute `can_call_tools` says no."""
    return bool(getattr(model, "can_call_tools", True))


def context_tokens_of(model: Model) -> int | None:
    """Return the context window of `model`: its attribute `context_tokens`; `None` without this attribute."""
    tokens = getattr(model, "context_tokens", None)
    return tokens if isinstance(tokens, int) else None


def output_tokens_of(model: Model) -> int | None:
    """Return the longest answer that `model` asks for: its attribute `max_output_tokens`; else `None`."""
    tokens = getattr(model, "max_output_tokens", None)
    return tokens if isinstance(tokens, int) else None


def has_price(model: Model) -> bool:
    """Return whether answers of `model` have a cost: true unless its attribute `has_price` is false."""
    return bool(getattr(model, "has_price", True))


async def check_vocabulary(model: Model) -> None:
    """Check that the model's server reads token ids as its renderer means them; see `TokenModel.check_vocabulary`.

    Raises: `ConfigError` if it does not; `TransportError`.
    """
    check = getattr(innermost(model), "check_vocabulary", None)
    if check is not None:
        await check()


def fingerprints_of(model: Model) -> frozenset[str | None]:
    """Return the fingerprints of the renderers that make the prompts of `model`, of which there may be several.

    `None` among them: a server makes the ids.
    """
    found = innermost(model)
    models: Sequence[Model] = getattr(found, "models", ())
    if models:
        return frozenset().union(*map(fingerprints_of, models))
    return frozenset([getattr(getattr(found, "renderer", None), "fingerprint", None)])


def estimate_cost_usd(model: Model, usage: Usage) -> float | None:
    """Return what `usage` would cost in US dollars, as the model's method `estimate_cost_usd` says; `None` if
    the model has no such method, or if the method does not know."""
    estimate = getattr(model, "estimate_cost_usd", None)
    return None if estimate is None else estimate(usage)


def part_of(model: Model) -> PartSpec:
    """Return the description of `model` for the agent spec. It is the model's attribute `part`, if it has one."""
    part = getattr(model, "part", None)
    if isinstance(part, PartSpec):
        return part
    return PartSpec(name=model.name, missing="it is an object of the program")


def pass_on(message: Message, on_delta: Callable[[Delta], object]) -> None:
    """Call `on_delta` with a whole message, for callers that stream an answer which came in one piece."""
    if message.reasoning:
        on_delta(ReasoningDelta(message.reasoning))
    told = 0
    for index, served in enumerate(message.server_calls):
        at = max(told, served.offset or 0)
        if text := message.content[told:at]:
            on_delta(TextDelta(text))
        on_delta(ServerCallDelta(index, served, is_done=True))
        told = at
    if text := message.content[told:]:
        on_delta(TextDelta(text))
    for index, call in enumerate(message.tool_calls):
        on_delta(ToolCallDelta(index, call.call_id or None, call.name, call.arguments))


def check_parts(model: Model, parts: Iterable[Artifact]) -> None:
    """Check that the dialect of `model` can send `parts`.

    Raises: `UnsupportedPartError` if the model has a method `check_part` that refuses one of them.
    """
    check = getattr(model, "check_part", None)
    if check is not None:
        for part in parts:
            check(part)


ModelLike: TypeAlias = "Model | str"
"""A model, or a name for `treadle.model`."""
