"""A chat server with a context window: it counts tokens, refuses longer prompts, and knows only what a prompt says.

It caches prefixes of prompts, as providers do. Its model calls a tool once in each turn, answers questions about
codes that the prompt tells, and repeats these codes when it is asked for a summary, which has as many words as it
may have.
"""

import asyncio
import json
import re
import sys
from functools import lru_cache
from itertools import accumulate
from typing import Any

from benchmarks.server import Connection, Write

_PIECES = re.compile(rb" ?[A-Za-z]+| ?[0-9]{1,3}|\s+|[^A-Za-z0-9\s]")
_WORD_BYTES = 6
_FACT = re.compile(r"the code of the (\w+) is (\d+)", re.IGNORECASE)
_QUESTION = re.compile(r"what is the code of the (\w+)", re.IGNORECASE)
_SUMMARY = "You write the memory"
_LIMIT = re.compile(r"at most (\d+) words")
_FILLER = ["The user asked what the handbook says about rivers,", "and was told where the passage stands."]
_MESSAGE_TOKENS = 4


@lru_cache(maxsize=4096)
def count_tokens(text: str) -> int:
    """Return the tokens of a text by a byte-level tokenizer with short pieces: words of up to 6 letters, numbers of
    up to 3 digits, and single other bytes."""
    return sum(1 + (len(piece) - 2) // _WORD_BYTES for piece in _PIECES.findall(text.encode()))


def _write(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class Model:
    """A model with a window, and counters of what it was asked. `GET /stats` returns the counters."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._seen: set[tuple[str, ...]] = set()
        self._stats = {
            "answered": 0,
            "refused": 0,
            "largest": 0,
            "input_tokens": 0,
            "cached_tokens": 0,
            "summary_tokens": 0,
            "summaries": 0,
        }

    def respond(self, request: bytes, write: Write) -> None:
        """Answer one request; see `Connection`."""
        head, _, body = request.partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            write(_http(200, self._stats))
            return
        asked = json.loads(body)
        pieces = [_write(asked.get("tools", [])), *map(_write, asked["messages"])]
        sizes = [count_tokens(piece) + _MESSAGE_TOKENS for piece in pieces]
        total = sum(sizes)
        output = asked.get("max_tokens") or asked.get("max_completion_tokens") or 0
        if total + output > self._window:
            self._stats["refused"] += 1
            text = (
                f"This model's maximum context length is {self._window} tokens. However, your messages resulted in "
                f"{total} tokens."
            )
            write(_http(400, {"error": {"message": text, "code": "context_length_exceeded"}}))
            return
        cached = self._note(pieces, sizes)
        message = self._answer(asked["messages"])
        written = count_tokens(_write(message))
        is_summary = asked["messages"][0]["content"].startswith(_SUMMARY)
        self._count(total, cached, written, is_summary=is_summary)
        usage = {
            "prompt_tokens": total,
            "completion_tokens": written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        write(_http(200, {"id": "r", "model": "m", "choices": [choice], "usage": usage}))

    def _note(self, pieces: list[str], sizes: list[int]) -> int:
        """Return the tokens of the longest prefix that was seen before, and keep all prefixes of this prompt."""
        names = list(accumulate([(piece,) for piece in pieces], lambda known, new: (str(hash(known)), *new)))
        known = 0
        for index, name in enumerate(names):
            if name not in self._seen:
                break
            known = index + 1
        self._seen.update(names)
        return sum(sizes[:known])

    def _count(self, total: int, cached: int, written: int, *, is_summary: bool) -> None:
        stats = self._stats
        stats["answered"] += 1
        stats["largest"] = max(stats["largest"], total)
        if is_summary:
            stats["summaries"] += 1
            stats["summary_tokens"] += total + written
        else:
            stats["input_tokens"] += total
            stats["cached_tokens"] += cached

    def _answer(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        told = "\n".join(str(item.get("content") or "") for item in messages)
        facts = dict(_FACT.findall(told))
        if messages[0]["content"].startswith(_SUMMARY):
            return _say(_summarise(messages[0]["content"], facts))
        last = messages[-1]
        if asked := _QUESTION.search(str(last.get("content"))):
            return _say(facts.get(asked[1].lower(), "I do not know."))
        if last["role"] == "tool":
            return _say("I have looked it up, and it is as you thought.")
        call = {
            "id": "",
            "type": "function",
            "function": {"name": "look_up", "arguments": '{"topic": "rivers"}'},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}


def _summarise(asked: str, facts: dict[str, str]) -> str:
    """Return a summary that is as long as it may be, with the facts in its middle."""
    said = " ".join([f"The code of the {name} is {code}." for name, code in facts.items()])
    limit = _LIMIT.search(asked)
    words = " ".join(_FILLER).split()
    left = (int(limit[1]) if limit else 100) - len(said.split())
    half = [words[at % len(words)] for at in range(left // 2)]
    return " ".join([*half, said, *half])


def _say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _http(status: int, value: object) -> bytes:
    body = _write(value).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _serve(model: Model) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(model.respond), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Model(int(sys.argv[1]))))
