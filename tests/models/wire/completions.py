"""A server of the completions API, which has only text: no calls, and no reasoning."""

import json
import re

from treadle.core.types import FinishReason, Message, Role, Usage
from treadle.models import CompletionsModel

MODEL = CompletionsModel
CONTENT_TYPE = "text/event-stream"
HAS_CALLS = False
USAGE = Usage(12, 7)


def answer(message, finish=None, usage=USAGE):
    body = {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "m-1",
        "choices": [{"index": 0, "text": message.content, "finish_reason": finish or FinishReason.STOP}],
    }
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    return body


def events(raw):
    text = raw["choices"][0]["text"]
    head = {"id": raw["id"], "object": raw["object"], "model": raw["model"]}
    choices = [
        {"index": 0, "text": text[at : at + 5], "finish_reason": None} for at in range(0, len(text), 5)
    ]
    choices.append({"index": 0, "text": "", "finish_reason": raw["choices"][0]["finish_reason"]})
    chunks = [{**head, "choices": [choice]} for choice in choices]
    if "usage" in raw:
        chunks.append({**head, "choices": [], "usage": raw["usage"]})
    return [b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks] + [b"data: [DONE]\n\n"]


def error(status, text):
    return {"error": {"message": text}}


def messages(body):
    found = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", body["prompt"], re.DOTALL)
    return [Message(Role(role), content) for role, content in found]


def tools(body):
    return []


def unfinished(raw):
    """Return answers that are not whole, although they are JSON, by what is wrong with them."""
    (choice,) = raw["choices"]
    choices = {
        "nothing, no reason": {**choice, "text": "", "finish_reason": None},
        "nothing, an empty reason": {**choice, "text": "", "finish_reason": ""},
        "nothing, an unknown reason": {**choice, "text": "", "finish_reason": "brand_new"},
        "the engine failed": {**choice, "finish_reason": "error"},
        "the engine gave up": {**choice, "finish_reason": "abort"},
        "the text is a list": {**choice, "text": [7]},
    }
    return {name: {**raw, "choices": [made]} for name, made in choices.items()}


def without_reason(raw):
    """Return `raw` as a server sends it that has not finished."""
    return {**raw, "choices": [{**raw["choices"][0], "finish_reason": None}]}


def at_once(raw):
    """Return the events of a server that sends all of `raw` at once, without the mark that ends a stream."""
    return [b"data: %s\n\n" % json.dumps(raw).encode()]


def types():
    """Return the vendor's types of a whole answer and of an event."""
    from openai.types import Completion

    return Completion, Completion
