"""Any Hugging Face tokenizer with its chat template, through `tokenizers` and Jinja's sandbox.

What a template writes between two answers is found by rendering a conversation with a known answer in it: the ids
after that answer are the bridge. What was sampled is never rendered or tokenised again.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError, FormatError
from treadle.core.registry import check_options
from treadle.core.tool_cache import ToolCache
from treadle.core.types import Json, Message, Role, ToolCall, ToolSpec
from treadle.formats import AUTO, detect
from treadle.formats.scanner.parsed import to_openai
from treadle.formats.text_transcript import TranscriptWriter
from treadle.renderers.answer_reading import AnswerReader, check_parts, keep_text, to_wire
from treadle.renderers.chat_template import ChatTemplate
from treadle.renderers.tokenizer import FileTokenizer

_KNOWN = "KnownAnswer41"
"""The content of the known answer."""
_ASKED = Message(Role.USER, "Go on.")
_THOUGHT = "KnownThought42"
_RESULT = "KnownResult43"
_TOOL = ToolSpec("known_tool", "KnownTool44", {"type": "object", "properties": {}})
_GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
"""What a template reads and no option sets."""
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class HfRenderer(AnswerReader):
    """A tokenizer with its chat template."""

    tokenizer: FileTokenizer
    format: str

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        format: str = AUTO,
        keeps_thinking: bool = True,
        date: str | None = None,
        **values: Json,
    ) -> None:
        """Load the folder of a tokenizer.

        `format` is the text format of the calls; `auto` finds it by the template. If not `keeps_thinking`, and the
        template leaves out the thinking of earlier turns, a new turn is rendered as the template does, and does not
        continue the ids of the turn before. `values` are the options of the template, such as `enable_thinking`.
        Raises: `ConfigError` if the files are missing or cannot be used, or the template reads no such option.
        """
        self.name = name
        self.tokenizer = FileTokenizer.from_file(folder / "tokenizer.json")
        config = _read(folder / "tokenizer_config.json")
        source = _find_template(folder, config)
        special = {token: text for token in _TOKENS if (text := _text_of(config.get(token))) is not None}
        self._template = ChatTemplate(source, special | values, today=date)
        if values:
            known = self._template.find_names() - _GIVEN | {"date", "format", "keeps_thinking"}
            check_options(values, frozenset(known), f"the renderer {name!r}")
        self._keeps_thinking = keeps_thinking
        told = [source, special, values, format, date, keeps_thinking]
        hashed = sha256(self.tokenizer.data + msgspec.json.encode(told, order="sorted"))
        self.fingerprint = "hf-" + hashed.hexdigest()[:16]
        self._has_parts = self._has_text_arguments = self._has_text_calls = self._is_plain = False
        self._special = frozenset(self.tokenizer.special_ids.values())
        self._tools = ToolCache(lambda tools: [self.tokenizer.break_marks(to_openai(tool)) for tool in tools])
        if format == AUTO:
            try:
                format = detect(folder.name, chat_template=source)
            except ConfigError as error:
                raise ConfigError(f"{error}: write {name}?format=NAME") from None
        self.format = format
        self._find_form()
        stops = [*_find_ends(folder, config, self.tokenizer), *self._find_closing()]
        if not stops:
            raise ConfigError(
                f"the folder {str(folder)!r} does not say which token ends an answer; set eos_token in "
                "tokenizer_config.json"
            )
        super().__init__(self.tokenizer, format, stops, self._find_prefill())

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return self.tokenizer.encode_marked(self._text(messages, tools, begins_answer=True))[0]

    def bridge(
        self, prior: Sequence[int], added: Sequence[Message], tools: Sequence[ToolSpec], *, is_cut: bool
    ) -> list[int] | None:
        if not self._keeps_thinking and self._strips and any(item.role is Role.USER for item in added):
            return None
        for answer in self._known_answers(added):
            try:
                alone = self._behind([_ASKED, answer], tools, begins_answer=False)
                behind = self._behind([_ASKED, answer, *added], tools, begins_answer=True)
            except ConfigError:
                continue
            if alone is not None and behind is not None:
                return self._continue(prior, alone, behind)
        return None

    def _known_answers(self, added: Sequence[Message]) -> list[Message]:
        """Return known answers that `added` can follow, the best first. An answer with calls ends with the known
        text too, since templates differ in where they write the content."""
        results = [item for item in added if item.role is Role.TOOL]
        if not results or self._is_plain:
            return [Message(Role.ASSISTANT, _KNOWN)]
        *calls, last = [ToolCall(item.call_id or "", item.name or "", "{}") for item in results]
        last = replace(last, arguments=f'{{"known": "{_KNOWN}"}}')
        answers = [Message(Role.ASSISTANT, "", (*calls, last))]
        # A template that refuses several calls in one answer may still accept their results.
        return [*answers, Message(Role.ASSISTANT, "", (last,))] if calls else answers

    def _continue(self, prior: Sequence[int], alone: list[int], behind: list[int]) -> list[int] | None:
        """Return the ids after `prior`. `alone` and `behind` are the ids behind the known answer where it is the
        last message, and where others follow. `None`: nothing follows."""
        shared = _count_shared(alone, behind)
        last = prior[-1] if len(prior) else None
        is_ended = last in self.stop_token_ids
        at = self._find_end(alone, behind, shared)
        if at is None:
            # The template ends no answer: the mark of the next message ends it, and the model may have sampled it.
            at = shared
            while at and not self.decode(alone[at - 1 : at]).strip():
                at -= 1
            is_sampled = behind[at : at + 1] == [last]
        else:
            is_sampled = is_ended
        if len(behind) <= at:
            return None
        if is_sampled:
            return behind[at + 1 :]
        closing = [] if is_ended else self.tokenizer.encode(self.close(prior))
        return closing + behind[at:]

    def _find_end(self, alone: list[int], behind: list[int], shared: int) -> int | None:
        """Return the position of the token that ends the known answer; `None` if there is none."""
        ends = [at for at in range(shared) if alone[at] in self.stop_token_ids]
        if ends:
            return ends[-1]
        # Some templates end the last answer with another token than earlier ones.
        both = (*alone[shared : shared + 1], *behind[shared : shared + 1])
        is_other = len(both) == 2 and both[0] in self.stop_token_ids and both[1] in self._special
        return shared if is_other else None

    def _behind(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, begins_answer: bool
    ) -> list[int] | None:
        """Return the ids after the known answer; `None` if the template changes its content."""
        text = self._text(messages, tools, begins_answer=begins_answer)
        at = text.find(_KNOWN)
        if at == -1:
            return None
        ids, offsets = self.tokenizer.encode_marked(text[at:])
        return [number for number, (start, _) in zip(ids, offsets, strict=True) if start >= len(_KNOWN)]

    def _text(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, begins_answer: bool) -> str:
        check_parts(messages, self.name)
        if self._is_plain or self._has_text_calls:
            writer = TranscriptWriter(self.format, tools)
            try:
                if self._is_plain:
                    messages, tools = list(writer(messages, True)), ()
                else:
                    messages = [
                        Message(item.role, writer.write_answer(item)) if item.tool_calls else item
                        for item in messages
                    ]
            except FormatError as error:
                raise ConfigError(f"the renderer {self.name!r} cannot write a call: {error}") from None
        wires = [
            self.tokenizer.break_marks(to_wire(message, has_text_arguments=self._has_text_arguments))
            for message in messages
        ]
        if self._has_parts:
            wires = [wire | {"content": [{"type": "text", "text": wire["content"]}]} for wire in wires]
        return self._template.render(wires, self._tools.find(tools), begins_answer=begins_answer)

    def _find_form(self) -> None:
        """Find out how the template expects its messages. A template that has no place for tools and their results
        gets them as text in the messages, and one that does not write calls gets them as text of the answer.
        Raises: `ConfigError` if the template does not write the contents of messages."""
        if not self._writes(_KNOWN, [Message(Role.USER, _KNOWN)]):
            self._has_parts = True
            if not self._writes(_KNOWN, [Message(Role.USER, _KNOWN)]):
                # Say what is wrong with the template, if it says so.
                self._text([Message(Role.USER, _KNOWN)], (), begins_answer=True)
                raise ConfigError(
                    f"the chat template of {self.name!r} does not write the contents of messages"
                )
        call = ToolCall("known0001", _TOOL.name, f'{{"known": "{_KNOWN}"}}')
        result = Message(Role.TOOL, _RESULT, call_id=call.call_id, name=_TOOL.name)
        talk = [_ASKED, Message(Role.ASSISTANT, "", (call,)), result]
        for self._has_text_arguments in (False, True):
            if self._writes(_RESULT, talk) and self._writes(_TOOL.description, talk):
                self._has_text_calls = not self._writes(_KNOWN, talk)
                return
        self._has_text_arguments, self._is_plain = False, True

    def _writes(self, known: str, messages: Sequence[Message]) -> bool:
        try:
            return known in self._text(messages, (_TOOL,), begins_answer=True)
        except ConfigError:
            return False

    def _read_text(self, text: str, tools: Sequence[ToolSpec], *, is_cut: bool) -> Message:
        message = super()._read_text(text, tools, is_cut=is_cut)
        if not self._is_plain and not self._has_text_calls:
            return message
        return keep_text(message, text, TranscriptWriter(self.format, tools))

    def _find_closing(self) -> list[int]:
        """Return the special token that the template ends an answer with, in a list; empty if there is none."""
        known = Message(Role.ASSISTANT, _KNOWN)
        try:
            alone = self._behind([_ASKED, known], (), begins_answer=False)
            behind = self._behind([_ASKED, known, _ASKED], (), begins_answer=True)
        except ConfigError:
            return []
        if alone is None or behind is None:
            return []
        shared = _count_shared(alone, behind)
        ends = [number for number in alone[:shared] if number in self._special]
        if not ends and {*alone[shared : shared + 1], *behind[shared : shared + 1]} <= self._special:
            ends = alone[shared : shared + 1]
        return ends[-1:]

    def _find_prefill(self) -> str:
        """Return the text with which the template begins an answer."""
        whole = self._text([_ASKED], (), begins_answer=True)
        return whole[_count_shared(whole, self._text([_ASKED], (), begins_answer=False)) :]

    @cached_property
    def _strips(self) -> bool:
        """Return whether the template leaves out the reasoning of earlier turns."""
        thought = Message(Role.ASSISTANT, _KNOWN, reasoning=_THOUGHT)
        try:
            return _THOUGHT not in self._text([_ASKED, thought, _ASKED], (), begins_answer=True)
        except ConfigError:
            return True


def _count_shared(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _read(path: Path) -> dict[str, Json]:
    """Return the object in a file; an empty one if there is no such file. Raises: `ConfigError`."""
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from None
    return raw if isinstance(raw, dict) else {}


def _text_of(token: Json) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _find_template(folder: Path, config: Mapping[str, Json]) -> str:
    """Return the chat template of a tokenizer. Raises: `ConfigError` if it has none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = config.get("chat_template") or _read(folder / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        # Some tokenizers have several templates, and one of them is for tools.
        by_name = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = by_name.get("tool_use") or by_name.get("default")
    if not isinstance(found, str):
        raise ConfigError(
            f"the tokenizer in {str(folder)!r} has no chat template; put it into the file chat_template.jinja there"
        )
    return found


def _find_ends(folder: Path, config: Mapping[str, Json], tokenizer: FileTokenizer) -> list[int]:
    """Return the ids that end an answer, as the files of the model say."""
    given = _read(folder / "generation_config.json").get("eos_token_id")
    if given is None:
        given = _read(folder / "config.json").get("eos_token_id")
    ids = [item for item in (given if isinstance(given, list) else [given]) if isinstance(item, int)]
    text = _text_of(config.get("eos_token"))
    number = None if text is None else tokenizer.find(text)
    return ids if number is None else [*ids, number]


def make_hf(name: str, rest: str, options: Mapping[str, Json]) -> HfRenderer:
    """Return the renderer `hf:FOLDER`. Options that it does not know are values for the template."""
    if not rest:
        raise ConfigError("the renderer 'hf' needs the folder of a tokenizer: hf:FOLDER")
    return HfRenderer(Path(rest).expanduser(), name=name, **options)
