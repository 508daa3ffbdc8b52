"""The files that are found and not given: which ones there are, and that those of another user are not used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forks.process import FORKS

DECOYS = (
    *(
        "treadle.toml",
        ".env",
        ".mcp.json",
        "mcp.json",
        "models.toml",
        "pyproject.toml",
        "AGENTS.md",
        "prices.json",
    ),
    *("persona.yaml", "personas/assistant.yaml", "tasks.py", "tasks.jsonl", "tasks/files.py", "rewards.py"),
    *("generate.yaml", "rollout.yaml", "skills/other/SKILL.md", ".treadle/skills/own/SKILL.md", "memory.db"),
    *(
        ".treadle/memory.db",
        ".treadle/treadle.toml",
        ".config/treadle/treadle.toml",
        ".config/treadle/keys.json",
    ),
    *(".config/treadle/skills/mine/SKILL.md", ".config/treadle/personas/assistant.yaml", "treadle.yaml"),
)
"""Files with names that a program might look for, in the folder of the command, above it and at home."""
PLACES = ("project/sub", "project", "home", ".")
COMMANDS = (
    ("run", "hi", "--model", "mock:echo"),
    ("runs",),
    ("models", "list"),
    ("skills", "list"),
    ("tools", "list"),
    ("memory", "list"),
    ("stats",),
)
DRIVER = """
import os, sys
top, log = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
sys.argv[1:3] = []


def note(event, arguments):
    if event in ("open", "sqlite3.connect") and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path.startswith(top):
            os.write(log, os.path.relpath(path, top).encode() + b"\\n")


sys.addaudithook(note)
from treadle.cli import main

main()
"""
STREAMS = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
FOUND = {
    "project/treadle.toml": "an owner, or trust in its content",
    "home/.config/treadle/keys.json": "an owner, and no other readers",
    "project/sub/.treadle/runs.db": "an owner",
    "project/sub/skills/other/SKILL.md": "trust in its content",
    "project/sub/.treadle/skills/own/SKILL.md": "trust in its content",
    "home/.config/treadle/skills/mine/SKILL.md": "trust in its content",
}
"""Every file that is found, and what it needs before it is used."""

OWN = ("home/.local/state/treadle", "project/sub/.treadle/runs.db", "project/sub/.treadle/.gitignore")
"""What the commands themselves wrote."""
LEAVES_OUT = {".gitignore", "exclude", "ignore"}
"""Files that can only leave other files out."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in a working tree, with decoys everywhere."""
    for place in PLACES:
        for name in DECOYS:
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            is_skill = path.name == "SKILL.md"
            head = f"---\nname: {path.parent.name}\ndescription: A skill.\n---\n"
            path.write_text(head if is_skill else "{}" if path.suffix == ".json" else "")
            path.chmod(0o600)
    (tmp_path / "project" / "sub" / "treadle.toml").unlink()
    (tmp_path / "project" / "sub" / "treadle.yaml").unlink()
    (tmp_path / "project" / ".git").mkdir()
    monkeypatch.chdir(tmp_path / "project" / "sub")
    for name in [name for name in os.environ if name.startswith(("TREADLE_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def drive(top: Path, *commands: tuple[str, ...], imports: bool = False) -> tuple[str, list[str]]:
    """Return what the commands print, and the files below `top` that they open; with `imports`, also those that
    their imports open."""
    log = top.parent / f"{top.name}-log"
    log.touch()
    said = ""
    for words in commands:
        given = ("-c", DRIVER, str(top.resolve()), str(log), *words)
        new = (sys.executable, *given)
        process = subprocess.Popen(new, text=True, **STREAMS) if imports else FORKS.start(*given, **STREAMS)
        said += "".join(process.communicate(timeout=300))
    return said, sorted(set(log.read_text().splitlines()))


def test_every_file_that_is_found_is_one_that_needs_an_owner_or_trust(project: Path) -> None:
    """Rules out that a file of a new kind is read because it lies there."""
    drive(project, COMMANDS[0], imports=True)
    said, opened = drive(project, *COMMANDS)
    decoys = {os.path.normpath(f"{place}/{name}") for place in PLACES for name in DECOYS}
    assert set(opened) & decoys <= FOUND.keys(), said
    others = set(opened) - decoys
    own = {path for path in others if path.startswith(OWN)}
    assert {Path(path).name for path in others - own} <= LEAVES_OUT
    assert FOUND.keys() <= set(opened), said


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", [name for name, needs in FOUND.items() if "owner" in needs])
def test_a_file_of_another_user_that_is_found_is_not_used(project: Path, name: str) -> None:
    path = project / name
    path.touch(0o600)
    os.chown(path, 65_530, 65_530)
    command = ("models", "list") if "runs.db" not in name else ("run", "hi", "--model", "mock:echo")
    said, _ = drive(project, command)
    assert "belong" in said, said
    assert "another user" in said
