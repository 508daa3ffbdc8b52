"""Environments: files from a folder, from a mapping and from tasks, and what a writer is told about them."""

from pathlib import Path

import pytest
from tests.datagen.conversations.cast import NOTES, SCENARIO, Cast, facts_of, make_studio, spec, texts, think

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.types import Request, Role
from treadle.datagen.config.generation_config import Tools
from treadle.datagen.conversations.make import make_sample
from treadle.datagen.scenarios.environment import MAX_LISTED_FILES, Environments, open_environments
from treadle.datagen.scenarios.scenario import Environment, Kind
from treadle.models.scripted import call
from treadle.sandbox.in_memory import MemorySandbox, SharedFiles
from treadle.trajectory.run_verification import verify_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a file, one that git ignores, a key, and one that is not text."""
    (tmp_path / ".gitignore").write_text("build/\n")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "out.txt").write_text("made")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "plan.md").write_text("# Plan\nShip on Friday.\n")
    (tmp_path / "logo.bin").write_bytes(b"\0\1\2")
    (tmp_path / "old.txt").write_bytes("Größe\n".encode("latin-1"))
    (tmp_path / "server.key").write_text("secret")
    return tmp_path


async def test_a_folder_on_disk_is_the_environment_and_stays_unchanged(folder: Path):
    def agent(request: Request):
        if sum(item.role is Role.TOOL for item in request.messages) >= 2:
            return "It ships on Friday."
        if request.messages[-1].role is Role.TOOL:
            change = {"file_path": "docs/plan.md", "content": "# New\n"}
            return think("I write.", call("write_file", change))
        return think("I read.", call("read_file", {"file_path": "docs/plan.md"}))

    cast = Cast(agent, [{**SCENARIO, "message": "When do we ship, says plan.md?"}])
    studio = make_studio({"tools": {"use": ["files"], "files": str(folder)}}, cast)
    made = await make_sample(studio, spec(kind=Kind.CHAINED))
    facts = facts_of(cast.asked["scenario"][0])
    assert facts is not None
    assert facts["files"] == [
        {"path": ".gitignore", "size_bytes": 7, "head": "build/\n"},
        {"path": "docs/plan.md", "size_bytes": 23, "head": "# Plan\nShip on Friday.\n"},
        {"path": "logo.bin", "size_bytes": 3, "head": ""},
        {"path": "old.txt", "size_bytes": 6, "head": ""},
    ]
    assert made.row is not None
    assert texts(made.row.messages)[2] == "# Plan\nShip on Friday.\n"
    assert made.row.lineage.sample is not None
    assert made.row.lineage.sample.environment == str(folder)
    assert (folder / "docs" / "plan.md").read_text() == "# Plan\nShip on Friday.\n"
    verified = await verify_run(studio.journal, made.run_id)
    assert verified.is_verified
    assert verified.calls == 2


def test_a_writer_is_told_about_many_files_in_short():
    files = {f"d{number % 7}/f{number}.txt": f"text {number}" * 200 for number in range(1000)}
    environments = open_environments(Tools(files=files), 0)
    environment = environments.draw(spec())
    assert environment is environments.draw(spec(number=2))
    told = environments.describe(environment, 1)
    assert len(told["files"]) == MAX_LISTED_FILES
    assert all(len(item["head"]) <= 320 for item in told["files"])
    assert told["files_summary"]["files"] == 1000
    assert told["files_summary"]["folders"]["d0"] == 143
    other = environments.describe(environment, 2)
    assert {item["path"] for item in told["files"]} != {item["path"] for item in other["files"]}
    assert told == environments.describe(environment, 1)


def test_a_folder_of_many_files_is_listed_and_hashed_once():
    shared = SharedFiles({f"f{number}.txt": b"x" for number in range(5000)})
    first, second = shared.open(), shared.open()
    assert first.take_delta() is second.take_delta()
    assert first._files is second._files
    first.write("f0.txt", b"changed")
    assert first._files is not second._files
    assert second.read("f0.txt") == b"x"


def test_shared_files_behave_like_files_of_their_own():
    files = {"a.txt": b"one", "d/b.txt": b"two"}
    shared, alone = SharedFiles(files), MemorySandbox(files)
    assert dict(shared) == files
    assert "c.txt" not in shared
    opened = shared.open()
    assert opened.take_delta() == alone.take_delta()
    for sandbox in (opened, alone):
        sandbox.write("a.txt", b"changed")
        sandbox.delete("d/b.txt")
    assert opened.take_delta() == alone.take_delta()
    assert opened.snapshot_id == alone.snapshot_id
    early, later = shared.open(), MemorySandbox(files)
    for sandbox in (early, later):
        sandbox.write("new.txt", b"before the first delta")
        sandbox.write_state("tool", b"state")
    assert early.take_delta() == later.take_delta()
    changed = shared.open()
    changed.delete("d/b.txt")
    delta = changed.take_delta()
    assert delta is not None
    assert set(delta[0].changed) == {"a.txt"}
    assert dict(shared) == files


def test_a_copy_reports_all_files_or_only_later_changes():
    sandbox = MemorySandbox({"a.txt": b"one", "b.txt": b"two"})
    sandbox.write_state("tool", b"state")
    whole, rest = sandbox.copy(), sandbox.copy(is_reported=True)
    assert rest.take_delta() is None
    assert rest.snapshot_id == whole.snapshot_id == sandbox.snapshot_id
    for copied in (whole, rest):
        copied.write("a.txt", b"changed")
    first, later = whole.take_delta(), rest.take_delta()
    assert first is not None
    assert later is not None
    assert set(first[0].changed) == {"a.txt", "b.txt"}
    assert set(later[0].changed) == {"a.txt"}
    assert (set(first[0].states), set(later[0].states)) == ({"tool"}, set())


async def test_verification_uses_the_files_at_hand_only_if_the_run_began_with_them():
    studio = make_studio(NOTES)
    made = await make_sample(studio, spec())
    assert made.dialogue is not None
    right, wrong = made.dialogue.environment.files, SharedFiles({"notes.txt": b"other"})
    assert isinstance(right, SharedFiles)
    for files in (right, wrong, None):
        verified = await verify_run(studio.journal, made.run_id, files=files)
        assert verified.is_verified
    assert right == {"notes.txt": b"milk"}


async def test_every_run_records_all_files(folder: Path):
    studio = make_studio(
        {"tools": {"use": ["files"], "files": str(folder)}},
        Cast(lambda request: "done", [{**SCENARIO, "message": "Hello there."}]),
    )
    for number in (1, 2):
        await make_sample(studio, spec(number=number))
        bodies = [event.body for event in studio.journal.read(f"s00000{number}-1")]
        taken = [body for body in bodies if isinstance(body, e.SnapshotTaken)]
        assert set(taken[0].delta.changed) == {".gitignore", "docs/plan.md", "logo.bin", "old.txt"}


def test_tasks_are_drawn_without_repetition_and_by_seed():
    def draw(seed: int) -> list[str | None]:
        environments = open_environments(Tools(files="tasks:files"), seed)
        return [environments.draw(spec(kind=Kind.CHAINED, number=n)).task for n in range(1, 200)]

    assert len(set(draw(1))) == 199
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_a_task_belongs_to_the_kinds_that_it_fits():
    environments = open_environments(Tools(files="tasks:files"), 1)
    with_task = environments.draw(spec(kind=Kind.CHAINED))
    without = environments.draw(spec(kind=Kind.REFUSAL))
    assert with_task.task is not None
    assert with_task.task_input
    assert with_task.files == without.files
    assert (without.task, without.task_input) == (None, "")
    assert environments.tools == ("files",)  # those of the task, because the configuration names none


@pytest.mark.parametrize(
    ("files", "message"),
    [("/no/such/folder", "cannot mount"), ("tasks:nothing", "task set"), ("tasks:file", "files")],
)
def test_files_that_cannot_be_opened(files: str, message: str):
    with pytest.raises(ConfigError, match=message):
        open_environments(Tools(files=files), 0)


def test_an_empty_folder_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no file to mount"):
        open_environments(Tools(files=str(tmp_path)), 0)


async def test_definitions_of_tools_are_simulated_and_marked():
    weather = {"name": "weather", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    cast = Cast(lambda request: "Sun." if len(request.messages) > 2 else think("I ask.", call("weather")))
    studio = make_studio({"tools": {"definitions": [{"type": "function", "function": weather}]}}, cast)
    made = await make_sample(studio, spec())
    assert made.row is not None
    assert len(made.row.lineage.simulated) == 1


def test_no_files_is_an_environment_too():
    environments = Environments(Environment())
    assert environments.describe(environments.draw(spec()), 1) == {"files": []}
