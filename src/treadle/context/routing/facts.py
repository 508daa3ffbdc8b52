"""The facts for a router: from the state of a run, and from what is known about the tiers."""

import msgspec

from treadle.context.judging import is_boilerplate, is_identity_sensitive, rate_difficulty
from treadle.context.routing.latency import LATENCIES, Latencies
from treadle.context.routing.protocol import Candidate, RoutingFacts
from treadle.core.errors import UnsupportedPartError
from treadle.core.state import State, guess_input_tokens
from treadle.core.types import Artifact, Message, Role, ToolSpec, Usage
from treadle.models.protocol import check_parts, estimate_cost_usd
from treadle.models.wrappers.tiered import QUALITY, Tier, TieredModel, window_of

_OUTPUT_TOKENS = 500
"""The length of an answer for which costs are estimated, if there was none before."""
_IMAGE_TOKENS = 1000


def facts_of_state(
    state: State, model: TieredModel, *, has_tools: bool, is_judged: bool = True
) -> RoutingFacts:
    """Return the facts for the next inference of a run. Without `is_judged`, they have only what filters need."""
    message, before = _last_message(state) if is_judged else (None, None)
    parts = [part for item in state.messages for part in item.parts] if state.has_parts else []
    sent = [part for item in state.messages if item.role is Role.USER for part in item.parts] if parts else []
    return facts_of(
        model,
        "" if message is None else message.content,
        parts=parts,
        user_parts=sent,
        tools=state.tools if has_tools else (),
        prompt_tokens=guess_input_tokens(state),
        is_measured=bool(state.last_usage.input_tokens),
        output_tokens=state.window.output_tokens if state.window is not None else 0,
        is_first_turn=state.turn <= 1,
        is_session=state.started is not None and state.started.is_session,
        follows_question=before is not None and before.content.rstrip().endswith("?"),
        tried=state.tried,
    )


def facts_of(
    model: TieredModel,
    text: str,
    *,
    parts: list[Artifact] | None = None,
    user_parts: list[Artifact] | None = None,
    tools: tuple[ToolSpec, ...] = (),
    prompt_tokens: int | None = None,
    is_measured: bool = False,
    output_tokens: int = 0,
    is_first_turn: bool = True,
    is_session: bool = False,
    follows_question: bool = False,
    tried: dict[str, str] | None = None,
    latencies: Latencies = LATENCIES,
) -> RoutingFacts:
    """Return the facts for a message.

    `prompt_tokens` are those of the transcript; `is_measured` is true if they include the tools. `user_parts` are
    the `parts` that must be sent: a model is told in words of others that it cannot be sent.
    """
    images = sum(part.kind == "image" for part in parts or ())
    tokens = -(-len(text) // 4) if prompt_tokens is None else prompt_tokens
    if not is_measured:
        tokens += -(-len(msgspec.json.encode(tools)) // 4) if tools else 0
        tokens += images * _IMAGE_TOKENS
    must = [part for part in user_parts or () if part.kind != "text"]
    usage = Usage(tokens, output_tokens or _OUTPUT_TOKENS)
    return RoutingFacts(
        text=text,
        candidates=tuple([_candidate(tier, usage, must, latencies) for tier in model.tiers.values()]),
        is_first_turn=is_first_turn,
        is_session=is_session,
        images=images,
        prompt_tokens=tokens,
        output_tokens=output_tokens or 1000,
        tools=len(tools),
        is_boilerplate=is_boilerplate(text, follows_question=follows_question) and not images,
        is_identity_sensitive=is_identity_sensitive(text),
        difficulty=rate_difficulty(text),
        tried=tried or {},
    )


def _candidate(tier: Tier, usage: Usage, parts: list[Artifact], latencies: Latencies) -> Candidate:
    # The first model of a fallback is the one that is asked, and so measured.
    name = tier.model.name
    measured = latencies.get(name)
    refusal: str | None = None
    try:
        check_parts(tier.model, parts)
    except UnsupportedPartError as error:
        refusal = str(error)
    return Candidate(
        tier=tier.name,
        model=name,
        quality=QUALITY[tier.name] if tier.quality is None else tier.quality,
        cost_usd=estimate_cost_usd(tier.model, usage),
        context_tokens=window_of(tier),
        sees_images=tier.sees_images,
        tool_strength=tier.tool_strength,
        latency_seconds=tier.first_token_seconds
        if measured.total_seconds is None
        else measured.total_seconds,
        is_measured=measured.total_seconds is not None,
        failure_rate=measured.failure_rate,
        refusal=refusal,
    )


def _last_message(state: State) -> tuple[Message | None, Message | None]:
    """Return the newest message of the user, and the assistant's message before it."""
    found: Message | None = None
    for index in range(len(state.messages) - 1, -1, -1):
        message = state.messages[index]
        if found is None and message.role is Role.USER:
            found = message
        elif found is not None and message.role is Role.ASSISTANT:
            return found, message
    return found, None
