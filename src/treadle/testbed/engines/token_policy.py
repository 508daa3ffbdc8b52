"""The distribution from which the mock engines sample, and the logprob of any token under it.

A prompt decides which texts the model may write, and how probable each is. A text is written as one of the many
sequences of ids that have its bytes: each id is drawn from the ids that can come next in the text, with weights
that depend on all ids before it and on the version of the model's weights. The probability of an id is a mean
over all texts that begin with the ids so far, and each text counts with its own probability. So it depends only
on the ids before it, whether they were the prompt of a request or were sampled.

A small share of the probability is spread over the whole vocabulary. It is never drawn, as if `top_p` cut it off.
So every id has a finite logprob.
"""

import json
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.types import Message, ToolCall
from treadle.tasks.draws import fraction, pick_weighted
from treadle.tasks.solver import WantedCall
from treadle.testbed.built_in import BuiltInRequest
from treadle.testbed.engines.bpe import END, byte_tokenizer, read_tokenizer_file, tokenizer
from treadle.testbed.engines.mock_template import Asked, Template, Variant
from treadle.testbed.oracle import read_rate
from treadle.testbed.play import misspell, spoil
from treadle.testbed.server.oracle_app import ORACLE, built_in_model

_NOISE = 1e-3
"""The share of the probability that is spread over the whole vocabulary."""

MISTAKES = 3
"""The number of different mistakes that an answer may have."""
_LINE_RATE = 0.1
"""The probability that a text ends with one more line break."""
_MARK = "Answer: "


class TextPlan(Struct, frozen=True):
    """A text with which the model may answer."""

    text: bytes
    """The text, without the beginning that the template writes."""
    weight: float
    """The probability of the text."""


class DrawnToken(Struct, frozen=True):
    """A sampled id."""

    token_id: int
    logprob: float


class TokenPolicy(Protocol):
    """A distribution over the next id."""

    @property
    def template(self) -> Template:
        """The chat template of the model."""

    def sample(
        self, ids: Sequence[int], version: str, seed: str, temperature: float = 1.0
    ) -> Iterator[DrawnToken]:
        """Yield ids that follow `ids`, up to one that ends the answer.

        Logprobs are those of the distribution at temperature 1. Equal arguments give equal ids.
        Raises: `RequestError` if the model cannot answer this prompt.
        """


class MockPolicy:
    """The policy of a built-in model."""

    def __init__(
        self, name: str, mistake_rate: float, answer: Callable[[Asked], Message], template: Template
    ) -> None:
        self.name = name
        self.template = template
        self._mistake_rate = mistake_rate
        self._answer = answer
        self._bpe = template.bpe
        self._is_canonical = Variant.CANONICAL in template.variants

    def sample(
        self, ids: Sequence[int], version: str, seed: str, temperature: float = 1.0
    ) -> Iterator[DrawnToken]:
        walk = self._start(ids, version)
        number = 0
        while True:
            odds = walk.odds()
            chosen = _choose(odds, fraction(seed, number), temperature)
            yield DrawnToken(chosen, self._logprob(odds, chosen))
            if chosen == self.template.end:
                return
            walk.advance(chosen)
            number += 1

    def logprobs(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int], version: str | Sequence[str] = ""
    ) -> list[float]:
        """Return the logprob of each id of `output_ids` after the ids before it.

        `version` is the version of the weights, or a sequence with one version for each id of the output.
        """
        versions = [version] * len(output_ids) if isinstance(version, str) else version
        walk = self._start(prompt_ids, "")
        values: list[float] = []
        for number, used in zip(output_ids, versions, strict=True):
            values.append(self._logprob(walk.odds(used), number))
            walk.advance(number)
        return values

    def _logprob(self, odds: dict[int, float], number: int) -> float:
        return math.log((1.0 - _NOISE) * odds.get(number, 0.0) + _NOISE / self._bpe.size)

    def _start(self, ids: Sequence[int], version: str) -> "_Walk":
        asked = self.template.read(ids)
        plans = make_plans(self._answer, asked, self.template, self._mistake_rate)
        opening = self.template.opening.encode()
        if not asked.begun.startswith(opening):
            # The prompt was rendered by a template that does not begin the answer.
            plans = [TextPlan(opening + plan.text, plan.weight) for plan in plans]
            opening = b""
        begun = asked.begun.removeprefix(opening)
        fitting = [
            TextPlan(plan.text[len(begun) :], plan.weight) for plan in plans if plan.text.startswith(begun)
        ]
        return _Walk(self, fitting or [TextPlan(b"", 1.0)], ids, version)


class _Walk:
    """A position in an answer: the texts that are still possible, and the rest of each."""

    def __init__(
        self, policy: MockPolicy, plans: Sequence[TextPlan], ids: Sequence[int], version: str
    ) -> None:
        self._bpe = policy._bpe
        self._end = policy.template.end
        self._is_canonical = policy._is_canonical
        self._plans = list(plans)
        self._version = version
        self._state = crc32(array("i", ids).tobytes())
        self._parts: list[dict[int, float]] = []

    def odds(self, version: str | None = None) -> dict[int, float]:
        """Return the probability of each id that can be next."""
        state = crc32((self._version if version is None else version).encode(), self._state)
        total = sum([plan.weight for plan in self._plans])
        self._parts = [self._weigh(plan.text, state) for plan in self._plans]
        odds: dict[int, float] = {}
        for plan, part in zip(self._plans, self._parts, strict=True):
            for number, share in part.items():
                odds[number] = odds.get(number, 0.0) + plan.weight / total * share
        return odds

    def _weigh(self, rest: bytes, state: int) -> dict[int, float]:
        """Return the probability of each id with which `rest` may begin."""
        if not rest:
            return {self._end: 1.0}
        bpe = self._bpe
        if self._is_canonical:
            return {bpe.encode_bytes(rest)[0]: 1.0}
        weights: dict[int, float] = {}
        for size in range(1, min(bpe.max_bytes, len(rest)) + 1):
            number = bpe.by_content.get(rest[:size])
            if number is not None:
                weights[number] = size * size * (0.5 + crc32(b"%d" % number, state) / 2**32)
        total = sum(weights.values())
        return {number: weight / total for number, weight in weights.items()}

    def advance(self, number: int) -> None:
        """Move the position behind an id that `odds` has just returned."""
        size = len(self._bpe.contents.get(number, b""))
        kept = zip(self._plans, self._parts, strict=True)
        left = [TextPlan(plan.text[size:], plan.weight) for plan, part in kept if number in part]
        self._plans = left or [TextPlan(b"", 1.0)]
        self._state = crc32(array("i", (number,)).tobytes(), self._state)


def _choose(odds: dict[int, float], draw: float, temperature: float) -> int:
    if temperature <= 0.0:
        return max(odds, key=lambda number: odds[number])
    return pick_weighted({number: math.pow(odd, 1.0 / temperature) for number, odd in odds.items()}, draw)


def make_plans(
    answer: Callable[[Asked], Message], asked: Asked, template: Template, mistake_rate: float
) -> list[TextPlan]:
    """Return the plans for a prompt: the answer itself, and with `mistake_rate` versions of it with a mistake."""
    message = answer(asked)
    messages = [(message, 1.0 - mistake_rate)]
    if mistake_rate:
        key = f"{len(asked.messages)}/{message.content}"
        messages += [
            (_spoil(message, f"{key}/{index}"), mistake_rate / MISTAKES) for index in range(MISTAKES)
        ]
    plans: dict[bytes, float] = {}
    for said, weight in messages:
        text = template.write(said).removeprefix(template.opening).encode()
        for ending, share in ((b"", 1.0 - _LINE_RATE), (b"\n", _LINE_RATE)):
            plans[text + ending] = plans.get(text + ending, 0.0) + weight * share
    return [TextPlan(text, weight) for text, weight in plans.items() if weight]


def _spoil(message: Message, key: str) -> Message:
    """Return `message` with a mistake: in its first call, or in its answer."""
    if not message.tool_calls:
        head, mark, answer = message.content.rpartition(_MARK)
        return replace(message, content=head + mark + _spoil_answer(answer, key))
    first, *rest = message.tool_calls
    try:
        call = WantedCall(first.name, first.parsed, next(iter(_paths(first.parsed)), None))
    except ValueError:
        return message
    name, arguments = spoil(call, key)
    return replace(message, tool_calls=(ToolCall(first.call_id, name, arguments), *rest))


def _paths(arguments: object) -> Sequence[str]:
    return [name for name in arguments if name.endswith("path")] if isinstance(arguments, dict) else ()


def _spoil_answer(answer: str, key: str) -> str:
    """Return an answer with another number in it; with an extra letter if it has no number."""
    place = next((at for at in range(len(answer) - 1, -1, -1) if answer[at].isdecimal()), None)
    if place is None:
        return misspell(answer, key)
    digit = (int(answer[place]) + 1 + sum(key.encode()) % 8) % 10
    return f"{answer[:place]}{digit}{answer[place + 1 :]}"


def make_policy(name: str, mistake_rate: float = 0.0) -> MockPolicy:
    """Return the policy of the model `name`: `oracle`, `teacher` or another, which echoes.

    After a colon the name may have a rate of mistakes, and after each plus sign a `Variant`, as in
    `oracle:0.3+strip_thinking`. Raises: `ConfigError` for any other suffix.
    """
    stem, *variants = name.split("+")
    try:
        found = frozenset(map(Variant, variants))
    except ValueError:
        raise ConfigError(
            f"there is no model {name!r}; give a name such as {ORACLE!r}, and variants as in "
            f"'{ORACLE}+strip_thinking'. The variants are {', '.join(Variant)}"
        ) from None
    mistake_rate = read_rate(stem, mistake_rate)
    model = built_in_model(stem.partition(":")[0])
    bpe = byte_tokenizer() if Variant.BYTES in found else tokenizer()
    return MockPolicy(
        name,
        mistake_rate,
        lambda asked: model.answer(BuiltInRequest(asked.messages, asked.tools)).message,
        Template(bpe, found),
    )


def logprobs_of(
    model: str,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    version: str | Sequence[str] = "",
    *,
    mistake_rate: float = 0.0,
) -> list[float]:
    """Return the logprobs with which the mock engine's `model` samples `output_ids` after `prompt_ids`.

    `version` is the version of the weights, or a sequence with one version for each id of the output.
    """
    return make_policy(model, mistake_rate).logprobs(prompt_ids, output_ids, version)


def export_tokenizer(model: str, folder: Path) -> None:
    """Write the tokenizer and the chat template of a mock model to `folder`, in the form of Hugging Face.

    Source: transformers 4.57.
    """
    template = make_policy(model).template
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "model_max_length": 1 << 20,
        "clean_up_tokenization_spaces": False,
    }
    raw = read_tokenizer_file(has_merges=Variant.BYTES not in template.variants)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"tokenizer.json": raw, "tokenizer_config.json": config}.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template.jinja, encoding="utf-8")
