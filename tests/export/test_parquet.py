"""Parquet files: exact values, a schema that does not depend on the rows, memory, and failures that cost no row."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.export.test_files import example, load, save

from treadle import ExportError
from treadle.core.types import Message, Role, ToolCall
from treadle.export import FORMATS, Row, encode_row, read_row
from treadle.export.parquet import find_columns, write_parquet
from treadle.export.row_files import detect_format, open_writer, read_objects

pq = pytest.importorskip("pyarrow.parquet")
LINES = [name for name in FORMATS.names() if name not in ("hf_trace", "custom", "xlam")]
FULL = bool(os.environ.get("TREADLE_FULL"))


@pytest.mark.parametrize("name", LINES)
def test_a_parquet_file_has_the_same_rows_as_the_json_lines(name: str, tmp_path: Path) -> None:
    rows = [example("r1"), example("r2")]
    lines = list(read_objects(save(tmp_path / "rows.jsonl", name, *rows), name))
    path = save(tmp_path / "rows.parquet", name, *rows)
    found = [raw for _, raw in read_objects(path, name)]
    assert found == [raw for _, raw in lines]
    assert detect_format(path) == name
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.jsonl", "rows.parquet"]
    assert load(path, name) == load(tmp_path / "rows.jsonl", name)


@pytest.mark.parametrize("name", LINES)
def test_the_schema_does_not_depend_on_the_rows(name: str, tmp_path: Path) -> None:
    plain = Row((Message(Role.USER, "a"), Message(Role.ASSISTANT, "b")), (), example().lineage)
    schemas = {
        str(pq.read_schema(save(tmp_path / f"{number}.parquet", name, *rows)))
        for number, rows in enumerate(([plain], [example()], [plain, example()], []))
    }
    assert len(schemas) == 1


def test_values_stay_exact_and_types_that_differ_are_no_error(tmp_path: Path) -> None:
    """Rules out that rows are lost because Arrow cannot give values of several rows one type."""
    texts = ['{"a":1.50,"b":null}', '{"a":"x","n":123456789012345678901234567890}', '{"a":{"a":[1,"b"]}}']
    rows = [
        Row(
            (
                Message(Role.ASSISTANT, "", (ToolCall("c", "read", text),)),
                Message(Role.TOOL, "", (), "c", "read"),
            ),
            example().tools,
            example().lineage,
        )
        for text in texts
    ]
    table = pq.read_table(save(tmp_path / "rows.parquet", "trl", *rows))
    stored = [
        message
        for messages in table["messages"].to_pylist()
        for message in messages
        if "tool_calls" in message
    ]
    assert [text in line for text, line in zip(texts, stored, strict=True)] == [True] * 3
    assert json.loads(stored[0])["tool_calls"][0]["function"]["arguments"] == {"a": 1.5, "b": None}


def test_the_columns_of_answers_are_found_from_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"i":1,"f":1,"s":"a","b":true,"l":[1],"m":1,"z":null,"big":1}\n'
        '{"i":2,"f":1.5,"s":null,"b":false,"l":["x"],"m":"y","z":null,"big":99999999999999999999}\n'
    )
    kinds = {key: kind.value for key, kind in find_columns(path).items()}
    assert kinds == {
        "i": "integer", "f": "float", "s": "text", "b": "boolean", "l": "list", "m": "json", "z": "json",
        "big": "json",
    }  # fmt: skip
    write_parquet(path, tmp_path / "rows.parquet", "custom")
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert rows[1] == {
        "i": 2, "f": 1.5, "s": None, "b": False, "l": ['"x"'], "m": '"y"', "z": None,
        "big": "99999999999999999999",
    }  # fmt: skip


def test_a_failed_conversion_costs_no_row(tmp_path: Path) -> None:
    """Rules out that a failure of the conversion to columns, after all rows were paid for, loses the rows."""
    lines = tmp_path / "rows.jsonl"
    good = encode_row(example(), FORMATS.load("openai"))
    lines.write_bytes(good + b"\n" + good[:-1] + b',"x":1}\n')
    before = lines.read_bytes()
    with pytest.raises(ExportError, match=r"line 2 .* has the unknown key 'x'; the rows are in .*rows.jsonl"):
        write_parquet(lines, tmp_path / "rows.parquet", "openai")
    assert lines.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]
    folder = tmp_path / "taken.parquet"
    folder.mkdir()
    (folder / "x").touch()
    with pytest.raises(ExportError, match=r"taken.parquet.jsonl"), open_writer("openai", folder) as writer:
        writer.write(example())
    assert (tmp_path / "taken.parquet.jsonl").read_bytes() == good + b"\n"


def test_columns_of_other_programs_are_read_without_filled_in_nulls(tmp_path: Path) -> None:
    import pyarrow as pa

    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "c"},
    ]
    pq.write_table(pa.Table.from_pylist([{"messages": messages}]), tmp_path / "rows.parquet")
    ((_, raw),) = read_objects(tmp_path / "rows.parquet", "openai")
    assert raw == {"messages": messages}
    assert read_row(raw, FORMATS.load("openai")).messages[1].reasoning == "c"
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ExportError, match="cannot be read as Parquet"):
        list(read_objects(tmp_path / "bad.parquet", "openai"))


def test_sessions_have_no_parquet_form(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(ExportError, match="no Parquet form"):
        write_parquet(tmp_path / "a.jsonl", tmp_path / "a.parquet", "hf_trace")


MEMORY = """
import resource, sys
from pathlib import Path
from treadle.export.parquet import require_arrow, write_parquet
from treadle.export.row_files import read_objects
require_arrow()
source, out = Path(sys.argv[1]), Path(sys.argv[2])
first = source.with_name("first.jsonl")
with source.open("rb") as file, first.open("wb") as some:
    for _ in range(2000):
        some.write(file.readline())
write_parquet(first, out, "treadle")
print(sum(1 for _ in read_objects(out, "treadle")))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(write_parquet(source, out, "treadle"), sum(1 for _ in read_objects(out, "treadle")))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
print(before // 1024, file=sys.stderr)
"""


@pytest.mark.full
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Write and read many rows, and compare the peak of memory with that for 2,000 rows."""
    count = 100_000 if FULL else 20_000
    line = encode_row(example(content="x" * 2_000), FORMATS.load("treadle")) + b"\n"
    with (tmp_path / "rows.jsonl").open("wb") as file:
        for _ in range(count):
            file.write(line)
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "rows.jsonl"), str(tmp_path / "rows.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, rows, growth = done.stdout.splitlines()
    assert (first, rows) == ("2000", f"{count} {count}")
    # The whole file is 57 MB, or 280 MB in the long form, and much more as objects.
    assert int(growth) < 80


def test_a_table_without_lineage_has_no_such_column(tmp_path: Path) -> None:
    """The end of a name counts in any case."""
    out = tmp_path / "rows.PARQUET"
    with open_writer("trl", out, with_lineage=False) as writer:
        writer.write(example())
    assert pq.read_schema(out).names == ["messages", "tools", "weight"]
    assert [place for place, _ in read_objects(out, "trl")] == ["row 1"]
