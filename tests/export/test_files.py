"""Files of rows: JSON lines, folders of sessions, and how their format is found out."""

import copy
import json
import os
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from msgspec.structs import replace
from tests.export.test_formats import NAMES, TOOLS, WHOLE, can_hold, rows

from treadle import ConfigError, ExportError
from treadle.core.texts.documents import decode_document
from treadle.core.types import Message, Role, ToolCall
from treadle.export import FORMATS, Lineage, Row, encode_row, find_losses, read_row
from treadle.export.row_changes import RowOptions
from treadle.export.row_files import RowConversion, detect_format, open_writer, read_objects


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
    save(tmp_path / "twice", "hf_trace", example(), example(), example())
    assert sorted(file.name for file in (tmp_path / "twice").iterdir()) == [
        "r1-2.jsonl",
        "r1-3.jsonl",
        "r1.jsonl",
    ]


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


@pytest.mark.parametrize(("key", "is_told"), [("tool", True), ("score", False)])
def test_a_key_that_is_nearly_one_of_the_format_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, is_told: bool
) -> None:
    asked = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": asked, key: []}))
    detect_format(tmp_path / "rows.jsonl")
    assert ("has 'tool', which is not read; did you mean 'tools'?" in caplog.text) is is_told


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


def places_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value within a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*path, key)
        yield from places_of(value[key], (*path, key))


WRONG: tuple[Any, ...] = (None, 5, [], {}, "x", ["x"], {"a": 1}, "gone")


def spoil(raw: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    """Return a JSON value with another value at `path`, or without it."""
    raw = copy.deepcopy(raw)
    inner = raw
    for key in path[:-1]:
        inner = inner[key]
    if wrong == "gone":
        del inner[path[-1]]
    else:
        inner[path[-1]] = wrong
    return raw


@pytest.mark.parametrize("name", NAMES)
def test_a_row_with_any_part_wrong_is_converted_or_left_out_with_a_reason(name: str, tmp_path: Path) -> None:
    row = example("r1", '{"n": 1}' if name == "custom" else "done")
    if name == "xlam":
        row = replace(row, messages=(*row.messages[:5], row.messages[-1]))
    lines = [json.loads(line) for line in encode_row(row, FORMATS.load(name)).split(b"\n")]
    changes = [(path, wrong) for path in places_of(lines) for wrong in WRONG]
    if not os.environ.get("TREADLE_FULL"):
        changes = random.Random(name).sample(changes, min(120, len(changes)))
    path = tmp_path / "rows.jsonl"
    for place, wrong in changes:
        spoilt = spoil(lines, place, wrong)
        path.write_text("".join(json.dumps(line) + "\n" for line in spoilt))
        for to in ("treadle", "openai"):
            conversion = RowConversion(name, to, None, RowOptions("used+1", splits_calls=True))
            try:
                written = list(conversion.lines(path, lambda place: None))
            except ExportError:  # the file of one session is damaged as a whole
                assert name == "hf_trace"
                continue
            assert len(written) == conversion.written
            assert conversion.written or conversion.refused or not spoilt
        with suppress(ConfigError, ExportError):
            detect_format(path)


def test_lines_that_are_damaged_are_left_out_and_counted(tmp_path: Path) -> None:
    path = save(tmp_path / "rows.jsonl", "openai", example("r1"), example("r2"))
    good = path.read_bytes()
    path.write_bytes(b'{"messages": "\\ud800"}\n' + good + b"[1]\n" + good[:40])
    conversion = RowConversion("openai", "trl", None)
    assert len(list(conversion.lines(path, lambda place: None))) == 2
    assert list(conversion.refused) == ["line 1", "line 4", "line 5"]
    assert detect_format(path) == "openai"


def test_what_other_programs_write_is_read_or_refused_with_the_reason(tmp_path: Path) -> None:
    asked, said = {"role": "user", "content": "go"}, {"role": "assistant", "content": "done"}
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    rows: list[Any] = [
        [{"role": "developer", "content": "Be brief."}, asked, said],
        [asked, {**said, "weight": 0}, asked, said],
        [picture, said],
        [asked, {**said, "content": 5}],
        [asked],
        [],
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in rows))
    conversion = RowConversion("openai", "openai", None)
    written = [json.loads(line) for line in conversion.lines(path, lambda place: None)]
    assert written[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [message.get("weight") for message in written[1]["messages"]] == [None, 0, None, None]
    reasons = ["image_url", "Expected `str`", "no answer of", "no answer of"]
    assert len(conversion.refused) == len(reasons)
    for reason, told in zip(reasons, conversion.refused.values(), strict=True):
        assert reason in told
        assert "Error(" not in told or "ValidationError" in told


@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf"])
def test_a_list_of_rows_and_a_byte_order_mark_are_read(head: bytes, tmp_path: Path) -> None:
    """Windows writes the mark, and many programs write one list in place of lines."""
    row = encode_row(example(), FORMATS.load("trl"))
    (tmp_path / "lines.jsonl").write_bytes(head + row + b"\r\n" + row)
    (tmp_path / "list.json").write_bytes(head + b"\n[" + row + b",\n" + row + b"]\n")
    for name, word in (("lines.jsonl", "line"), ("list.json", "row")):
        assert detect_format(tmp_path / name) == "trl"
        assert [place for place, _ in read_objects(tmp_path / name, "trl")] == [f"{word} 1", f"{word} 2"]
    (tmp_path / "list.json").write_bytes(head + b"[" + row + b", 3]")
    with pytest.raises(ExportError, match="line 1 is not a JSON object"):
        detect_format(tmp_path / "list.json")


@pytest.mark.parametrize("name", ["atif", "treadle"])
def test_a_row_over_several_lines_is_read(name: str, tmp_path: Path) -> None:
    """Agents of Harbor write one indented trajectory in a file."""
    raw = json.loads(encode_row(example(), FORMATS.load(name)))
    path = tmp_path / "trajectory.json"
    path.write_text("\ufeff" + json.dumps(raw, indent=2).replace("\n", "\r\n"), newline="")
    assert detect_format(path) == name
    assert [*read_objects(path, name)] == [("row 1", raw)]
    path.write_text('{\n"messages": [')
    with pytest.raises(ExportError, match="line 1 is not JSON"):
        detect_format(path)


def test_results_in_another_order_than_the_calls_are_joined_by_their_ids(tmp_path: Path) -> None:
    raw = json.loads(encode_row(example(), FORMATS.load("openai")))
    said = raw["messages"]
    said[3], said[4] = said[4], said[3]
    back = read_row(raw, FORMATS.load("openai"))
    assert [message.call_id for message in back.messages if message.role is Role.TOOL] == ["c1", "c2", "c3"]
    assert [message.content for message in back.messages[3:5]] == ["", "no"]
    said.insert(4, {"role": "tool", "tool_call_id": "c3", "content": "early"})
    with pytest.raises(ExportError, match="the transcript is faulty"):
        read_row(raw, FORMATS.load("openai"))


def test_keys_that_are_not_read_are_told_also_within_tools(tmp_path: Path) -> None:
    raw = json.loads(encode_row(example(), FORMATS.load("openai")))
    raw["tools"][0]["function"]["strict"] = True
    lacking = copy.deepcopy(raw)
    del lacking["tools"][0]["function"]["name"]
    source = tmp_path / "rows.jsonl"
    source.write_text(f"{json.dumps(raw)}\n{json.dumps(lacking)}\n")
    conversion = RowConversion("openai", "trl", None)
    assert len(list(conversion.rows(source, lambda place: None))) == 1
    assert conversion.unread == {"the key 'strict' in 'tools'": 1}
    assert conversion.refused == {"line 2": "it lacks the key 'name'"}


def test_rows_are_not_written_beside_those_of_before(tmp_path: Path) -> None:
    save(tmp_path / "out", "hf_trace", example("a"), example("b"))
    with pytest.raises(ConfigError, match="has rows already"), open_writer("hf_trace", tmp_path / "out"):
        pass
    assert len(load(tmp_path / "out", "hf_trace")) == 2


def test_no_tools_is_no_choice_of_tools() -> None:
    with pytest.raises(ConfigError, match="--tools '' is not known"):
        RowOptions("")


@pytest.mark.parametrize("name", FORMATS.names())
def test_a_row_without_lineage_says_nowhere_where_it_comes_from(name: str, tmp_path: Path) -> None:
    rows = save(tmp_path / "rows.jsonl", "treadle", example("the-run"))
    if name in ("treadle", "custom", "hf_trace", "atif"):
        with pytest.raises(ConfigError, match=f"rows of {name} cannot be without lineage"):
            RowConversion("treadle", name, None, RowOptions(has_lineage=False))
        return
    asked = replace(example().messages[2], content="", reasoning=None)
    row = Row((Message(Role.USER, "go"), asked, *example().messages[3:5]), TOOLS, example("the-run").lineage)
    save(tmp_path / "short.jsonl", "treadle", row)
    written = {}
    for has_lineage in (True, False):
        conversion = RowConversion("treadle", name, None, RowOptions(has_lineage=has_lineage))
        source = tmp_path / "short.jsonl" if name == "xlam" else rows
        lines = list(conversion.lines(source, lambda _: None))
        assert not conversion.refused
        [written[has_lineage]] = lines
    assert not re.search(rb"the-run|lineage", written[False])
    with_it, without = [read_row(json.loads(written[key]), FORMATS.load(name)) for key in (True, False)]
    assert without.lineage is None or without.lineage.run_id != "the-run"
    assert without.tools == with_it.tools
    # Some formats keep ids of calls, and which results are errors, in the lineage.
    told = [
        [
            (item.role, item.content, [(call.name, call.arguments) for call in item.tool_calls])
            for item in row.messages
        ]
        for row in (with_it, without)
    ]
    assert told[0] == told[1]
