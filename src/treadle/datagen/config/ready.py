"""Obstacles to a generation that only show with its files, models, tools and topics. No request is sent."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from treadle.core.errors import ConfigError, TreadleError
from treadle.core.places import Problem
from treadle.datagen.config.estimate import Estimate, estimate, is_free
from treadle.datagen.config.model import Config, Role
from treadle.datagen.config.models import ROLES, try_models
from treadle.datagen.config.tokens import is_server, largest_prompts
from treadle.datagen.dataset.folder import Folder
from treadle.datagen.scenarios.environment import open_environments
from treadle.datagen.topics.store import load_topics
from treadle.export.parquet import require_arrow
from treadle.models.protocol import Model, has_price
from treadle.runs.task import task_set
from treadle.tools.resolve import resolve_tools
from treadle.tools.schema.tool_definitions import parse_definitions


def find_obstacles(config: Config, leaves: int | None = None) -> list[Problem]:
    """Return the problems that would stop a generation or make its rows useless.

    `leaves` is the number of leaf topics, if it is known.
    """
    models, problems = try_models(config)
    problems += _check_files(config)
    problems += _check_tools(config)
    problems += _check_output(config, leaves)
    if problems:
        return problems
    problems += _check_prices(config, models)
    problems += _check_windows(config, models)
    # A dataset that was begun goes on until a limit is reached.
    if not problems and not Folder(config.output.path).ledger.exists():
        problems += _check_limits(config, estimate(config, leaves, models=models))
    return problems


def _check_files(config: Config) -> Iterator[Problem]:
    load = config.topics.load
    if load is not None:
        try:
            load_topics(load)
        except TreadleError as error:
            yield Problem(("topics", "load"), str(error))
    for number, path in enumerate(config.quality.evaluation_sets):
        if not path.is_file():
            text = f"there is no file {str(path)!r}; paths are relative to this file"
            yield Problem(("quality", "evaluation_sets", number), text)
    try:
        open_environments(config.tools.model_copy(update={"use": [], "definitions": []}), config.seed)
    except TreadleError as error:
        yield Problem(("tools", "files"), str(error))


def _check_tools(config: Config) -> Iterator[Problem]:
    """Yield a problem for each toolset that cannot be built. No server is started."""
    names: dict[str, int] = {}
    for number, part in enumerate(config.tools.parts()):
        if is_server(part.name):
            continue
        path = ("tools", "use", number)
        try:
            found = [item.spec.name for item in resolve_tools(part)]
        except TreadleError as error:
            yield Problem(path, _explain_tool(part.name, error))
            continue
        for name in found:
            if name in names:
                other = config.tools.parts()[names[name]].name
                yield Problem(
                    path, f"it has a tool {name!r}, and {other!r} has one too; use only one of them"
                )
            names.setdefault(name, number)
    if config.tools.definitions:
        try:
            parse_definitions({"tools": config.tools.definitions}, "the definitions")
        except TreadleError as error:
            yield Problem(("tools", "definitions"), str(error))
    files = config.tools.files
    if (
        isinstance(files, str)
        and files.startswith("tasks:")
        and config.generation.conversation.type == "agent"
    ):
        yield from _check_tasks(config, files.removeprefix("tasks:"))


def _explain_tool(name: str, error: TreadleError) -> str:
    if name.endswith((".json", ".yaml", ".yml")):
        return (
            f"{name!r} is not a toolset; write 'mock:{name}' for the simulated tools of a file of definitions"
        )
    return str(error)


def _check_tasks(config: Config, name: str) -> Iterator[Problem]:
    try:
        needed = next(iter(task_set(name))).tools
    except (TreadleError, StopIteration):
        return
    used = {part.name for part in config.tools.parts()}
    missing = [tool for tool in needed if tool not in used]
    if used and missing:
        yield Problem(("tools", "use"), f"the tasks of {name!r} need the toolset {missing[0]!r}; add it")


def _check_output(config: Config, leaves: int | None) -> Iterator[Problem]:
    path = config.output.path.expanduser()
    nearest = next(item for item in (path, *path.absolute().parents) if item.exists())
    if not nearest.is_dir():
        yield Problem(("output", "path"), f"{str(nearest)!r} is a file; name a folder")
    elif not os.access(nearest, os.W_OK):
        yield Problem(
            ("output", "path"), f"the folder {str(nearest)!r} cannot be written to; name another one"
        )
    elif nearest == path and any(path.iterdir()) and not Folder(path).ledger.exists():
        text = f"the folder {str(path)!r} has files, but no dataset of Treadle; name another one"
        yield Problem(("output", "path"), text)
    yield from _check_place(config, path)
    if config.output.parquet:
        try:
            require_arrow()
        except ConfigError as error:
            yield Problem(("output", "parquet"), str(error))
    if leaves is not None and leaves < len(config.output.splits):
        text = (
            f"{leaves} leaf topics cannot fill {len(config.output.splits)} splits, because no topic is in two"
        )
        yield Problem(("output", "splits"), f"{text}; ask for more topics, or for fewer splits")


def _check_place(config: Config, path: Path) -> Iterator[Problem]:
    """Yield a problem if the dataset would be written among the files that its rows are made from."""
    files = config.tools.files
    is_folder = isinstance(files, str) and not files.startswith("tasks:")
    if is_folder and path.resolve() == Path(str(files)).expanduser().resolve():
        text = f"the folder {str(path)!r} is tools.files too, and would change while the dataset is made"
        yield Problem(("output", "path"), f"{text}; name another one")


def _check_prices(config: Config, models: Mapping[Role, Model]) -> Iterator[Problem]:
    if config.limits.max_cost_usd is None:
        return
    for role, model in models.items():
        if not is_free(model) and not has_price(model):
            key = "default" if getattr(config.models, role) is None else role
            yield Problem(
                ("models", key),
                f"the price of {model.name!r} is not known, and limits.max_cost_usd needs it; give 'price' with "
                "input_usd_per_million and output_usd_per_million, 0 for a model that costs nothing",
            )


def _check_windows(config: Config, models: Mapping[Role, Model]) -> Iterator[Problem]:
    prompts = largest_prompts(config)
    for role in ROLES:
        window = context_tokens(models[role]) if role in models else None
        if window is None or prompts[role] <= window:
            continue
        name = models[role].name
        text = (
            f"a prompt of about {prompts[role]:,} tokens is expected, and {name!r} takes at most {window:,}"
        )
        key = ("tools", "files") if role == "scenarios" and config.tools.files else ("models",)
        yield Problem(
            key, f"{text}; name another model for {role!r}, or give shorter texts, fewer tools or turns"
        )


def context_tokens(model: Model) -> int | None:
    """Return how many tokens a prompt of `model` can have; `None` if that is not known."""
    inner: object = model
    while inner is not None:
        found = getattr(inner, "context_tokens", None)
        if isinstance(found, int):
            return found
        inner = getattr(inner, "inner", None)
    return None


def _check_limits(config: Config, plan: Estimate) -> Iterator[Problem]:
    """Yield a problem for each limit that even the lowest estimate exceeds."""
    tokens = plan.input_tokens + plan.output_tokens
    limits = config.limits
    checks: tuple[tuple[str, float | None, float | None, Callable[[float], str]], ...] = (
        ("max_cost_usd", limits.max_cost_usd, plan.cost_usd, lambda number: f"${number:,.2f}"),
        ("max_tokens", limits.max_tokens, tokens, lambda number: f"{round(number):,} tokens"),
        ("max_seconds", limits.max_seconds, plan.seconds, lambda number: f"{round(number):,} s"),
    )
    for key, limit, expected, write in checks:
        if limit is not None and expected is not None and expected / plan.spread > limit:
            text = (
                f"{plan.rows:,} rows are expected to take {write(expected)}, and at least "
                f"{write(expected / plan.spread)}; raise the limit, or ask for fewer rows"
            )
            yield Problem(("limits", key), text)
