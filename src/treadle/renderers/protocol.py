"""The protocol of renderers."""

from collections.abc import Sequence
from typing import Protocol

from treadle.core.types import FinishReason, Message, ToolSpec
from treadle.formats import IncrementalParser


class Renderer(Protocol):
    """A chat template together with its tokenizer.

    Ids that a model sampled are never made again from text: `bridge` continues them verbatim.
    """

    @property
    def name(self) -> str:
        """The renderer as its user writes it, such as `chatml` or `hf:FOLDER`."""

    @property
    def fingerprint(self) -> str:
        """A text that is equal for renderers with the same vocabulary and the same template."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The ids that end an answer."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Return the ids of a prompt, up to the point where the model's answer begins.

        Raises: `UnsupportedPartError` for a part of a message that the template has no place for, `ConfigError` if
        the template refuses the messages.
        """

    def bridge(
        self, prior: Sequence[int], added: Sequence[Message], tools: Sequence[ToolSpec], *, is_cut: bool
    ) -> list[int] | None:
        """Return the ids between an answer and the next one.

        `prior` has the ids of a prompt and its answer, and `added` the messages after the answer. The prompt of the
        next inference is `prior` followed by the returned ids. `is_cut` says that the limit of output tokens cut
        the answer off. The token that ends an answer is added if and only if `prior` does not end with one.
        `None`: the template cannot continue these ids, so the whole prompt has to be rendered.
        Raises: as `render`.
        """

    def read(
        self,
        token_ids: Sequence[int],
        tools: Sequence[ToolSpec],
        *,
        finish: FinishReason,
        stop: Sequence[str] = (),
    ) -> Message:
        """Return the message that the ids of an answer say, with its calls and its reasoning.

        The text ends before the first of the texts `stop`. A call that cannot be read is among the calls with its
        text as its arguments.
        """

    def parser(self, tools: Sequence[ToolSpec]) -> IncrementalParser | None:
        """Return a parser for an answer that arrives in pieces; `None` if answers can only be read whole."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are ordinary text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
