"""A model that answers a repeated request from a cache, and the folder of answers that caches are kept in."""

import contextlib
import hashlib
import os
import uuid
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Completion, FinishReason, Request, Usage
from treadle.models.protocol import Model, Watch, pass_on
from treadle.models.wrappers.wrapper import Wrapper

_WHOLE = (FinishReason.STOP, FinishReason.TOOL_CALLS)

_encode_message = msgspec.json.Encoder(order="deterministic").encode


T = TypeVar("T")


class AnswerFolder(Generic[T]):
    """Answers in a folder, by name, for any number of processes. Damaged or incomplete files are never used."""

    def __init__(self, folder: str | Path, kind: type[T]) -> None:
        """Keep answers of a type in `folder`. Raises: `ConfigError` if the folder cannot be made."""
        self.path = Path(folder).expanduser()
        self._decode = msgspec.json.Decoder(kind).decode
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the cache {str(folder)!r} cannot be made: {error.strerror}") from error

    def read(self, name: str) -> T | None:
        """Return an answer; `None` if there is none."""
        try:
            return self._decode((self.path / f"{name}.json").read_bytes())
        except (OSError, *UNREADABLE):
            return None

    def write(self, name: str, answer: T) -> T:
        """Store an answer. Return it, or the answer that another process stored first. Raises: `OSError`."""
        path = self.path / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        part = path.parent / f".{uuid.uuid4().hex}"
        try:
            part.write_bytes(msgspec.json.encode(answer))
            try:
                os.link(part, path)
            except FileExistsError:
                if (kept := self.read(name)) is not None:
                    return kept
                part.replace(path)
            except OSError:
                # A file system without hard links.
                part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return answer


class CacheModel(Wrapper):
    """A model that keeps answers in a folder, by request, model and settings.

    An answer from the cache is marked, costs nothing and counts no tokens. For different samples of the same
    request, use different seeds. Processes may share a folder; see `AnswerFolder`.
    """

    CHANGES_ANSWERS = False

    def __init__(self, inner: Model, folder: str | Path) -> None:
        """Make a cache in `folder`. Raises: `ConfigError` if the folder cannot be made."""
        super().__init__(inner)
        self._answers = AnswerFolder(folder, Completion)
        self.folder = self._answers.path

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the kept answer, or else the inner model's; see `Model.infer`."""
        name = self._name(request)
        if (kept := self._answers.read(name)) is not None:
            if watch.on_delta is not None:
                pass_on(kept.message, watch.on_delta)
            return replace(kept, is_cached=True, cost_usd=0.0, usage=Usage())
        completion = await self.inner.infer(request, watch)
        if completion.finish_reason in _WHOLE:
            # If the disk is full, only this copy of the answer is lost.
            with contextlib.suppress(OSError):
                self._answers.write(name, completion)
        return completion

    def _name(self, request: Request) -> str:
        digest = hashlib.sha256(self.identity.encode())
        asked = (request.tools, request.output_schema, request.required_tool)
        digest.update(_encode_message(asked))
        digest.update(request.place.encode())
        for message in request.messages.map(_encode_message):
            digest.update(b"\n")
            digest.update(message)
        key = digest.hexdigest()
        return f"{key[:2]}/{key[2:]}"
