import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.errors import SandboxError, ToolError
from treadle.core.types import Effect, Json
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.context import ToolContext
from treadle.tools.file_tools import MAX_EDITED_CHARS, MAX_MATCHES, FilesToolset, files, view_image
from treadle.tools.protocol import Attachment, ToolOutput

TOOLS = {item.spec.name: item for item in files.tools()}
CHANGING = {"write_file", "delete_file", "edit_file"}


async def run(sandbox: MemorySandbox | None, name: str, **arguments: Json) -> str:
    fault = TOOLS[name].find_fault(arguments)
    assert fault is None, fault
    return await TOOLS[name].call(arguments, ToolContext("run", "call", 1, sandbox))


def test_the_tools_and_what_running_them_again_does() -> None:
    assert list(TOOLS) == [
        "read_file",
        "write_file",
        "list_files",
        "delete_file",
        "edit_file",
        "search_files",
    ]
    for name, item in TOOLS.items():
        changes = name in CHANGING
        assert item.spec.effect is (Effect.IDEMPOTENT if changes else Effect.PURE)
        assert item.spec.is_concurrent is not changes
        assert item.spec.description
        assert all(schema["description"] for schema in item.spec.parameters["properties"].values())
    assert TOOLS["read_file"].spec.parameters["required"] == ["file_path"]
    assert TOOLS["write_file"].spec.parameters["required"] == ["file_path", "content"]
    assert TOOLS["list_files"].spec.parameters.get("required", []) == []


def test_read_only() -> None:
    assert {item.spec.name for item in FilesToolset(read_only=True).tools()} == set(TOOLS) - CHANGING


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {"file_path": "a"}),
        ("write_file", {"file_path": "a", "content": ""}),
        ("list_files", {}),
        ("delete_file", {"file_path": "a"}),
        ("edit_file", {"file_path": "a", "old_text": "a", "new_text": "b"}),
        ("search_files", {"pattern": "a"}),
    ],
)
async def test_without_a_sandbox_it_says_how_to_get_one(name: str, arguments: dict[str, Json]) -> None:
    with pytest.raises(ToolError, match=r"no files.*`files="):
        await run(None, name, **arguments)


class TestReadAndWrite:
    async def test_what_is_written_is_read(self) -> None:
        sandbox = MemorySandbox()
        assert (
            await run(sandbox, "write_file", file_path="/a/./b.txt", content="é\r\n")
            == "wrote 4 bytes to a/b.txt"
        )
        assert await run(sandbox, "read_file", file_path="a/b.txt") == "é\r\n"
        assert sandbox.paths() == ["a/b.txt"]
        assert await run(sandbox, "write_file", file_path="a/b.txt", content="") == "wrote 0 bytes to a/b.txt"
        assert await run(sandbox, "read_file", file_path="a/b.txt") == ""

    async def test_a_range_of_lines(self) -> None:
        sandbox = MemorySandbox({"a": "one\ntwo\u2028\nthree\n", "b": "x\ny"})
        assert await run(sandbox, "read_file", file_path="a", start_line=2) == "two\u2028\nthree\n"
        assert await run(sandbox, "read_file", file_path="a", start_line=2, line_count=1) == "two\u2028\n"
        assert await run(sandbox, "read_file", file_path="a", line_count=2) == "one\ntwo\u2028\n"
        assert await run(sandbox, "read_file", file_path="b", start_line=2, line_count=9) == "y"
        with pytest.raises(ToolError, match="has 3 lines, so it has no line 4"):
            await run(sandbox, "read_file", file_path="a", start_line=4)
        assert TOOLS["read_file"].find_fault({"file_path": "a", "start_line": 0})

    @given(st.text(st.sampled_from("a\n\r"), max_size=8), st.integers(1, 9))
    async def test_ranges_put_together_are_the_file(self, text: str, size: int) -> None:
        sandbox = MemorySandbox({"a": text})

        async def pieces() -> str:
            found, start = "", 1
            while True:
                try:
                    found += await run(sandbox, "read_file", file_path="a", start_line=start, line_count=size)
                except ToolError:
                    return found
                start += size

        assert await pieces() == text

    async def test_a_missing_file_is_told_with_the_nearest(self) -> None:
        sandbox = MemorySandbox({"notes/today.md": "", "src/deep/main.py": "", "other": ""})
        with pytest.raises(ToolError, match=r"no file 'notes/tody.md'; did you mean 'notes/today.md'\?"):
            await run(sandbox, "read_file", file_path="notes/tody.md")
        with pytest.raises(ToolError, match=r"did you mean 'src/deep/main.py'\?"):
            await run(sandbox, "read_file", file_path="wrong/folder/of/MAIN.py")
        with pytest.raises(ToolError, match="no file 'a'; there are no files yet"):
            await run(MemorySandbox(), "read_file", file_path="a")
        with pytest.raises(ToolError, match="'src' is a folder"):
            await run(sandbox, "read_file", file_path="src")

    async def test_what_is_no_text_is_told(self) -> None:
        with pytest.raises(ToolError, match=r"'a\.png' is not a text file: its 2 bytes are not UTF-8"):
            await run(MemorySandbox({"a.png": b"\xff\xfe"}), "read_file", file_path="a.png")

    @pytest.mark.parametrize("path", ["../a", "", "a/", "a\\b"])
    async def test_bad_paths_reach_the_model_as_errors(self, path: str) -> None:
        sandbox = MemorySandbox({"a/b": ""})
        for name, rest in (("read_file", {}), ("write_file", {"content": ""}), ("delete_file", {})):
            with pytest.raises(SandboxError):
                await run(sandbox, name, file_path=path, **rest)

    async def test_delete(self) -> None:
        sandbox = MemorySandbox({"a": "", "b": ""})
        assert await run(sandbox, "delete_file", file_path="./a") == "deleted a"
        assert sandbox.paths() == ["b"]
        with pytest.raises(ToolError, match="no file 'a'"):
            await run(sandbox, "delete_file", file_path="a")


class TestList:
    async def test_a_json_array_of_paths(self) -> None:
        sandbox = MemorySandbox({"b": "", "a/x": "", "a/y/z": "", "ab": ""})
        assert json.loads(await run(sandbox, "list_files")) == ["a/x", "a/y/z", "ab", "b"]
        assert json.loads(await run(sandbox, "list_files", folder="./a/")) == ["a/x", "a/y/z"]
        assert json.loads(await run(sandbox, "list_files", folder="/")) == sandbox.paths()
        assert await run(MemorySandbox(), "list_files") == "[]"

    async def test_a_missing_folder_is_told_with_the_nearest(self) -> None:
        with pytest.raises(ToolError, match=r"no folder 'note'; did you mean 'notes'\?"):
            await run(MemorySandbox({"notes/a": ""}), "list_files", folder="note")


class TestEdit:
    async def test_one_occurrence(self) -> None:
        sandbox = MemorySandbox({"a": "x = 1\ny = 2\n"})
        answer = await run(sandbox, "edit_file", file_path="a", old_text="= 1\ny", new_text="= 3\nz")
        assert answer == "replaced 1 occurrence in a"
        assert sandbox.read("a") == b"x = 3\nz = 2\n"

    async def test_several_occurrences_need_to_be_meant(self) -> None:
        sandbox = MemorySandbox({"a": "x\ny\nx\n"})
        with pytest.raises(ToolError, match=r"occurs 2 times in 'a' \(lines 1, 3\)"):
            await run(sandbox, "edit_file", file_path="a", old_text="x", new_text="z")
        assert sandbox.read("a") == b"x\ny\nx\n"
        answer = await run(sandbox, "edit_file", file_path="a", old_text="x", new_text="z", replace_all=True)
        assert answer == "replaced 2 occurrences in a"
        assert sandbox.read("a") == b"z\ny\nz\n"

    async def test_no_occurrence_names_the_nearest_line(self) -> None:
        sandbox = MemorySandbox({"a": "def first():\n    return 1\n"})
        with pytest.raises(ToolError, match=r"does not occur in 'a'.*nearest is line 2: '    return 1'"):
            await run(sandbox, "edit_file", file_path="a", old_text="\nreturn  1", new_text="")
        with pytest.raises(ToolError, match=r"so nothing was changed$"):
            await run(sandbox, "edit_file", file_path="a", old_text="####", new_text="")

    async def test_an_empty_old_text_is_refused(self) -> None:
        with pytest.raises(ToolError, match="old_text is empty"):
            await run(MemorySandbox({"a": "x"}), "edit_file", file_path="a", old_text="", new_text="y")

    async def test_a_text_cannot_grow_without_end(self) -> None:
        sandbox = MemorySandbox({"a": "x" * 2000})
        new_text = "y" * (MAX_EDITED_CHARS // 1000)
        with pytest.raises(ToolError, match="more than 16,777,216 characters"):
            await run(sandbox, "edit_file", file_path="a", old_text="x", new_text=new_text, replace_all=True)
        assert sandbox.take_delta() is not None
        assert len(sandbox.read("a")) == 2000


class TestSearch:
    @pytest.fixture
    def sandbox(self) -> MemorySandbox:
        return MemorySandbox(
            {
                "main.py": "import os\r\nprint(os.name)\n",
                "src/a.py": "a.b\nAxB\n",
                "src/deep/b.txt": "nothing\na.b again",
                "image.png": b"a.b\xff",
            }
        )

    async def test_plain_text_by_default(self, sandbox: MemorySandbox) -> None:
        assert (
            await run(sandbox, "search_files", pattern="a.b")
            == "src/a.py:1: a.b\nsrc/deep/b.txt:2: a.b again"
        )
        assert await run(sandbox, "search_files", pattern="import") == "main.py:1: import os"
        assert await run(sandbox, "search_files", pattern="(") == "main.py:2: print(os.name)"
        assert await run(sandbox, "search_files", pattern="absent") == "no matches"

    async def test_regular_expressions(self, sandbox: MemorySandbox) -> None:
        answer = await run(sandbox, "search_files", pattern="^a.b$", is_regex=True, ignore_case=True)
        assert answer == "src/a.py:1: a.b\nsrc/a.py:2: AxB"

    async def test_case(self, sandbox: MemorySandbox) -> None:
        assert await run(sandbox, "search_files", pattern="axb") == "no matches"
        assert await run(sandbox, "search_files", pattern="axb", ignore_case=True) == "src/a.py:2: AxB"

    @pytest.mark.parametrize(
        ("folder", "glob", "found"),
        [
            ("", "*.py", {"main.py", "src/a.py"}),
            ("", "src/*.py", {"src/a.py"}),
            ("", "a.py", {"src/a.py"}),
            ("", "**/*.py", {"main.py", "src/a.py"}),
            ("", "src/**/*", {"src/a.py", "src/deep/b.txt"}),
            ("src", "*", {"src/a.py", "src/deep/b.txt"}),
            ("src/deep", "*.py", set()),
            ("", "[", set()),
        ],
    )
    async def test_where(self, folder: str, glob: str, found: set[str]) -> None:
        sandbox = MemorySandbox(dict.fromkeys(["main.py", "src/a.py", "src/deep/b.txt"], "x"))
        answer = await run(sandbox, "search_files", pattern="x", folder=folder, glob=glob)
        assert {line.split(":")[0] for line in answer.split("\n")} - {"no matches"} == found

    async def test_the_answer_is_bounded(self) -> None:
        sandbox = MemorySandbox({"a": "\n".join(["x" * 10_000] * 1000)})
        answer = await run(sandbox, "search_files", pattern="x")
        assert len(answer.split("\n")) == MAX_MATCHES + 1
        assert answer.endswith("folder]")
        assert len(answer) < 30_000
        exact = MemorySandbox({"a": "\n".join(["x"] * MAX_MATCHES)})
        assert "stopped" not in await run(exact, "search_files", pattern="x")

    async def test_a_hostile_pattern_does_not_hang(self) -> None:
        sandbox = MemorySandbox({"a": "a" * 100_000 + "!"})
        assert await run(sandbox, "search_files", pattern="^(a+)+$", is_regex=True) == "no matches"
        assert await run(sandbox, "search_files", pattern="a", glob="*a" * 50) == "no matches"

    @pytest.mark.parametrize(
        ("pattern", "why"),
        [
            ("(a", "unclosed group"),
            ("(?=a)", "look-around"),
            (r"(a)\1", "backreferences"),
            (r"(\w{1000}){1000}", "size"),
        ],
    )
    async def test_bad_expressions_are_told(self, pattern: str, why: str) -> None:
        with pytest.raises(ToolError, match=f"not a valid RE2 regular expression.*{why}"):
            await run(MemorySandbox(), "search_files", pattern=pattern, is_regex=True)

    @pytest.mark.parametrize("pattern", ["", "a\nb"])
    async def test_a_pattern_is_one_line(self, pattern: str) -> None:
        with pytest.raises(ToolError, match="one line"):
            await run(MemorySandbox(), "search_files", pattern=pattern)


class TestImages:
    PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20

    async def test_an_image_is_attached(self) -> None:
        kinds = {
            "image/png": self.PNG,
            "image/jpeg": b"\xff\xd8\xff\xe0",
            "image/gif": b"GIF89a",
            "image/webp": b"RIFF....WEBP",
        }
        for mime_type, content in kinds.items():
            context = ToolContext("run", "call", 1, MemorySandbox({"a/b": content}))
            output = await view_image.call({"file_path": "/a/b"}, context)
            assert isinstance(output, ToolOutput)
            assert output.content == f"[image a/b, {mime_type}, {len(content)} bytes]"
            assert output.attachments == (Attachment("image", content, mime_type, name="a/b"),)

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"text", "is not a PNG, JPEG, GIF or WebP image"),
            (PNG + b"\0" * 3_750_000, "has 3,750,028 bytes; images may have up to 3,750,000"),
        ],
    )
    async def test_other_files_are_refused(self, content: bytes, why: str) -> None:
        context = ToolContext("run", "call", 1, MemorySandbox({"a.png": content}))
        with pytest.raises(ToolError, match=why):
            await view_image.call({"file_path": "a.png"}, context)
        with pytest.raises(ToolError, match=r"there is no file 'b.png'.*did you mean 'a.png'"):
            await view_image.call({"file_path": "b.png"}, context)

    def test_it_is_offered_only_on_request(self) -> None:
        assert "view_image" not in {item.spec.name for item in FilesToolset().tools()}
        tools = FilesToolset(read_only=True, images=True)
        assert [item.spec.name for item in tools.tools()] == [
            "read_file",
            "list_files",
            "search_files",
            "view_image",
        ]
        assert tools.part.settings == {"read_only": True, "images": True}
