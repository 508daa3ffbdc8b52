"""The errors of servers in use, as they write them, and the typed errors that they become."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.models.answers import REQUEST, error

from treadle.core.errors import ContextOverflowError, ProviderError, RateLimitError, RequestError
from treadle.models import HttpResponse, InProcessTransport, OpenAIChatModel, Watch
from treadle.models.dialects.anthropic.request import AnthropicModel
from treadle.models.dialects.gemini.request import GeminiModel
from treadle.models.dialects.ollama import OllamaModel
from treadle.models.dialects.openai_responses.request import OpenAIResponsesModel
from treadle.models.wire.http_model import HttpModel

OVERFLOW, LIMITED = ContextOverflowError, RateLimitError
GROQ_TPM = (
    "Request too large for model `m` in organization `org_1` service tier `on_demand` on tokens per minute (TPM): "
    "Limit 12000, Requested 14137, please reduce your message size and try again."
)


class Row(msgspec.Struct):
    """A line of the table: what a server answered, and the name of the error's class."""

    server: str
    status: int
    error: str
    body: Any

    def answer(self) -> Any:
        """Return the body, as bytes if it is not JSON."""
        return self.body.encode() if isinstance(self.body, str) else self.body


TABLE = Path(__file__).with_name("server_errors.jsonl")
ROWS = [msgspec.json.decode(line, type=Row) for line in TABLE.read_bytes().splitlines()]


async def fail(
    kind: type[HttpModel], status: int, body: object, *, is_streamed: bool = False
) -> ProviderError:
    """Return the error of a model whose server gives this response."""
    transport = InProcessTransport(lambda _: HttpResponse(body, status))
    model = kind("m", base_url="https://h.example/v1", transport=transport)
    with pytest.raises(ProviderError) as caught:
        await model.infer(REQUEST, Watch((lambda _: None) if is_streamed else None))
    return caught.value


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("row", ROWS, ids=[row.server for row in ROWS])
async def test_what_servers_say_becomes_a_typed_error(row, is_streamed):
    found = await fail(
        OpenAIChatModel, row.status, row.answer(), is_streamed=is_streamed and row.status != 200
    )
    assert type(found).__name__ == row.error
    assert found.is_retryable is (row.error in ("RateLimitError", "ServerError"))


@pytest.mark.parametrize("kind", [AnthropicModel, GeminiModel, OllamaModel, OpenAIResponsesModel])
@pytest.mark.parametrize("status", [400, 413, 500])
async def test_other_dialects_recognise_the_texts_too(kind, status):
    assert type(await fail(kind, status, [error("prompt is too long: 2 tokens > 1 maximum")])) is OVERFLOW
    assert type(await fail(kind, status, error(GROQ_TPM, code="rate_limit_exceeded"))) is LIMITED


@pytest.mark.parametrize(
    ("row", "advice"),
    [
        ("openai", "shorten the messages, or compact them earlier"),
        ("groq: 413", "this request alone is larger than the limit"),
        ("vllm: output 2", "ask for fewer tokens of output"),
        ("anthropic: credit", "the account has nothing left to spend"),
        ("xai: key", "check the key, set OPENAI_API_KEY, or give another one"),
        ("deepseek: model", "model not found? check the name 'm'"),
    ],
)
async def test_the_error_says_what_to_do(row, advice):
    found = next(item for item in ROWS if item.server == row)
    assert advice in str(await fail(OpenAIChatModel, found.status, found.answer()))


async def test_a_long_error_is_classified_by_its_beginning():
    body = error("x" * 1_000_000 + " prompt is too long")
    assert type(await fail(OpenAIChatModel, 400, body)) is RequestError
    assert (
        type(await fail(OpenAIChatModel, 400, error("prompt is too long: " + "a: " * 1_000_000))) is OVERFLOW
    )
