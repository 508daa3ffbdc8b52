"""Token ids of prompts: as they are stored and sent, so that a step does not convert all of them; and control
tokens in foreign text, which must not pass for the template's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, overload

import msgspec

from treadle.core.packed import count_packed, pack_ids, view_ids
from treadle.core.types import Json
from treadle.models.tokens.weights import UpdateMode
from treadle.models.wire.endpoint import HttpEndpoint, is_success, join_url
from treadle.models.wire.token_records import KnownTexts, encode_ids


class PromptIds(Sequence[int]):
    """The ids of a prompt. They are unpacked only if somebody looks at them."""

    __slots__ = ("packed", "text")

    def __init__(self, packed: bytes, text: bytes) -> None:
        self.packed = packed
        """The ids, packed."""
        self.text = text
        """The ids as JSON without the brackets."""

    @classmethod
    def of(cls, ids: Sequence[int]) -> "PromptIds":
        """Return `ids` as a prompt."""
        return ids if isinstance(ids, PromptIds) else cls(pack_ids(ids), encode_ids(list(ids)))

    @classmethod
    def after(cls, prior: bytes, ids: Sequence[int], texts: KnownTexts) -> "PromptIds":
        """Return the prompt of the packed ids `prior` and then `ids`."""
        text = texts.find(prior) or encode_ids(list(view_ids(prior)))
        return cls(prior + pack_ids(ids), b",".join([item for item in (text, encode_ids(ids)) if item]))

    def __len__(self) -> int:
        return count_packed(self.packed)

    def __iter__(self) -> Iterator[int]:
        return iter(view_ids(self.packed))

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return view_ids(self.packed)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PromptIds({list(self)!r})"


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
        try:
            return msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            return None


class VllmControl(HttpControl):
    """The control of vLLM."""

    BASE_URL = "http://localhost:8000/v1"
    RESUME = "/resume"

    async def pause(self, mode: UpdateMode) -> None:
        """Stop sampling; see `EngineControl.pause`."""
        await self.post("/pause", query=f"mode={mode.value}")


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
