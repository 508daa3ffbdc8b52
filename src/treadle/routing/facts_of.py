"""The facts for a router, which come from the state of a run and from the known properties of the tiers."""

from collections.abc import Sequence
from math import ceil

from msgspec.structs import replace

from treadle.core.errors import UnsupportedPartError
from treadle.core.prompts.estimates import weigh, weigh_part, weigh_tools
from treadle.core.prompts.prompting import count_prompt
from treadle.core.state import State
from treadle.core.types import Artifact, Role, ToolSpec, Usage
from treadle.models.protocol import check_parts, estimate_cost_usd
from treadle.models.wrappers.fallback import RESTS
from treadle.models.wrappers.tiered import QUALITY, Tier, TieredModel, window_of
from treadle.routing.judging import follows_question, is_boilerplate, is_identity_sensitive, rate_difficulty
from treadle.routing.latency import LATENCIES
from treadle.routing.protocol import RoutingFacts, TierCandidate

_OUTPUT_TOKENS = 500
"""The length of an answer for which costs are estimated before there was an answer."""
_OUTPUT_ROOM = 1000
"""The room for an answer, if the run does not say it."""


def facts_of_state(
    state: State, model: TieredModel, *, has_tools: bool, is_judged: bool = True
) -> RoutingFacts:
    """Return the facts for the next inference of a run. Without `is_judged`, they have only what filters need."""
    parts: list[Artifact] = []
    required: list[Artifact] = []
    if state.shown.has_parts:
        parts = [part for item in state.messages for part in item.parts]
        # A model is told in words of other parts that it cannot be sent.
        required = [part for item in state.messages if item.role is Role.USER for part in item.parts]
    tokens = count_prompt(state)
    if not state.size.known_messages and state.window is None:
        tokens += ceil(weigh_tools(state.tools))
    judged = state.turn.opened.judgement if is_judged and state.turn.opened is not None else None
    judges = is_judged and judged is None
    facts = facts_of(
        model,
        state.turn.said if judges else "",
        parts=parts,
        required_parts=required,
        tools=state.tools if has_tools else (),
        prompt_tokens=tokens,
        output_tokens=0 if state.window is None else state.window.output_tokens,
        is_judged=is_judged,
        follows_question=judges and follows_question(state),
    )
    if judged is not None:
        facts = replace(
            facts,
            text=state.turn.said,
            is_boilerplate=judged.is_boilerplate and not parts,
            is_identity_sensitive=judged.is_identity_sensitive,
            difficulty=judged.difficulty,
        )
    return replace(
        facts,
        is_first_turn=state.turn.number <= 1,
        is_session=state.started is not None and state.started.is_session,
        tried=state.turn.tried,
    )


def facts_of(
    model: TieredModel,
    text: str,
    *,
    parts: Sequence[Artifact] = (),
    required_parts: Sequence[Artifact] | None = None,
    tools: tuple[ToolSpec, ...] = (),
    prompt_tokens: int | None = None,
    output_tokens: int = 0,
    is_judged: bool = True,
    follows_question: bool = False,
) -> RoutingFacts:
    """Return the facts for a message. `follows_question` is true if it follows a question of the assistant.

    `required_parts` are the `parts` that the model must accept; `None` means all. `prompt_tokens` are the
    tokens of the whole request; `None`: they are estimated. Without `is_judged`, the facts have only what
    filters need.
    """
    images = sum(part.kind == "image" for part in parts)
    if prompt_tokens is None:
        prompt_tokens = ceil(weigh(text) + weigh_tools(tools) + sum(map(weigh_part, parts)))
    required = [part for part in (parts if required_parts is None else required_parts) if part.kind != "text"]
    usage = Usage(prompt_tokens, output_tokens or _OUTPUT_TOKENS) if is_judged else None
    return RoutingFacts(
        text=text,
        candidates=tuple([_candidate(tier, usage, required) for tier in model.tiers.values()]),
        images=images,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens or _OUTPUT_ROOM,
        tools=len(tools),
        is_boilerplate=is_judged and not parts and is_boilerplate(text, follows_question=follows_question),
        is_identity_sensitive=is_judged and is_identity_sensitive(text),
        difficulty=rate_difficulty(text) if is_judged else 0.0,
        allows_weaker=model.allows_weaker,
    )


def _candidate(tier: Tier, usage: Usage | None, required: list[Artifact]) -> TierCandidate:
    # The first model of a fallback is the one that is asked, and so measured.
    name = tier.model.name
    measured = LATENCIES.get(name)
    refusal: str | None = None
    try:
        check_parts(tier.model, required)
    except UnsupportedPartError as error:
        refusal = str(error)
    return TierCandidate(
        tier=tier.name,
        model=name,
        quality=QUALITY[tier.name] if tier.quality is None else tier.quality,
        cost_usd=None if usage is None else estimate_cost_usd(tier.model, usage),
        context_tokens=window_of(tier),
        sees_images=tier.sees_images,
        tool_strength=tier.tool_strength,
        latency_seconds=tier.first_token_seconds
        if measured.total_seconds is None
        else measured.total_seconds,
        is_measured=measured.total_seconds is not None,
        failure_rate=measured.failure_rate,
        rests_seconds=RESTS.left_seconds(tier.model),
        refusal=refusal,
    )
