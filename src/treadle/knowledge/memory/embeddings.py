"""Embeddings from a server that speaks `/v1/embeddings`."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, ServerError
from treadle.http.transport import HttpTransport, Transport
from treadle.knowledge.memory.vectors import normalize
from treadle.models.config.recipe import load_config
from treadle.models.wire.endpoint import is_success, join_url
from treadle.models.wire.http_model import HttpModel
from treadle.models.wire.server import Server, explain_error

BATCH = 64
"""How many texts are sent in one request."""
_MAX_CHARS = 8_000
"""How much of a text is sent. Most models read less."""
_SILENCE_SECONDS = 10.0
_TOTAL_SECONDS = 60.0
_KEPT_QUERIES = 256
_PATHS = {"openai_chat": "/embeddings", "openai_responses": "/embeddings", "completions": "/embeddings"}


class _Item(Struct):
    index: int
    embedding: list[float]


class _Answer(Struct):
    data: list[_Item]


_decode = msgspec.json.Decoder(_Answer).decode


class Embedder:
    """A model of embeddings behind a server."""

    def __init__(self, server: Server, url: str, name: str, transport: Transport | None = None) -> None:
        self.name = name
        """The name under which its vectors are stored."""
        self._server = server
        self._url = url
        self._transport = transport or HttpTransport(
            timeout_seconds=_SILENCE_SECONDS, total_timeout_seconds=_TOTAL_SECONDS
        )
        self._kept: OrderedDict[str, list[float]] = OrderedDict()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of some texts, in order, each of length 1. Raises: `ProviderError`."""
        found: list[list[float]] = []
        for start in range(0, len(texts), BATCH):
            found += await self._ask([text[:_MAX_CHARS] for text in texts[start : start + BATCH]])
        return found

    async def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query. The vectors of the newest queries are kept in memory. Raises:
        `ProviderError`."""
        if text not in self._kept:
            self._kept[text] = (await self.embed([text]))[0]
            if len(self._kept) > _KEPT_QUERIES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(text)
        return self._kept[text]

    async def _ask(self, texts: list[str]) -> list[list[float]]:
        body = msgspec.json.encode({"model": self._server.model, "input": texts, "encoding_format": "float"})
        answer = await self._transport.post(self._url, dict(self._server.headers), body)
        if not is_success(answer.status):
            raise explain_error(self._server, answer.status, answer.body, answer.header)
        try:
            items = sorted(_decode(answer.body).data, key=lambda item: item.index)
            if [item.index for item in items] != list(range(len(texts))):
                raise ValueError(f"{len(items)} embeddings for {len(texts)} texts")
            vectors = [normalize(item.embedding) for item in items]
            if len({len(values) for values in vectors}) != 1:
                raise ValueError("embeddings of different lengths")
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            raise ServerError(
                f"{self._server.origin} sent embeddings of {self._server.model!r} that cannot be used: {error}",
                status=answer.status,
            ) from error
        return vectors


def make_embedder(name: str, *, transport: Transport | None = None, base_url: str | None = None) -> Embedder:
    """Return the model of embeddings called `name`: one of treadle.toml, or `provider:name`.

    Raises: `ConfigError` for an unknown name, a missing key, or a provider whose server has no `/v1/embeddings`.
    """
    config = load_config()
    made = config.bare(name, **({} if base_url is None else {"base_url": base_url}))
    path = _PATHS.get(made.DIALECT, "/v1/embeddings") if isinstance(made, HttpModel) else None
    if not isinstance(made, HttpModel) or made.DIALECT not in (*_PATHS, "ollama"):
        raise ConfigError(
            f"{name!r} cannot make embeddings: its server does not speak /v1/embeddings; give a model such as "
            "'openai:text-embedding-3-small', or one of your own server in treadle.toml"
        )
    assert path is not None
    return Embedder(made.server, join_url(made.server.base_url, path), config.full_name(name), transport)
