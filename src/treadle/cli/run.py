"""`treadle run`: one run, from a text or a task to its end."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from treadle.cli.jobs.agents import make_agent, print_knowledge
from treadle.cli.jobs.changes import Changes, find_changes, print_changes, write_files
from treadle.cli.jobs.disk import read_mount, refuse_folder
from treadle.cli.jobs.drive import FollowUp, drive
from treadle.cli.jobs.journals import new_run_id, open_or_make
from treadle.cli.options import shared as o
from treadle.cli.options.agent import AgentOptions, PolicyOptions
from treadle.cli.options.knowledge import KnowledgeOptions
from treadle.cli.terminal.piped import read_stdin
from treadle.core.documents import decode_document, is_yaml_name
from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.runs.run import Run

if TYPE_CHECKING:
    from treadle.runs.task import Task

EXAMPLES = (
    'git diff | treadle run "Write a commit message." --model openai:gpt-5-mini',
    "treadle run --task files:csv_sum-0001 --model oracle",
)


Text: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="TEXT",
        help="The user's message, or - to read it from standard input. What is piped in follows a message.",
        show_default=False,
    ),
]
TaskName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="SET:ID",
        help="A task of a task set; its check grades the run. SET is a name, or file.py:ATTRIBUTE.",
    ),
]
Attach: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--attach",
        metavar="FILE",
        help="An image, audio or text file, or a document, for the model. May be given several times.",
    ),
]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="DIR", help="A new folder to which the files that the run changed are written."
    ),
]
Schema: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="FILE|JSON",
        help="A JSON Schema that the answer must fit: a file in JSON or YAML, or the schema itself.",
    ),
]


def run(
    text: Text = None,
    task: TaskName = None,
    *,
    agent: AgentOptions,
    knowledge: KnowledgeOptions,
    is_trusted: o.IsTrusted = False,
    attach: Attach = None,
    mount: o.MountOptions,
    out: Out = None,
    instructions: o.Instructions = None,
    schema: Schema = None,
    journal: o.Journal = None,
    level: o.LevelOption = o.Level.PROCESS,
    run_id: o.NewRunId = None,
    limits: PolicyOptions,
    shown: o.ViewOptions,
) -> int:
    """Run a model with tools on a text or a task.

    Every step is stored in a journal, from which the run can be resumed, replayed, forked and exported.
    """
    new_id = new_run_id(run_id)
    work = _read_work(text, task, mount.path, attach)
    if out is not None:
        refuse_folder(out, mount.path)
    with closing(open_or_make(journal, level)) as opened:
        runner = make_agent(
            agent,
            opened,
            limits=limits,
            task=None if isinstance(work, str) else work,
            instructions=instructions,
            files=read_mount(mount, is_quiet=shown.is_json or shown.is_quiet),
            schema=None if schema is None else _read_schema(schema),
            knowledge=knowledge,
            is_trusted=is_trusted,
        )
        follow_up = FollowUp(journal, agent.api_key is not None)
        driven: list[tuple[Run, Changes]] = []

        def describe(run: Run) -> Mapping[str, Json]:
            driven.append((run, find_changes(run)))
            return {"files": driven[-1][1]}

        code = drive(
            runner,
            lambda emit: runner.run(work, run_id=new_id, attach=attach or (), on_event=emit),
            shown,
            new_id,
            follow_up,
            describe,
        )
        if not shown.is_json and not shown.is_quiet:
            print_knowledge(runner)
        for finished, changes in driven:
            if out is not None:
                write_files(finished, changes.written, out)
            if not shown.is_json and not shown.is_quiet:
                print_changes(changes, finished, follow_up, out)
        return code


def _read_schema(given: str) -> Json:
    """Return a JSON Schema, which is written out or in a file. Raises: `ConfigError` if it cannot be read."""
    if given.lstrip().startswith("{"):
        return decode_document(given.encode(), "--schema")
    path = Path(given)
    try:
        schema = decode_document(path.read_bytes(), repr(given), is_yaml=is_yaml_name(path.name))
    except OSError as error:
        raise ConfigError(f"cannot read the schema {given!r}: {error.strerror}") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"--schema {given!r} is not a JSON Schema: it must be an object")
    return schema


def _read_work(
    text: str | None, task: str | None, mount: Path | None, attach: list[Path] | None
) -> "str | Task":
    """Return the text or the task. Raises: `ConfigError` if both or neither are given."""
    if text == "-":
        text = read_stdin(is_needed=True)
    elif text is not None and text.strip() and (piped := read_stdin()):
        text = f"{text.strip()}\n\n<stdin>\n{piped}\n</stdin>"
    if task is not None:
        if attach:
            raise ConfigError("a task brings its own message; leave out --attach")
        if text is not None:
            raise ConfigError("give a text or --task, not both")
        if mount is not None:
            raise ConfigError("a task brings its own files; leave out --mount")
        from treadle.tasks import load_task

        return load_task(task)
    if text is None or not text.strip():
        raise ConfigError(
            "there is nothing to do: write `treadle run TEXT`, or, to try it without a model, "
            "`treadle run --task files:csv_sum-0001 --model oracle`"
        )
    return text
