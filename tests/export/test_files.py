"""Files of rows: JSON lines, folders of sessions, and how their format is found out."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from msgspec.structs import replace
from tests.export.test_formats import NAMES, TOOLS, WHOLE, can_hold, rows

from treadle import ConfigError, ExportError
from treadle.core.documents import decode_document
from treadle.core.types import Message, Role, ToolCall
from treadle.export import FORMATS, Lineage, Row, find_losses, read_row
from treadle.export.row_files import detect_format, open_writer, read_objects


def example(run_id: str = "r1", content: str = "done") -> Row:
    """Return a row with two parallel calls, the same call again, and a result that is empty."""
    again = '{"a": 1}'
    return Row(
        (
            Message(Role.SYSTEM, "Be brief."),
            Message(Role.USER, "go"),
            Message(
                Role.ASSISTANT,
                "I look.",
                (ToolCall("c1", "read", again), ToolCall("c2", "write", '{"a": "b", "n": null}')),
                reasoning="First look.",
            ),
            Message(Role.TOOL, "", (), "c1", "read"),
            Message(Role.TOOL, "no", (), "c2", "write", True),
            Message(Role.ASSISTANT, "", (ToolCall("c3", "read", again),), reasoning="Look again."),
            Message(Role.TOOL, "two", (), "c3", "read"),
            Message(Role.ASSISTANT, content),
        ),
        TOOLS,
        Lineage(run_id, "m", "completed", "h", reward=1.0, tool_errors=("c2",)),
    )


def save(path: Path, name: str, *found: Row) -> Path:
    with open_writer(name, path) as writer:
        for row in found:
            writer.write(row)
    assert writer.count == len(found)
    return path


def load(path: Path, name: str) -> list[Row]:
    return [read_row(raw, FORMATS.load(name)) for _, raw in read_objects(path, name)]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_read_as_it_was_written_and_its_format_is_found(name: str, tmp_path: Path) -> None:
    answer = '{"n": 1}' if name == "custom" else "done"
    written = [example("r1", answer), example("r2", answer)]
    if name == "xlam":  # it holds one step with calls
        written = [replace(row, messages=(*row.messages[:5], row.messages[-1])) for row in written]
    path = save(tmp_path / "rows.jsonl", name, *written)
    assert detect_format(path) == name
    for row, back in zip(written, load(path, name), strict=True):
        assert set(find_losses(row, back)) <= set(FORMATS.load(name).losses)


@settings(
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    max_examples=settings().max_examples * 4 // 10,
)
@given(row=rows())
@pytest.mark.parametrize("name", WHOLE)
def test_the_format_of_any_row_with_calls_is_found(
    name: str, row: Row, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(
        can_hold(row, name)
        and any(call.arguments != "{}" for message in row.messages for call in message.tool_calls)
    )
    path = save(tmp_path_factory.mktemp("rows") / "rows.jsonl", name, row)
    assert detect_format(path) == name


def test_each_session_is_a_file_of_its_own(tmp_path: Path) -> None:
    save(tmp_path / "out", "hf_trace", example("a/b"), example("c"))
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["a_b.jsonl", "c.jsonl"]
    header, *messages = (tmp_path / "out" / "c.jsonl").read_text().splitlines()
    assert header.startswith('{"type":"session","harness":"treadle","id":"c"')
    assert len(messages) == 8
    with pytest.raises(ExportError, match="two rows have the run id"):
        save(tmp_path / "twice", "hf_trace", example(), example())


def test_a_file_that_fails_does_not_appear(tmp_path: Path) -> None:
    bad = Row(
        (
            Message(Role.ASSISTANT, "", (ToolCall("c", "read", "[1"),)),
            Message(Role.TOOL, "", (), "c", "read"),
        ),
        (),
        Lineage("r", "m", "completed", "h"),
    )
    with pytest.raises(ExportError, match="are not JSON"):
        save(tmp_path / "rows.jsonl", "trl", example(), bad)
    assert list(tmp_path.iterdir()) == []


def test_errors_name_the_line_and_the_formats(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": []}\n[1]\n')
    with pytest.raises(ExportError, match="line 2 is not a JSON object"):
        list(read_objects(path, "trl"))
    path.write_text('{"text": "a"}\n')
    with pytest.raises(
        ConfigError, match="in no known format; its format must be one of treadle, deepfabric"
    ):
        detect_format(path)
    path.write_text("\n")
    with pytest.raises(ConfigError, match="has no rows"):
        detect_format(path)


def test_axolotl_gets_calls_by_the_settings_of_the_docs(tmp_path: Path) -> None:
    """Rules out that the documented settings name a format whose calls Axolotl takes for text.

    Source: Axolotl 0.18, `ChatTemplateStrategy.transform_message`: mapped keys, then those that templates know.
    """
    text = (Path(__file__).parents[2] / "docs" / "rows.md").read_text()
    name, written = re.search(r"Axolotl reads `(\w+)` with.*?```yaml\n(.*?)```", text, re.DOTALL).groups()  # type: ignore[union-attr]
    (given_settings,) = decode_document(written.encode(), "docs/rows.md", is_yaml=True)["datasets"]
    row = example()
    (raw,) = [raw for _, raw in read_objects(save(tmp_path / "rows.jsonl", name, row), name)]
    mappings = {**given_settings["message_property_mappings"], "tool_calls": "tool_calls"}
    roles = {tag: role for role, tags in given_settings.get("roles", {}).items() for tag in tags}
    for message, said in zip(raw[given_settings["field_messages"]], row.messages, strict=True):
        seen = {key: message[value] for key, value in mappings.items() if message.get(value) is not None}
        assert roles.get(seen["role"], seen["role"]) == said.role
        assert seen["content"] == said.content
        assert len(seen.get("tool_calls", ())) == len(said.tool_calls)
    assert raw["tools"]
