"""What `treadle run` does: checks the request, drives the run, says which files changed."""

import sys
from collections.abc import Coroutine, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from treadle.agent.driving import make_run_id
from treadle.agent.run import Run
from treadle.cli.terminal.ask import make_approver
from treadle.cli.terminal.drive import drive
from treadle.cli.terminal.files import Changes, find_changes, print_changes, refuse_folder, write_changes
from treadle.cli.terminal.setup import Limits, ModelOptions, make_agent, open_or_make
from treadle.cli.terminal.view import make_view
from treadle.core.documents import decode_document, is_yaml_name
from treadle.core.errors import ConfigError
from treadle.core.policy import Policy
from treadle.core.types import Json
from treadle.loop.driver import Emit

if TYPE_CHECKING:
    from treadle.agent.task import Task


class RunRequest(Struct, frozen=True, kw_only=True):
    """What the command line asks for."""

    text: str | None
    task: str | None
    options: ModelOptions
    api_key: str | None
    mount: Path | None
    out: Path | None
    instructions: str | None
    schema: Path | None
    journal: Path | None
    level: str
    run_id: str | None
    limits: Limits

    def __repr__(self) -> str:
        return f"RunRequest(text={self.text!r}, task={self.task!r})"  # never the key


def run_once(request: RunRequest, *, is_json: bool, is_quiet: bool) -> int:
    """The whole of the command; its exit code. Raises: `ConfigError` for what cannot be."""
    work = _read_work(request)
    task = None if isinstance(work, str) else work
    if request.out is not None:
        refuse_folder(request.out, request.mount)
    options = request.options.with_files(request.mount)
    schema = None if request.schema is None else _read_schema(request.schema)
    with closing(open_or_make(request.journal, request.level)) as journal:
        agent = make_agent(
            options,
            request.api_key,
            journal,
            task=task,
            policy=request.limits.over(Policy()),
            instructions=request.instructions,
            files=request.mount,
        )
        run_id = request.run_id or make_run_id()
        finished: list[tuple[Run, Changes]] = []

        def start(emit: Emit) -> Coroutine[Any, Any, Run]:
            return agent.run(
                work, run_id=run_id, metadata=options.to_metadata(), schema=schema, on_event=emit
            )

        def describe(run: Run) -> Mapping[str, Json]:
            changes = find_changes(run)
            finished.append((run, changes))
            return {"files": changes}

        view = make_view(is_json=is_json, is_quiet=is_quiet)
        agent.approver = make_approver(view, is_json=is_json)
        code = drive(start, view, run_id, request.journal, describe)
        for run, changes in finished:
            if request.out is not None:
                write_changes(run, changes, request.out)
            if not is_json and not is_quiet:
                print_changes(changes, request.mount, request.out)
        return code


def _read_schema(path: Path) -> Json:
    """Raises: `ConfigError` for what cannot be read or is no object."""
    try:
        schema = decode_document(path.read_bytes(), repr(str(path)), is_yaml=is_yaml_name(path.name))
    except OSError as error:
        raise ConfigError(f"cannot read the schema {str(path)!r}: {error.strerror}") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"{str(path)!r} holds no JSON Schema: it must be an object")
    return schema


def _read_work(request: RunRequest) -> "str | Task":
    """The text or the task. Raises: `ConfigError`."""
    text = sys.stdin.read().strip() if request.text == "-" else request.text
    if request.task is not None:
        if text is not None:
            raise ConfigError("give a text or --task, not both")
        if request.mount is not None:
            raise ConfigError("a task brings its own files; leave --mount away")
        from treadle.tasks import load_task

        return load_task(request.task)
    if text is None or not text.strip():
        raise ConfigError("say what to do: treadle run TEXT, or treadle run --task files:csv_sum-0001")
    return text
