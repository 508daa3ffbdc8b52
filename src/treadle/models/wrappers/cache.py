"""A model that answers a repeated request from a cache."""

import contextlib
import hashlib
import os
import uuid
from pathlib import Path

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.types import Completion, FinishReason, Request, Usage
from treadle.models.protocol import Model, Watch, pass_on
from treadle.models.wrappers.wrapper import Wrapper

_WHOLE = (FinishReason.STOP, FinishReason.TOOL_CALLS)

_encode_message = msgspec.json.Encoder(order="deterministic").encode


class CacheModel(Wrapper):
    """A model that keeps answers in a folder, by request, model and settings.

    An answer from the cache is marked, costs nothing and counts no tokens. For different samples of the same
    request, use different seeds. Processes may share a folder: the first answer to a request is kept, and damaged
    or incomplete files are never used.
    """

    CHANGES_ANSWERS = False

    def __init__(self, inner: Model, folder: str | Path) -> None:
        """Make a cache in `folder`. Raises: `ConfigError` if the folder cannot be made."""
        super().__init__(inner)
        self.folder = Path(folder).expanduser()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the cache {str(folder)!r} cannot be made: {error.strerror}") from error

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the kept answer, or else the inner model's; see `Model.infer`."""
        path = self._path(request)
        if (kept := _read(path)) is not None:
            if watch.on_delta is not None:
                pass_on(kept.message, watch.on_delta)
            return replace(kept, is_cached=True, cost_usd=0.0, usage=Usage())
        completion = await self.inner.infer(request, watch)
        if completion.finish_reason in _WHOLE:
            # If the disk is full, only this copy of the answer is lost.
            with contextlib.suppress(OSError):
                _write(path, completion)
        return completion

    def _path(self, request: Request) -> Path:
        digest = hashlib.sha256(self.identity.encode())
        asked = (request.tools, request.output_schema, request.required_tool)
        digest.update(_encode_message(asked))
        for message in request.messages.map(_encode_message):
            digest.update(b"\n")
            digest.update(message)
        key = digest.hexdigest()
        return self.folder / key[:2] / f"{key[2:]}.json"


def _read(path: Path) -> Completion | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Completion)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _write(path: Path, completion: Completion) -> None:
    path.parent.mkdir(exist_ok=True)
    part = path.parent / f".{uuid.uuid4().hex}"
    try:
        part.write_bytes(msgspec.json.encode(completion))
        try:
            os.link(part, path)
        except FileExistsError:
            if _read(path) is None:
                part.replace(path)
        except OSError:
            # A file system without hard links.
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
