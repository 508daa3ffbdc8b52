"""The parts of requests and responses that both engines have in common, most of them OpenAI's."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from treadle.core.types import Completion, FinishReason, Json, Message, Role, ToolCall, ToolSpec, Usage
from treadle.models.dialects.openai_chat.served import read_messages, read_tools
from treadle.testbed.engines.answering_work import IdsRequest, SampledAnswer
from treadle.testbed.engines.bpe import Bpe
from treadle.testbed.engines.mock_template import Template


class AnswerSampling(Struct, kw_only=True):
    """How an answer is sampled, as the endpoints for ids and texts are told."""

    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    logprobs: int | None = None
    stop_token_ids: list[int] | None = None

    def ask(
        self, prompt: Sequence[int], model: str, request_id: str | None = None, prefix: str = ""
    ) -> IdsRequest:
        """Return the request in the form that the engine works on."""
        return IdsRequest(
            prompt_ids=prompt,
            model=model,
            request_id=request_id or "",
            prefix=prefix,
            limit=self.max_tokens,
            seed=self.seed,
            temperature=1.0 if self.temperature is None else self.temperature,
            stop_ids=self.stop_token_ids or (),
        )


class EngineChat(Struct, kw_only=True):
    """A request of chat completions with the fields that only engines have."""

    messages: list[Any]
    model: str = ""
    tools: Any = None
    tool_choice: str | dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: str | None = None
    rid: str | None = None
    return_prompt_token_ids: bool = False
    return_meta_info: bool = False
    return_routed_experts: bool = False
    return_sampling_mask: bool = False

    @property
    def has_usage(self) -> bool:
        """True if a stream ends with the token counts."""
        return (self.stream_options or {}).get("include_usage") is True

    def said(self) -> list[Message]:
        """Return the conversation."""
        return read_messages(self.messages, {})

    def told(self) -> list[ToolSpec]:
        """Return the tools that the model may call."""
        return read_tools(self.tools) if self.tool_choice != "none" else []

    def ask(self, prompt: Sequence[int]) -> IdsRequest:
        """Return the request in the form that the engine works on."""
        sampling = AnswerSampling(
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
            stop_token_ids=self.stop_token_ids,
        )
        return sampling.ask(prompt, self.model, self.request_id or self.rid, "chatcmpl-")


class TokenizeRequest(Struct):
    """A request of `/tokenize` for a text; one for a conversation is an `EngineChat`."""

    prompt: str | None = None
    model: str = ""


class DetokenizeRequest(Struct):
    """A request of `/detokenize`."""

    tokens: list[int] = field(default_factory=list)
    model: str = ""


def read_answer(answer: SampledAnswer, template: Template, tools: Sequence[ToolSpec]) -> Completion:
    """Return a completion with the message in an answer, as a server's parsers read it."""
    text = template.bpe.decode(text_ids(answer, template))
    message = template.parse(template.opening + text, tools)
    calls = tuple(
        [
            ToolCall(f"chatcmpl-tool-{answer.request_id[-12:]}{index}", call.name, call.arguments)
            for index, call in enumerate(message.tool_calls)
        ]
    )
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    message = Message(Role.ASSISTANT, message.content, calls, reasoning=message.reasoning)
    usage = Usage(len(answer.prompt_ids), len(answer.token_ids))
    return Completion(message, reason, usage, response_id=answer.request_id)


def text_ids(answer: SampledAnswer, template: Template) -> Sequence[int]:
    """Return the ids of an answer without the one that ends it."""
    ids = answer.token_ids
    return ids[:-1] if ids and ids[-1] == template.end else ids


def write_logprobs(answer: SampledAnswer, bpe: Bpe, *, as_ids: bool = False) -> list[dict[str, Json]]:
    """Return the logprobs in OpenAI's form, with the text of each id or as `token_id:N`."""
    return [
        {
            "token": f"token_id:{number}" if as_ids else bpe.decode([number]),
            "logprob": value,
            "bytes": list(bpe.content([number])),
            "top_logprobs": [],
        }
        for number, value in zip(answer.token_ids, answer.logprobs, strict=True)
    ]


def mask_of(ids: Sequence[int]) -> list[list[int]]:
    """Return the tokens that a mock engine says it chose each of its tokens from."""
    return [[number, *range(number % 3)] for number in ids]


def count_tokens(answer: SampledAnswer) -> dict[str, Json]:
    prompt, output = len(answer.prompt_ids), len(answer.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def share(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Return `items` in `parts` pieces of nearly equal length."""
    bounds = [len(items) * index // parts for index in range(parts + 1)]
    return [items[bounds[index] : bounds[index + 1]] for index in range(parts)]
