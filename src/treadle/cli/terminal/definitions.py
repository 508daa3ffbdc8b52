"""Tool definitions as text: for `treadle tools list` and `treadle tools import`."""

from collections.abc import Iterable, Sequence

import msgspec

from treadle.cli.terminal.output import print_note
from treadle.core.types import ToolSpec
from treadle.tools.schema.tool_definitions import Loss, Shape, write_definitions

MAX_NAMED = 5
"""The most tools that one remark names."""


def encode(specs: Sequence[ToolSpec], shape: Shape, *, is_yaml: bool = False) -> bytes:
    """Return definitions as indented JSON or as YAML, and print what the shape cannot hold."""
    written, lost = write_definitions(specs, shape)
    print_losses(lost, f"the shape {shape} cannot hold")
    data = msgspec.json.encode(written)
    if not is_yaml:
        return msgspec.json.format(data, indent=2)
    import yaml

    text: str = yaml.safe_dump(msgspec.json.decode(data), sort_keys=False, allow_unicode=True, width=100)
    return text.rstrip("\n").encode()


def print_losses(lost: Iterable[Loss], begin: str) -> None:
    """Print one remark for each thing that was lost, with the tools that lost it."""
    tools_by_what: dict[str, list[str]] = {}
    for item in lost:
        tools_by_what.setdefault(item.what, []).append(item.tool)
    for what, tools in tools_by_what.items():
        more = f" and {len(tools) - MAX_NAMED} more" if len(tools) > MAX_NAMED else ""
        names = ", ".join(tools[:MAX_NAMED]) + more
        print_note(f"{begin} {what}: {names}" if names else f"{begin} {what}")
