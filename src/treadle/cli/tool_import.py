"""What `treadle tools import` does."""

from pathlib import Path

from treadle.cli.output import print_lines, print_note, write_count
from treadle.cli.tool_listing import encode
from treadle.core.errors import ConfigError
from treadle.core.types import ToolSpec
from treadle.tools.definitions import read_definitions
from treadle.tools.resolve import resolve_tools


def import_tools(source: str, out: Path | None, shape: str, *, is_forced: bool) -> int:
    """Read, write, and say how many; the exit code. Raises: `ConfigError`."""
    if out is not None and out.exists() and not is_forced:
        raise ConfigError(f"{str(out)!r} is there already; --force replaces it")
    specs = _read(source)
    data = encode(specs, shape)
    if out is None:
        print_lines([data])
        return 0
    try:
        out.write_bytes(data + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {str(out)!r}: {error.strerror}") from error
    print_note(f"{write_count(len(specs), 'tool')} written to {out}")
    return 0


def _read(source: str) -> tuple[ToolSpec, ...]:
    if source.endswith((".json", ".yaml", ".yml")) and ":" not in source:
        return read_definitions(source).tools
    return tuple([tool.spec for tool in resolve_tools([source])])
