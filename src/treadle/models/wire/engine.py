"""Which inference engine a server runs, found by what its endpoints say and never guessed."""

import re
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec import Struct

from treadle.core.types import Json

TOKEN_PATHS = {
    "vllm": {"vllm_completions": "/v1/completions", "vllm_generate": "/inference/v1/generate"},
    "sglang": {"sglang_generate": "/generate"},
}
"""The endpoints of an engine that may take token ids, below the server's root, by the names of `ENGINES`."""
PAUSE_PATHS = {"vllm": "/pause", "sglang": "/pause_generation"}
"""The endpoint that pauses an engine."""
_GIVES_IDS = {"vllm": (0, 10, 2), "sglang": (0, 5, 13)}
"""The first version whose chat returns the ids of prompt and answer."""
_TELLS_VERSIONS = {"vllm": (0, 33), "sglang": (0, 5, 13)}
"""The first version that tells which weights sampled which token."""

Get: TypeAlias = Callable[[str], Awaitable[Json]]
"""A function that returns the JSON at a path of a server; `None` if there is none."""


class EngineInfo(Struct, frozen=True):
    """An inference engine."""

    name: str
    """`vllm` or `sglang`."""
    version: str | None = None
    """The version; `None` if the server does not say it."""
    weight_version: str | None = None
    """The version of the weights, if the server says it."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The first numbers of the version, such as (0, 11, 2); empty if it is not known."""
        return tuple(map(int, re.findall(r"\d+", self.version or "")[:3]))

    @property
    def gives_ids(self) -> bool:
        """Whether its chat is known to return token ids."""
        return bool(self.numbers) and self.numbers >= _GIVES_IDS.get(self.name, (99,))

    @property
    def tells_versions(self) -> bool:
        """Whether it is known to tell which weights sampled which token of an answer."""
        return bool(self.numbers) and self.numbers >= _TELLS_VERSIONS.get(self.name, (99,))

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name} {self.version}"


async def find_engine(get: Get) -> EngineInfo | None:
    """Return the engine behind a server; `None` for any that is neither vLLM nor SGLang, or that does not say so.

    Source: vLLM 0.11, `owned_by` of `/v1/models` and `/version`; SGLang 0.5, `owned_by` and `/server_info`, before
    `/get_server_info`. Raises: `TransportError`.
    """
    listed = await get("/v1/models")
    models = listed.get("data") if isinstance(listed, dict) else None
    owners = (
        {item.get("owned_by") for item in models if isinstance(item, dict)}
        if isinstance(models, list)
        else set()
    )
    if "vllm" in owners:
        return EngineInfo("vllm", _text(await get("/version"), "version"))
    if "sglang" not in owners:
        return None
    info = await get("/server_info") or await get("/get_server_info")
    return EngineInfo("sglang", _text(info, "version"), _text(info, "weight_version"))


def _text(raw: Json, name: str) -> str | None:
    value = raw.get(name) if isinstance(raw, dict) else None
    return value if isinstance(value, str) else None
