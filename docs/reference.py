"""Writes the tables of the pages in `PAGES` from the code: `python docs/reference.py`, or `--check`.

The text around the tables is written by hand.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from treadle.cli.jobs.machine_checks import read_extras
from treadle.cli.table import COMMANDS
from treadle.core import events, types
from treadle.core.events import Event
from treadle.datagen.config.config_schema import schema
from treadle.datagen.quality.duplicates import DuplicateSettings
from treadle.datagen.quality.registry import DUPLICATES, FILTERS
from treadle.evals.evaluation_config import READER as EVALUATIONS
from treadle.export import FORMATS
from treadle.export.exporter import COMMON_LOSSES
from treadle.export.token_exporter import TOKEN_FORMATS
from treadle.knowledge.personas.persona import persona_schema
from treadle.models.config.tables import RegressionTable
from treadle.rollout.rollout_config import READER as ROLLOUTS

DOCS = Path(__file__).parent
PAGES = tuple([path for path in sorted(DOCS.glob("*.md")) if "<!-- table: " in path.read_text()])
_SCHEMAS = {
    "": schema,
    "generate": schema,
    "persona": persona_schema,
    "rollout": lambda: ROLLOUTS.schema,
    "eval": lambda: EVALUATIONS.schema,
    "test": RegressionTable.model_json_schema,
}
_kind = ""
"""The kind of file whose tables are written."""
_PLACE = re.compile(r"(<!-- table: (\S+) -->\n)(?:.*?\n)?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Write the pages, or with `--check` return 1 if one is not up to date."""
    stale = []
    for path in PAGES:
        text = path.read_text()
        made = _PLACE.sub(
            lambda place: f"{place[1]}{_TABLES[place[2].partition(':')[0]](place[2])}\n{place[3]}", text
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
    inherited = _describe(events.BodyWithContents)[1]
    for kind in (*events.DurableBody.__args__, *events.Delta.__args__):
        docstring, fields = _describe(kind)
        if issubclass(kind, events.BodyWithContents):
            fields = fields + inherited
        parts.append(
            f"### `{kind.__struct_config__.tag}`\n\n{_join(docstring)}\n\n{_write_fields(fields)}".rstrip()
        )
    return "\n\n".join(parts)


def _type_tables(place: str) -> str:
    """Return the table of fields of one type."""
    name = place.partition(":")[2]
    docstring, fields = _describe(getattr(types, name))
    return f"{_join(docstring)}\n\n{_write_fields(fields)}"


def _command_tables(_: str) -> str:
    """Return a table of the commands for each heading of the help."""
    panels: dict[str, list[str]] = {}
    for name, entry in COMMANDS.items():
        rows = panels.setdefault(entry.panel, [])
        if entry.function:
            rows.append(f"| `treadle {name}` | {entry.summary} |")
        rows += [f"| `treadle {name} {sub}` | {command.summary} |" for sub, command in entry.commands.items()]
    return "\n\n".join(
        f"### {panel}\n\n| command | what it does |\n| --- | --- |\n" + "\n".join(rows)
        for panel, rows in panels.items()
    )


@cache
def _schema_of(kind: str) -> Any:
    return _SCHEMAS[kind]()


def _config_tables(place: str) -> str:
    """Return a table of keys for each section of a kind of file: the configuration of `treadle generate` or of
    `treadle rollout`, or a persona."""
    parts = []
    global _kind
    _kind = place.partition(":")[2]
    for path, section in _sections("", _schema_of(_kind)):
        rows = [
            f"| `{key}` | {_write_type(value)} | {_write_default(value)} | "
            f"{_join(value.get('description') or _follow(value).get('description', ''))} |"
            for key, value in section["properties"].items()
        ]
        heading = f"### `{path}`\n\n{_join(section.get('description', ''))}\n\n" if path else ""
        table = "| key | value | default | meaning |\n| --- | --- | --- | --- |\n"
        parts.append(heading + table + "\n".join(rows))
    return "\n\n".join(parts)


def _sections(path: str, section: Any) -> Iterator[tuple[str, Any]]:
    """Yield a section of the configuration and those within it, each with its path."""
    yield path, section
    for key, value in section["properties"].items():
        name = f"{path}.{key}" if path else key
        found = [_follow(item) for item in (value, *value.get("anyOf", ()), value.get("items", {}))]
        found += [_follow(item) for item in value.get("items", {}).get("anyOf", ())]
        for inner in found:
            if "properties" in inner and inner.get("title") and inner is not value and key != "default":
                if inner["title"] == "ModelTable" and key != "topics":
                    continue
                label = "models.ROLE" if inner["title"] == "ModelTable" else name
                yield from _sections(label, inner)


def _follow(node: Any) -> Any:
    """Return the schema that `node` refers to, or `node` itself."""
    name = node.get("$ref", "").rpartition("/")[2]
    found: Any = _schema_of(_kind).get("$defs", {})
    return found[name] if name else node


def _write_type(node: Any) -> str:
    """Return the values that a schema allows, in words."""
    if "enum" in node:
        return ", ".join(f"`{item}`" for item in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    if choices := [item for item in node.get("anyOf", ()) if item.get("type") != "null"]:
        return " or ".join(dict.fromkeys(_write_type(item) for item in choices))
    if "$ref" in node:
        return "section"
    kind = node.get("type", "value")
    if kind == "array":
        return f"list of {_write_type(node['items'])}"
    if kind == "object":
        return "mapping"
    return {"string": "text", "boolean": "true or false"}.get(kind, kind)


def _write_default(node: Any) -> str:
    value = node.get("default")
    return "" if value in (None, "", [], {}) or isinstance(value, dict) else f"`{json.dumps(value)}`"


def _format_table(_: str) -> str:
    """Return a table of the row formats, with what a row loses in each."""
    rows = []
    for name in FORMATS.names():
        found = FORMATS.load(name)
        text = _join(inspect.getdoc(type(found)) or "")
        what = re.split(r"\.(?:\s|$)", text.partition(": ")[2])[0]
        losses = [loss.value for loss in found.losses if loss not in COMMON_LOSSES]
        losses += ["the parts named below"] if set(COMMON_LOSSES) <= set(found.losses) else []
        reasoning = "yes" if found.has_reasoning else "no"
        rows.append(f"| `{name}` | {what} | {reasoning} | {'; '.join(losses) or 'nothing'} |")
    head = "| format | contents | reasoning by default | what a row can lose |\n| --- | --- | --- | --- |\n"
    common = ", ".join(loss.value for loss in COMMON_LOSSES)
    return f"{head}{chr(10).join(rows)}\n\nThe parts that most formats cannot hold are: {common}."


def _token_format_table(_: str) -> str:
    """Return a table of the token formats, with the grade of tokens that each needs."""
    rows = []
    for name in TOKEN_FORMATS.names():
        found = TOKEN_FORMATS.load(name)
        text = _join(inspect.getdoc(type(found)) or "")
        rows.append(f"| `{name}` | {text.partition(': ')[2].rstrip('.')} | `{found.needs.value}` |")
    return "| format | rows | needs |\n| --- | --- | --- |\n" + "\n".join(rows)


def _extra_table(_: str) -> str:
    """Return a table of the extras."""
    rows = [f"| `{name}` | {about} |" for name, about in read_extras().items()]
    return "\n".join(["| extra | what it adds |", "| --- | --- |", *rows, "| `all` | all of these |"])


def _filter_tables(_: str) -> str:
    """Return a table of the filters, and one of their settings."""
    filters = {name: FILTERS.load(name) for name in FILTERS.table}
    costs = ("the row", "the calls or files", "a model")
    rows = [
        f"| `{name}` | {costs[kind.cost]} | {_join(inspect.getdoc(kind) or '')} |"
        for name, kind in filters.items()
    ]
    rows.append(
        f"| `{DUPLICATES}` | the dataset | No row before it asks for the same; see [below](#duplicates). |"
    )
    settings = {**{name: kind.settings_type for name, kind in filters.items()}, DUPLICATES: DuplicateSettings}
    lines = [
        f"| `{name}.{key}` | `{json.dumps(field.get('default'))}` | {_join(field.get('description', ''))} |"
        for name, kind in settings.items()
        for key, field in kind.model_json_schema().get("properties", {}).items()
    ]
    parts = (
        "| filter | looks at | what a kept row fulfils |\n| --- | --- | --- |",
        *rows,
        "\n### Settings\n\n| setting | default | meaning |\n| --- | --- | --- |",
        *lines,
    )
    return "\n".join(parts)


def _describe(kind: type) -> tuple[str, list[tuple[str, str, str | None, str]]]:
    """Return the docstring of a class and its fields; a field is its name, type, default and text."""
    found = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(found, ast.ClassDef)
    fields: list[tuple[str, str, str | None, str]] = []
    for item, after in zip(found.body, [*found.body[1:], None], strict=True):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        is_told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = str(after.value.value) if is_told else ""  # type: ignore[union-attr]
        default = None if item.value is None else ast.unparse(item.value)
        default = "{}" if default == "field(default_factory=dict)" else default
        fields.append((item.target.id, ast.unparse(item.annotation), default, text))
    return ast.get_docstring(found) or "", fields


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
    "token_formats": _token_format_table,
    "filters": _filter_tables,
    "extras": _extra_table,
}

if __name__ == "__main__":
    assert Event is not None
    sys.exit(main())
