"""What `treadle tools import` does."""

import os
import sys
from pathlib import Path

from treadle.cli.terminal.output import print_lines, print_note, write_count
from treadle.cli.tool_listing import encode, print_losses
from treadle.core.documents import decode_document, is_yaml_name
from treadle.core.errors import ConfigError
from treadle.core.types import ToolSpec
from treadle.tools.resolve import resolve_tools
from treadle.tools.schema.definitions import Shape, parse_definitions, read_definitions


def import_tools(source: str, out: Path | None, shape: Shape, *, is_forced: bool) -> int:
    """Read, write, and say how many; the exit code. Raises: `ConfigError`."""
    if out is not None and not is_forced and os.path.lexists(out):
        raise ConfigError(f"{str(out)!r} is there already; --force replaces it")
    if out is not None and out.is_dir():
        raise ConfigError(f"{str(out)!r} is a folder; name a file in it")
    specs = _read(source)
    data = encode(specs, shape, is_yaml=out is not None and is_yaml_name(out.name))
    if out is None:
        print_lines([data])
        return 0
    _replace(out, data + b"\n")
    print_note(f"{write_count(len(specs), 'tool')} written to {out}")
    return 0


def _read(source: str) -> tuple[ToolSpec, ...]:
    file = Path(source).expanduser()
    is_missing = (file.suffix.lower() == ".json" or is_yaml_name(file.name)) and ":" not in source
    if source == "-":
        read = parse_definitions(
            decode_document(sys.stdin.buffer.read(), "standard input", is_yaml=False), "standard input"
        )
    elif is_missing or (file.suffix != ".py" and file.is_file()):
        read = read_definitions(source)
    else:
        return tuple([tool.spec for tool in resolve_tools([source])])
    print_losses(read.lost, "a definition has no place for")
    return read.tools


def _replace(out: Path, data: bytes) -> None:
    """Write the whole file or nothing of it. Raises: `ConfigError`."""
    part = out.parent / f".{out.name}.{os.getpid()}"
    try:
        try:
            part.write_bytes(data)
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {str(out)!r}: {error.strerror}") from error
