"""ChatML with calls as text, over any tokenizer. With bytes as ids it needs no other package.

Each message is encoded separately from its marks, so that no text can begin or end a message. Source: ChatML as
Qwen 2.5 and Hermes 3 use it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.registry import check_options
from treadle.core.tool_cache import ToolCache
from treadle.core.types import Json, Message, Role, ToolSpec
from treadle.formats.text_transcript import TranscriptWriter, kept_text, with_text
from treadle.renderers.answer_reading import AnswerReader, check_parts, keep_text
from treadle.renderers.tokenizer import (
    CHATML_TOKENS,
    FileTokenizer,
    Tokenizer,
    byte_tokenizer,
    hash_vocabulary,
)

_PREFILLS = {"none": "", "open": "<think>\n", "closed": "<think>\n\n</think>\n\n"}
_CLOSER = "</think>"


class ChatmlRenderer(AnswerReader):
    """ChatML over a tokenizer."""

    format: str

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        name: str = "chatml",
        format: str = "hermes",
        thinking: str = "none",
        keeps_thinking: bool = True,
    ) -> None:
        """Make a renderer over `tokenizer`, or with bytes as ids.

        `format` is the text format of the calls. `thinking` is what the prompt begins an answer with: `none`,
        `open` (the opening tag of thinking) or `closed` (an empty thought). Without `keeps_thinking`, the thinking
        of turns before the newest one is left out, so a prompt does not continue the ids of the turn before.
        Raises: `ConfigError` for an unknown format or value, or a tokenizer without the marks of ChatML.
        """
        if thinking not in _PREFILLS:
            raise ConfigError(f"the option thinking is {thinking!r}; use {', '.join(_PREFILLS)}")
        self.name = name
        self.tokenizer = byte_tokenizer() if tokenizer is None else tokenizer
        special = self.tokenizer.special_ids
        missing = [text for text in CHATML_TOKENS[:2] if text not in special]
        if missing:
            raise ConfigError(
                f"the tokenizer of {name!r} has no special token {missing[0]!r}, which ChatML needs; use hf:FOLDER "
                "for a tokenizer with another template"
            )
        self._start, self._end = [special[text] for text in CHATML_TOKENS[:2]]
        self._prefill = _PREFILLS[thinking]
        stops = [special[text] for text in CHATML_TOKENS[1:] if text in special]
        super().__init__(self.tokenizer, format, stops, self._prefill)
        self._keeps_thinking = keeps_thinking
        told = ["chatml 1", hash_vocabulary(self.tokenizer), format, thinking, str(keeps_thinking)]
        self.fingerprint = "chatml-" + sha256("\n".join(told).encode()).hexdigest()[:16]
        self._break = self.tokenizer.encode("\n")
        self._open = [self._start, *self.tokenizer.encode(f"{Role.ASSISTANT.value}\n{self._prefill}")]
        self._writers = ToolCache(partial(TranscriptWriter, format))

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return self._write(messages, tools, is_first=True) + self._open

    def bridge(
        self, prior: Sequence[int], added: Sequence[Message], tools: Sequence[ToolSpec], *, is_cut: bool
    ) -> list[int] | None:
        if not self._keeps_thinking and any(message.role is Role.USER for message in added):
            return None
        end: list[int] = []
        if not prior or prior[-1] not in self.stop_token_ids:
            end = [*self.encode(self.close(prior)), self._end]
        return end + self._break + self._write(added, tools, is_first=False) + self._open

    def _write(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, is_first: bool) -> list[int]:
        check_parts(messages, self.name)
        if not self._keeps_thinking:
            messages = _without_thinking(messages)
        ids: list[int] = []
        for message in self._writers.find(tools)(messages, is_first):
            ids += [self._start, *self.encode(f"{message.role.value}\n{message.content}"), self._end]
            ids += self._break
        return ids

    def _read_text(self, text: str, tools: Sequence[ToolSpec], *, is_cut: bool) -> Message:
        message = super()._read_text(text, tools, is_cut=is_cut)
        # A later prompt can be rendered from the message alone only if that gives the text again.
        return keep_text(message, self._prefill + text, self._writers.find(tools))


def _without_thinking(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the reasoning of the answers before the last user message."""
    last = max((at for at, item in enumerate(messages) if item.role is Role.USER), default=0)
    return [
        _strip(item) if at < last and item.role is Role.ASSISTANT else item
        for at, item in enumerate(messages)
    ]


def _strip(message: Message) -> Message:
    text = kept_text(message)
    if text is not None and _CLOSER in text:
        return replace(message, opaque=with_text(message, text.partition(_CLOSER)[2].lstrip("\n")))
    return replace(message, reasoning=None)


def make_chatml(name: str, rest: str, options: Mapping[str, Json]) -> ChatmlRenderer:
    """Return the renderer `chatml`, or `chatml:PATH` over the tokenizer in a file or its folder."""
    check_options(options, frozenset(("format", "thinking", "keeps_thinking")), f"the renderer {name!r}")
    path = Path(rest).expanduser()
    file = path / "tokenizer.json" if path.is_dir() else path
    tokenizer = FileTokenizer.from_file(file) if rest else None
    return ChatmlRenderer(tokenizer, name=name, **options)
