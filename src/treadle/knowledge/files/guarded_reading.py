"""The text of uploaded files.

Files whose formats can be made to take any time or memory are read by another process, which the system ends when
it takes too much of either.
"""

import asyncio
import contextlib
import sys

import msgspec

from treadle.core.errors import ConfigError
from treadle.knowledge.documents.library import ReadDocument, is_html, parse_document

_MAX_SECONDS = 60
_MAX_BYTES = 1024**3
_decode = msgspec.json.Decoder(ReadDocument | str).decode


async def read_guarded(content: bytes, name: str) -> ReadDocument:
    """Return the text of a file. Raises: `ConfigError` if it has none that can be read."""
    if not (content.startswith(b"%PDF-") or is_html(content, name)):
        return await asyncio.to_thread(parse_document, content, name)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __spec__.name, name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(2 * _MAX_SECONDS):
            told, _ = await child.communicate(content)
    except TimeoutError:
        told = b""
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    if not told:
        raise ConfigError(f"the document {name!r} takes too much time or memory to read")
    found: ReadDocument | str = _decode(told)
    if isinstance(found, str):
        raise ConfigError(found)
    return found


def _read_in_child(name: str) -> None:
    """Read the content from the standard input, and write the document or what is wrong with it."""
    with contextlib.suppress(ImportError):  # other systems than Unix have no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (_MAX_SECONDS, _MAX_SECONDS))
    found: ReadDocument | str
    try:
        found = parse_document(sys.stdin.buffer.read(), name)
    except ConfigError as error:
        found = str(error)
    except RecursionError:
        found = f"the document {name!r} is nested too deeply"
    sys.stdout.write(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    _read_in_child(sys.argv[1])
