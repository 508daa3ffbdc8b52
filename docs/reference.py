"""Writes the tables of the pages in `PAGES` from the code: `python docs/reference.py`, or `--check`.

The text around the tables is written by hand.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from treadle.cli.table import COMMANDS, Command, Group
from treadle.core import events, types
from treadle.core.events import Event
from treadle.datagen.config.schema import schema
from treadle.datagen.quality.duplicates import DuplicateSettings
from treadle.datagen.quality.registry import DUPLICATES, FILTERS
from treadle.export import FORMATS
from treadle.export.losses import COMMON_LOSSES

DOCS = Path(__file__).parent
PAGES = tuple([DOCS / f"{name}.md" for name in ("events", "cli", "generate-config", "rows", "quality")])
_PLACE = re.compile(r"(<!-- table: (\S+) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def main() -> int:
    """Write the pages, or with `--check` return 1 if one is not up to date."""
    stale = []
    for path in PAGES:
        text = path.read_text()
        made = _PLACE.sub(
            lambda place: place[1] + _TABLES[place[2].partition(":")[0]](place[2]) + place[3], text
        )
        if made != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(made)
    if stale and "--check" in sys.argv:
        print(f"{', '.join(stale)} is not up to date; run: python docs/reference.py")
        return 1
    return 0


def _event_tables(_: str) -> str:
    """Return a section with a table of fields for each type of event."""
    parts = []
    for name, (bases, docstring, fields) in _classes(events).items():
        kind = getattr(events, name)
        tag = getattr(kind, "__struct_config__", None) and kind.__struct_config__.tag
        if not tag or tag == name:
            continue
        inherited = _classes(events)[bases[0]][2] if bases[0] == "BodyWithContents" else []
        parts.append(f"### `{tag}`\n\n{_join(docstring)}\n\n{_write_fields(fields + inherited)}".rstrip())
    return "\n\n".join(parts)


def _type_tables(place: str) -> str:
    """Return the table of fields of one type."""
    name = place.partition(":")[2]
    _, docstring, fields = _classes(types)[name]
    return f"{_join(docstring)}\n\n{_write_fields(fields)}"


def _command_tables(_: str) -> str:
    """Return a table of the commands for each heading of the help."""
    panels: dict[str, list[str]] = {}
    for name, entry in COMMANDS.items():
        rows = panels.setdefault(entry.panel, [])
        if isinstance(entry, Group):
            rows += [
                f"| `treadle {name} {sub}` | {command.summary} |" for sub, command in entry.commands.items()
            ]
        else:
            assert isinstance(entry, Command)
            rows.append(
                f"| `{DUPLICATES}` | the dataset | No row before it asks for the same; see [below](#duplicates). |"
            )
    settings = {**{name: kind.settings_type for name, kind in filters.items()}, DUPLICATES: DuplicateSettings}
    lines = [
        f"| `{name}.{key}` | `{json.dumps(field.get_default())}` | {_join(field.description or '')} |"
        for name, kind in settings.items()
        for key, field in kind.model_fields.items()
    ]
    return (
        "| filter | looks at | a good row |\n| --- | --- | --- |\n"
        + "\n".join(rows)
        + "\n\n### Settings\n\n| setting | default | meaning |\n| --- | --- | --- |\n"
        + "\n".join(lines)
    )


def _classes(module: ModuleType) -> dict[str, tuple[list[str], str, list[tuple[str, str, str | None, str]]]]:
    """Return the bases, the docstring and the fields of each class; a field is its name, type, default and text."""
    found = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields: list[tuple[str, str, str | None, str]] = []
        for item, after in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            is_told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = str(after.value.value) if is_told else ""  # type: ignore[union-attr]
            default = None if item.value is None else ast.unparse(item.value)
            fields.append((item.target.id, ast.unparse(item.annotation), default, text))
        found[node.name] = ([ast.unparse(base) for base in node.bases], ast.get_docstring(node) or "", fields)
    return found


def _write_fields(fields: list[tuple[str, str, str | None, str]]) -> str:
    if not fields:
        return ""
    rows = [
        f"| `{name}` | `{_join(kind)}` | {'' if default is None else f'`{_default(default)}`'} | {_join(text)} |"
        for name, kind, default, text in fields
    ]
    return "| field | type | default | meaning |\n| --- | --- | --- | --- |\n" + "\n".join(rows)


def _default(text: str) -> str:
    return {"field(default_factory=dict)": "{}"}.get(text, text)


def _join(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


_TABLES = {
    "events": _event_tables,
    "type": _type_tables,
    "commands": _command_tables,
    "config": _config_tables,
    "formats": _format_table,
    "filters": _filter_tables,
}

if __name__ == "__main__":
    assert Event is not None
    sys.exit(main())
