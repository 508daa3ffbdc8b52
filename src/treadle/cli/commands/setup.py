"""`treadle init`, `schema`, `doctor`, `completion` and `tasks`: the setup, and what can be used here."""

import os
import shlex
import time
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from treadle.cli.exit import ExitCode
from treadle.cli.table import VARIABLE
from treadle.cli.terminal.output import (
    clean,
    escape_controls,
    print_finding,
    print_json,
    print_line,
    print_lines,
    print_note,
    print_parts,
    print_schema,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.core.registry import load

SCHEMA_NAME = "treadle.schema.json"


def init(
    path: Path = Path("treadle.toml"),
    is_forced: bool = False,
) -> None:
    """Write a commented treadle.toml and its schema.

    The file has named models, fallbacks and limits. Editors use the schema to complete and check it.

    Examples:
        treadle init
        treadle init conf/treadle.toml
    """
    from treadle.export.whole import write_whole
    from treadle.models.config.toml_file import FILE_NAMES, VARIABLE, config_schema, starter_file

    if os.path.lexists(path) and not is_forced:
        raise ConfigError(f"{str(path)!r} exists; --force replaces it")
    if path.suffix != ".toml":
        raise ConfigError(f"the name of the file must end with .toml, and {str(path)!r} does not")
    schema = msgspec.json.format(msgspec.json.encode(config_schema()), indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole([schema], path.parent / SCHEMA_NAME)
        write_whole([starter_file().rstrip().encode()], path)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from error
    print_note(f"{path} is written, and {SCHEMA_NAME} beside it, which editors use to check it")
    is_found = path.resolve().parent in (Path.cwd(), *Path.cwd().parents) and path.name in FILE_NAMES
    place = "" if is_found else f"{VARIABLE}={shlex.quote(str(path))} "
    print_note(f"next: {place}treadle models list")


_SCHEMAS = {
    "config": "treadle.models.config.toml_file:config_schema",
    "generate": "treadle.datagen.config.config_schema:schema",
    "persona": "treadle.knowledge.personas.persona:persona_schema",
    "eval": "treadle.evals.evaluation_config:READER",
    "rollout": "treadle.rollout.rollout_config:READER",
}
"""What makes or has the schema of each kind of file."""


def schema(what: Literal["config", "generate", "persona", "eval", "rollout"]) -> None:
    """Print the JSON Schema of a kind of file, which editors use to complete and check it.

    Examples:
        treadle schema config > treadle.schema.json
        treadle schema generate > generate.schema.json
    """
    print_schema(schema_of(what))


def schema_of(what: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file."""
    found = load(_SCHEMAS[what])
    return cast("dict[str, Any]", found() if callable(found) else found.schema)


def images(is_removed: bool = False, days: int = 7, is_json: bool = False) -> None:
    """List the unpacked images of containers with their sizes, or remove those that nothing uses.

    Tasks and shells with an image of their own unpack it once. A removed image is unpacked again when it is needed.

    Examples:
        treadle images
        treadle images --remove --unused-days 30
    """
    from treadle.cli.terminal.format import format_age
    from treadle.sandbox.commands.images import list_unpacked, remove_unpacked

    freed = 0
    found = list_unpacked()
    for image in found:
        is_old = time.time() - image.used_at >= days * 86_400
        is_gone = is_removed and is_old and not image.is_in_use and remove_unpacked(image)
        freed += image.size_bytes if is_gone else 0
        if is_json:
            print_json({**msgspec.to_builtins(image), "is_removed": is_gone})
            continue
        state = "removed" if is_gone else "in use" if image.is_in_use else f"used {format_age(image.used_at)}"
        print_line(f"{image.image_id}  {image.size_bytes:>14,} bytes  {state}")
    total = sum([image.size_bytes for image in found])
    told = f"; {freed:,} bytes freed" if freed else ""
    print_note(f"{write_count(len(found), 'image')}, {total:,} bytes{told}")


def doctor(journal: str | None = None, is_json: bool = False) -> int:
    """Check what works on this machine, and say how to fix the rest.

    The exit code is 0 if runs can be driven and stored, even if sandboxes, extras or keys are missing.

    Examples:
        treadle doctor
        treadle doctor --json
    """
    from treadle.cli.jobs.machine_checks import check_machine
    from treadle.journal.registry import DEFAULT_PATH

    can_work = True
    for check in check_machine(journal or DEFAULT_PATH):
        can_work = can_work and (check.is_ok or not check.is_needed)
        if is_json:
            print_json(check)
        else:
            mark = "ok|green" if check.is_ok else f"missing|{'red' if check.is_needed else 'yellow'}"
            print_finding(mark, check.name, check.seen, check.advice)
    return ExitCode.DONE if can_work else ExitCode.FAILED


_PLACES = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc, after compinit",
    "fish": "~/.config/fish/config.fish",
    "powershell": "$PROFILE",
}
"""Where each shell that can complete reads what it does at its start."""


def completion(shell: Literal["bash", "zsh", "fish", "powershell"] | None = None) -> None:
    """Print the script that makes a shell complete the commands of treadle.

    Put the command of the first example into the startup file of the shell.

    Examples:
        eval "$(treadle completion bash)"
        treadle completion fish > ~/.config/fish/completions/treadle.fish
    """
    from typer._completion_shared import get_completion_script

    used = shell or Path(os.environ.get("SHELL", "")).name
    if used not in _PLACES:
        raise ConfigError(f"the shell {used!r} of $SHELL is not one of {', '.join(_PLACES)}; name one")
    script = get_completion_script(prog_name="treadle", complete_var=VARIABLE, shell=used)
    print_lines([script.encode()])
    if os.isatty(1):
        print_note(
            f'to use it in every {used} shell, add to {_PLACES[used]}: eval "$(treadle completion {used})"'
        )


FILE_LINES = 20
"""How many lines of each file of a task are shown."""


def tasks(
    name: str | None = None,
    limit: int = 50,
    is_json: bool = False,
) -> None:
    """List task sets and tasks, or show one task.

    A task is shown with its prompt, its tools and its files.

    Examples:
        treadle tasks files --limit 22
        treadle tasks files:csv_sum-0001
    """
    from treadle.tasks import split_reference

    if name is None:
        _print_sets(is_json=is_json)
    elif split_reference(name)[1] or name.endswith(":"):
        _print_task(name, is_json=is_json)
    else:
        _print_set(name, limit or None, is_json=is_json)


def _print_sets(*, is_json: bool) -> None:
    from treadle.tasks import TASK_SETS, task_set

    for name in TASK_SETS.names():
        if name.endswith(":"):
            continue  # such a set needs a text
        size = len(task_set(name))
        if is_json:
            print_json({"task_set": name, "tasks": size})
        else:
            print_line(f"{name}  {write_count(size, 'task')}")


def _print_set(name: str, limit: int | None, *, is_json: bool) -> None:
    from treadle.tasks import split_reference, task_set

    found = task_set(split_reference(name)[0])
    ids = (f"{name}:{task.task_id}" for task in islice(found, limit))
    print_lines(
        escape_controls(msgspec.json.encode({"task": item})) if is_json else clean(item).encode()
        for item in ids
    )
    if limit is not None and len(found) > limit:
        print_note(f"{limit} of {len(found):,} tasks; --limit 0 shows all")


def _print_task(ref: str, *, is_json: bool) -> None:
    from treadle.runs.drive import MAX_TURNS
    from treadle.tasks import load_task

    task = load_task(ref)
    turns = getattr(task, "max_turns", MAX_TURNS) if hasattr(task, "reply") else 1
    if is_json:
        value = {
            "task": ref,
            "input": task.input,
            "instructions": task.instructions,
            "tools": list(task.tools),
            "max_turns": turns,
            "files": {path: content.decode("utf-8", "replace") for path, content in task.files.items()},
        }
        print_json(value)
        return
    print_line(ref, "bold")
    if task.instructions:
        print_line(f"instructions: {task.instructions}", "dim")
    if turns > 1:
        print_line(f"turns: up to {turns}; the first message is below", "dim")
    print_line(f"tools: {', '.join(task.tools)}\n", "dim")
    print_line("› " + clean(task.input).replace("\n", "\n  "), "cyan")
    for path, content in sorted(task.files.items()):
        print_parts((f"\n{path}", "bold"), (f"  {write_count(len(content), 'byte')}", "dim"))
        if b"\0" in content:
            continue  # a database or an image
        lines = clean(content.decode("utf-8", "replace")).rstrip("\n").split("\n")
        for line in lines[:FILE_LINES]:
            print_line(f"  {line}")
        if len(lines) > FILE_LINES:
            print_line(f"  … {write_count(len(lines) - FILE_LINES, 'more line')}", "dim italic")
