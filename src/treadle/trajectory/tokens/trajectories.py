"""The values of token trajectories, and the texts of token ids: of single tokens, and by a run's renderers."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.tokens.routed_experts import RoutedExperts
from treadle.core.tokens.token_record import SamplingMask, TokenGrade
from treadle.core.types import FinishReason, Json, Message, Settings
from treadle.renderers.registry import load_renderer

__all__ = ["Drift", "DriftReport", "Floats", "Ids", "Span", "TokenGrade", "Trajectory"]

Ids: TypeAlias = "array[int]"
"""Token ids, as an array of 32-bit integers."""
Floats: TypeAlias = "array[float]"
"""Log probabilities or weights, as an array of 32-bit floats."""


class Drift(StrEnum):
    """The reason why a prompt does not extend an earlier prompt and answer, so that a branch begins."""

    COMPACTION = "compaction"
    """The context was compacted."""
    EDITED_HISTORY = "edited_history"
    """An earlier message was changed or removed."""
    REASONING_STRIPPED = "reasoning_stripped"
    """The template left out the reasoning of an earlier answer."""
    TOOL_CALL_REWRITTEN = "tool_call_rewritten"
    """The template wrote an earlier tool call in another way than the model."""
    RETOKENIZED = "retokenized"
    """The text is the same, and its ids differ."""
    TRUNCATED = "truncated"
    """An earlier answer was cut off by the limit of output tokens, or the server cut the prompt."""
    TEMPLATE = "template"
    """The template wrote the same messages differently, such as with other tools or another model."""
    INJECTED = "injected"
    """A message was added before the end of the transcript."""
    SUBAGENT = "subagent"
    """The run of a sub-agent begins."""
    FORK = "fork"
    """The run was forked from another one."""
    UNKNOWN = "unknown"
    """None of the other reasons was found."""


class DriftReport(Struct, frozen=True):
    """The report about the beginning of a branch: why it begins, and where its prompt differs from the most
    similar earlier ids."""

    kind: Drift
    position: int
    """The first position that differs, counted from the beginning of the prompt."""
    expected: tuple[int, ...] = ()
    """The ids of the earlier prompt and answer from `position` on, at most 32."""
    found: tuple[int, ...] = ()
    """The ids of the new prompt from `position` on, at most 32."""
    expected_text: str | None = None
    """`expected` as text; `None` if there is no decoder."""
    found_text: str | None = None
    """`found` as text; `None` if there is no decoder."""
    run_id: str | None = None
    """The run that the earlier ids come from; `None` if there are none."""
    seq: int | None = None
    """The number of the event of the inference that the earlier ids come from; `None` if there is none."""


class Span(Struct, frozen=True, kw_only=True):
    """The part of a trajectory that is the answer of one inference."""

    start: int
    """The position of the answer's first token in the trajectory."""
    end: int
    """The position after its last token."""
    run_id: str
    seq: int
    """The number of the `inference_completed` event."""
    step: int
    turn: int = 0
    message: int = -1
    """The position of the answer in `Trajectory.messages`; -1 if it is not among them."""
    finish_reason: FinishReason
    has_failed_call: bool = False
    """True if a call of the answer failed through the model's own fault; see `ToolResult.is_models_fault`."""
    model: str | None = None
    engine: str | None = None
    weight_versions: tuple[tuple[int, str], ...] = ()
    """How many successive tokens each weight version sampled, in order; empty if no version is known."""
    sampling_mask: SamplingMask | None = None
    """The tokens that each token was chosen from; `None` if that is not known."""
    settings: Settings | None = None
    """The sampling settings as sent."""
    is_trained: bool = True
    """True if the tokens count as sampled in this trajectory; false if another branch delivers them."""


class Trajectory(Struct, frozen=True, kw_only=True):
    """One branch of a run's tokens, from the first prompt to the last answer.

    The arrays are aligned with `token_ids_T`. In the grade `text` they are empty.
    """

    run_id: str
    branch: int
    """The number of the branch in its run, from 0."""
    grade: TokenGrade
    token_ids_T: Ids
    sampled_T: bytes
    """1 for a token that the model sampled and that no other branch delivers, else 0."""
    logprobs_T: Floats
    """The engine's log probabilities; NaN for tokens that were not sampled or have none that is known."""
    routed_experts: RoutedExperts | None = None
    """The experts of each token, perhaps without the last one; `None` if those of some token are not known."""
    spans: tuple[Span, ...] = ()
    """The inferences, in order."""
    drift: DriftReport | None = None
    """Why this branch begins; `None` for the first one."""
    messages: tuple[Message, ...] = ()
    """The content of the branch as messages, as the model saw them, with the last answer."""
    tokenizer: str | None = None
    """The fingerprint of the renderer that made the prompts; `None` if the server made them."""

    @property
    def has_policy_logprobs(self) -> bool | None:
        """Whether `logprobs_T` are those of the distribution that the tokens were sampled from, at the temperature,
        the top-p and the penalties of each answer; `None` if that is not known of every answer."""
        found = [
            None if span.settings is None else span.settings.has_policy_logprobs
            for span in self.spans
            if span.is_trained
        ]
        return False if False in found else None if None in found or not found else True

    @property
    def sampled_tokens(self) -> int:
        """How many tokens count as sampled in this branch."""
        return self.sampled_T.count(1)


Decode: TypeAlias = Callable[[Sequence[int]], str]
"""A function that returns the text of ids, special tokens included, such as `Renderer.decode`."""
Decoders: TypeAlias = Decode | Mapping[str, Decode] | None
"""A function for all ids, or functions by the fingerprint of the tokenizer; `None`: ids cannot be decoded."""

_HOLE = "\ufffd"
_MOST = 8
"""The number of tokens without a whole character after which their text is used unchanged."""


def find_decode(decoders: Decoders, tokenizer: str | None) -> Decode | None:
    """Return the function that decodes the ids of a tokenizer; `None` if no decoder is known for it."""
    if isinstance(decoders, Mapping):
        return None if tokenizer is None else decoders.get(tokenizer)
    return decoders


def split_text(ids: Sequence[int], decode: Decode) -> list[str]:
    """Return the text of each token. Joined, they are the text of all tokens. If several tokens make one
    character, the text of the last one has the character."""
    found: list[str] = []
    waiting: list[int] = []
    for item in ids:
        waiting.append(item)
        text = decode(waiting)
        if text.endswith(_HOLE) and len(waiting) < _MOST:
            found.append("")
            continue
        found.append(text)
        waiting = []
    if waiting:
        found[-1] = decode(waiting)
    return found


def load_decoders(bodies: Iterable[e.DurableBody]) -> dict[str, Decode]:
    """Return the decoders of the renderers that a run's agents name, by their fingerprints.

    Renderers whose files are not here are left out. Loading one reads files that the run names, so ask
    `Journal.is_trusted` first.
    """
    names: set[str] = set()
    for body in bodies:
        spec = body.spec if isinstance(body, e.RunStarted) else None
        spec = body.agent if isinstance(body, e.RunResumed) else spec
        if spec is not None:
            names.update(_find_names(spec.model.settings))
    found: dict[str, Decode] = {}
    for name in names:
        try:
            renderer = load_renderer(name)
        except ConfigError:
            continue
        found[renderer.fingerprint] = renderer.decode
    return found


def _find_names(settings: Json) -> Iterable[str]:
    """Yield the names of renderers in the settings of a model and of the models within it."""
    values = settings.items() if isinstance(settings, dict) else ()
    for key, value in values:
        if key == "renderer" and isinstance(value, str):
            yield value
        for inner in value if isinstance(value, list) else [value]:
            yield from _find_names(inner)
