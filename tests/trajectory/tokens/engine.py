"""A model with a chat template and a tokenizer whose merges are ambiguous, to make every kind of drift."""

import json
import re
from collections.abc import Callable, Iterable, Sequence

from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, FinishReason, Message, Request, Role, ToolCall
from treadle.models.protocol import Watch

SPECIAL = {"<|start|>": 256, "<|end|>": 257, "<think>": 258, "</think>": 259}
MERGES = {
    "ab": 300,
    "abc": 301,
    "bc": 302,
    "an": 303,
    "is": 304,
    "th": 305,
    "the": 306,
    '": ': 307,
    "\n\n": 308,
}
_TEXTS = {number: text for text, number in (SPECIAL | MERGES).items()}
_SPECIAL = re.compile("|".join(map(re.escape, SPECIAL)))
_MERGED = re.compile("|".join(map(re.escape, sorted(MERGES, key=len, reverse=True))))


def encode(text: str, *, is_merged: bool = True) -> list[int]:
    """Return the ids of a text; without merges, those that a model may sample but no tokenizer makes."""
    table = SPECIAL | MERGES if is_merged else SPECIAL
    pattern = re.compile(f"{_SPECIAL.pattern}|{_MERGED.pattern}|.", re.DOTALL) if is_merged else None
    pieces = (pattern or re.compile(f"{_SPECIAL.pattern}|.", re.DOTALL)).findall(text)
    return [number for piece in pieces for number in ([table[piece]] if piece in table else piece.encode())]


def decode(ids: Sequence[int]) -> str:
    """Return the text of ids."""
    data = b"".join(_TEXTS[item].encode() if item in _TEXTS else bytes([item]) for item in ids)
    return data.decode("utf-8", "replace")


class TemplateModel:
    """A model that answers from a script and renders its prompts from the messages, as chat servers do.

    `change` changes the ids of a prompt, as a server may do.
    """

    def __init__(
        self,
        answers: Iterable[Message | Completion],
        *,
        name: str = "policy",
        strips_thinking: bool = False,
        prefill: str = "",
        writes_call: Callable[[ToolCall], str] | None = None,
        marks_last: bool = False,
        strips_text: bool = False,
        is_merged: bool = True,
        change: Callable[[list[int]], list[int]] | None = None,
    ) -> None:
        self.name = name
        self.records: list[TokenRecord] = []
        self._answers = list(answers)
        self._strips_thinking = strips_thinking
        self._prefill = prefill
        self._writes_call = writes_call or write_call
        self._marks_last = marks_last
        self._strips_text = strips_text
        self._is_merged = is_merged
        self._change = change

    async def infer(self, request: Request, watch: Watch) -> Completion:
        given = self._answers[len(self.records)]
        done = given if isinstance(given, Completion) else None
        message = given if isinstance(given, Message) else given.message
        finish = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
        finish = finish if done is None else done.finish_reason
        prompt = encode(self._render(request))
        prompt = prompt if self._change is None else self._change(prompt)
        text = write_answer(message, write_call).removeprefix(self._prefill)
        end = "" if finish is FinishReason.LENGTH else "<|end|>"
        output = encode(text + end, is_merged=self._is_merged)
        record = TokenRecord.of(
            prompt=prompt, output=output, logprobs=[-0.25 * at for at in range(len(output))]
        )
        self.records.append(record)
        return Completion(message, finish, tokens=record)

    def _render(self, request: Request) -> str:
        tools = ",".join(tool.name for tool in request.tools)
        parts = [f"<|start|>tools\n{tools}<|end|>\n"] if tools else []
        messages = list(request.messages)
        last = max(at for at, item in enumerate(messages) if item.role is Role.USER)
        for at, message in enumerate(messages):
            if message.role is Role.ASSISTANT:
                if self._strips_thinking and at < last:
                    text = write_answer(message, self._writes_call, has_thinking=False)
                else:
                    text = write_answer(message, self._writes_call)
                text = text.strip() if self._strips_text else text
            else:
                text = message.content + ("!" if self._marks_last and at == last else "")
            parts.append(f"<|start|>{message.role.value}\n{text}<|end|>\n")
        return "".join(parts) + "<|start|>assistant\n" + self._prefill


def write_call(call: ToolCall) -> str:
    """Return a call as the model wrote it."""
    return f"<call>{call.name} {call.arguments}</call>"


def write_sorted(call: ToolCall) -> str:
    """Return a call with its arguments in another order and with other blanks."""
    return f"<call>{call.name} {json.dumps(json.loads(call.arguments), sort_keys=True)}</call>"


def write_answer(
    message: Message, writes_call: Callable[[ToolCall], str], *, has_thinking: bool = True
) -> str:
    """Return an answer as text."""
    thinking = f"<think>\n{message.reasoning}\n</think>\n\n" if message.reasoning and has_thinking else ""
    return thinking + message.content + "".join(map(writes_call, message.tool_calls))


def think(reasoning: str, content: str = "", *calls: ToolCall) -> Message:
    """Return an answer with reasoning."""
    return Message(Role.ASSISTANT, content, calls, reasoning=reasoning)


def say(content: str, *calls: ToolCall) -> Message:
    """Return an answer."""
    return Message(Role.ASSISTANT, content, calls)


def cut(message: Message) -> Completion:
    """Return an answer that the limit of output tokens cut off."""
    return Completion(message, FinishReason.LENGTH)
