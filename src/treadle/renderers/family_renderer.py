"""The open model families, through the package `renderers`, which has the template of each family.

`family:NAME` is a family such as `qwen3`, or a model of the Hugging Face Hub whose family the package knows.
`family:NAME@FOLDER` takes the tokenizer from a folder. Source: renderers 0.1.12.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.registry import name_known, require
from treadle.core.types import FinishReason, Json, Message, Role, ToolCall, ToolSpec
from treadle.formats import detect
from treadle.formats.scanner.parsed import to_json, to_openai
from treadle.renderers.answer_reading import AnswerReader, check_parts, cut_at, to_wire
from treadle.renderers.tokenizer import FileTokenizer

_EXTRA = "train"
_ASKED: dict[str, Json] = {"role": "user", "content": "Go on."}


class FamilyRenderer(AnswerReader):
    """A renderer of the package `renderers` as one of Treadle's."""

    tokenizer: FileTokenizer

    def __init__(self, name: str, family: str, tokenizer: FileTokenizer, options: Mapping[str, Json]) -> None:
        """Make the renderer of a family.

        `options` are the fields of the family's configuration. Thinking is kept in all turns unless
        `thinking_retention` says otherwise, so that prompts continue the ids of earlier ones.
        Raises: `ConfigError` for an unknown option, or a tokenizer that is not one of the family.
        """
        package = require("renderers", _EXTRA)
        self.name = name
        self.tokenizer = tokenizer
        try:
            config = type(package.config_from_name(family))(**{"thinking_retention": "all"} | dict(options))
            self._inner = package.create_renderer(_Adapter(tokenizer, family), config)
        except Exception as error:
            # The families raise any exceptions, such as failed assertions and errors of their tokenizers.
            raise ConfigError(f"the renderer {name!r} cannot be made: {error}") from None
        told = [package.__version__, family, config.model_dump(mode="json")]
        hashed = sha256(tokenizer.data + msgspec.json.encode(told, order="sorted"))
        self.fingerprint = "family-" + hashed.hexdigest()[:16]
        whole = self._inner.render_ids([_ASKED], add_generation_prompt=True)
        self._open: list[int] = whole[len(self._inner.render_ids([_ASKED])) :]
        format: str | None
        try:
            format = detect(family)
        except ConfigError:
            # The package itself reads the answers of this family.
            format = None
        super().__init__(tokenizer, format, self._inner.get_stop_token_ids(), tokenizer.decode(self._open))

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        try:
            ids = self._inner.render_ids(
                self._wires(messages), tools=self._tools(tools), add_generation_prompt=True
            )
        except (ValueError, TypeError, LookupError, NotImplementedError) as error:
            raise ConfigError(f"the renderer {self.name!r} refuses these messages: {error}") from None
        return list(ids)

    def bridge(
        self, prior: Sequence[int], added: Sequence[Message], tools: Sequence[ToolSpec], *, is_cut: bool
    ) -> list[int] | None:
        is_ended = bool(prior) and prior[-1] in self.stop_token_ids
        prompt = self._count_prompt(prior)
        found = self._bridge(prior, prompt, added, tools)
        if found is None and not is_ended:
            # The package may look for an end in the answer. Without an answer it adds one.
            found = self._bridge(prior, len(prior), added, tools)
        return found

    def _bridge(
        self, prior: Sequence[int], prompt: int, added: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int] | None:
        """Return the ids after `prior`, of which the first `prompt` are the prompt; `None` if there are none."""
        ids = list(prior)
        try:
            found = self._inner.bridge_to_next_turn(
                ids[:prompt], ids[prompt:], self._wires(added), tools=self._tools(tools)
            )
        except (ValueError, TypeError, LookupError, NotImplementedError):
            return None
        if found is None or found.token_ids[: len(ids)] != ids:
            return None
        return list(found.token_ids[len(ids) :])

    def _count_prompt(self, prior: Sequence[int]) -> int:
        """Return how many of the ids are the prompt, which ends with the ids that begin an answer."""
        size = len(self._open)
        for end in range(len(prior), size - 1, -1):
            if list(prior[end - size : end]) == self._open:
                return end
        return len(prior) - (prior[-1] in self.stop_token_ids) if prior else 0

    def read(
        self,
        token_ids: Sequence[int],
        tools: Sequence[ToolSpec],
        *,
        finish: FinishReason,
        stop: Sequence[str] = (),
    ) -> Message:
        if self.format is not None:
            return super().read(token_ids, tools, finish=finish, stop=stop)
        parsed = self._inner.parse_response(
            list(token_ids), tools=self._tools(tools), prompt_ids=self._open or None
        )
        calls = [
            ToolCall(call.id or "", call.name or "", _write_arguments(call)) for call in parsed.tool_calls
        ]
        reasoning = parsed.reasoning_content or None
        return Message(Role.ASSISTANT, cut_at(parsed.content, stop), tuple(calls), reasoning=reasoning)

    def _wires(self, messages: Sequence[Message]) -> list[Json]:
        check_parts(messages, self.name)
        return [self.tokenizer.break_marks(to_wire(message)) for message in messages]

    def _tools(self, tools: Sequence[ToolSpec]) -> list[Json] | None:
        return [self.tokenizer.break_marks(to_openai(tool)) for tool in tools] or None


class _Adapter:
    """A tokenizer with the methods that the package `renderers` calls."""

    unk_token_id: int | None = None
    eos_token_id: int | None = None

    def __init__(self, tokenizer: FileTokenizer, name: str) -> None:
        self.name_or_path = name
        self._tokenizer = tokenizer

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return self._tokenizer.encode_marked(text)[0]

    def decode(self, token_ids: Any, *_: Any, **__: Any) -> str:
        return self._tokenizer.decode([token_ids] if isinstance(token_ids, int) else token_ids)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._tokenizer.find(tokens)
        return [self._tokenizer.find(token) for token in tokens]

    def __call__(self, text: str, *_: Any, **__: Any) -> dict[str, Any]:
        ids, offsets = self._tokenizer.encode_marked(text)
        return {"input_ids": ids, "offset_mapping": offsets}


def _write_arguments(call: Any) -> str:
    """Return the arguments of a call that the package read: as JSON, or its text if it could not be read."""
    if call.status != "ok":
        return str(call.raw)
    return call.arguments if isinstance(call.arguments, str) else to_json(call.arguments or {})


def make_family(name: str, rest: str, options: Mapping[str, Json]) -> FamilyRenderer:
    """Return the renderer `family:NAME` or `family:NAME@FOLDER`."""
    base = require("renderers.base", _EXTRA)
    wanted, _, folder = rest.partition("@")
    base._populate_registry()
    family = base.MODEL_RENDERER_MAP.get(wanted, wanted)
    if family not in base.RENDERER_REGISTRY or family == "default":
        known = sorted(name for name in base.RENDERER_REGISTRY if name != "default")
        raise ConfigError(f"there is no family {wanted!r}{name_known(family, known, 'the families are')}")
    if folder:
        tokenizer = FileTokenizer.from_file(Path(folder).expanduser() / "tokenizer.json")
    else:
        model = next((key for key, value in base.MODEL_RENDERER_MAP.items() if value == family), wanted)
        model = wanted if "/" in wanted else model
        tokenizer = FileTokenizer.from_hub(base.TOKENIZER_SOURCE_OVERRIDES.get(model, model))
    return FamilyRenderer(name, family, tokenizer, options)
