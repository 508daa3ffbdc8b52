"""The endpoints by which engines are paused for an update of their weights.

Source: vLLM 0.13 to 0.32, `/pause`, `/resume` and `/update_weight_version`, which need VLLM_SERVER_DEV_MODE=1;
SGLang 0.5.6, `/pause_generation`, `/continue_generation`, `/update_weight_version`, `/update_weights_from_disk`.
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from treadle.core.types import Json
from treadle.models.tokens.weights import UpdateMode
from treadle.models.wire.endpoint import HttpEndpoint, is_success, join_url, json_of


class HttpControl(HttpEndpoint):
    """The control of an engine over HTTP."""

    PATH = ""
    RESUME: ClassVar[str]

    async def resume(self) -> None:
        """Go on; see `EngineControl.resume`."""
        await self.post(self.RESUME)

    async def set_version(self, version: str) -> None:
        """Give the weights a version; see `EngineControl.set_version`. Engines without versions ignore it."""
        await self.post("/update_weight_version", self._version_fields(version), is_optional=True)

    def _version_fields(self, version: str) -> dict[str, Json]:
        return {"new_version": version}

    async def post(
        self,
        path: str,
        fields: Mapping[str, Json] | None = None,
        query: str = "",
        *,
        is_optional: bool = False,
    ) -> Json:
        """Post to a path of the server, and return the JSON that it answers.

        With `is_optional`, a server without that path returns `None`. Raises: `ProviderError`.
        """
        url = join_url(self.root, path, query)
        answer = await self._transport.post(url, self._headers, msgspec.json.encode(fields or {}))
        if is_optional and answer.status in (404, 405):
            return None
        if not is_success(answer.status):
            raise self._error(answer.status, answer, answer.body)
        return json_of(answer)


class VllmControl(HttpControl):
    """The control of vLLM."""

    BASE_URL = "http://localhost:8000/v1"
    RESUME = "/resume"

    async def pause(self, mode: UpdateMode) -> None:
        """Stop sampling; see `EngineControl.pause`."""
        await self.post("/pause", query=f"mode={mode.value}")

    async def load(self, path: str) -> None:
        """Load weights from a folder on the server's disk, for `Weights.update`, and drop its cache of prompts.

        Source: vLLM 0.32, `/collective_rpc` and `/reset_prefix_cache`. Raises: `ProviderError`.
        """
        asked: dict[str, Json] = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        await self.post("/collective_rpc", asked)
        await self.post("/reset_prefix_cache")


class SglangControl(HttpControl):
    """The control of SGLang."""

    BASE_URL = "http://localhost:30000/v1"
    RESUME = "/continue_generation"

    async def pause(self, mode: UpdateMode) -> None:
        """Stop sampling; see `EngineControl.pause`. An update of SGLang waits by itself for requests under way."""
        if mode is not UpdateMode.WAIT:
            how = "abort" if mode is UpdateMode.ABORT else "in_place"
            await self.post("/pause_generation", {"mode": how})

    def _version_fields(self, version: str) -> dict[str, Json]:
        return {"new_version": version, "abort_all_requests": False}

    async def load(self, path: str, version: str) -> None:
        """Load weights from a folder on the server's disk, for `Weights.update`. Raises: `ProviderError`."""
        await self.post("/update_weights_from_disk", {"model_path": path, "weight_version": version})
