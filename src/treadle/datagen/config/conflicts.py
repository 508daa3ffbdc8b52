"""Conflicts in a configuration: combinations that cannot work, and samples that cannot fit."""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import starmap
from pathlib import Path

from treadle.core.errors import TreadleError
from treadle.core.registry import name_known
from treadle.core.spec import PartSpec
from treadle.core.texts.places import Problem
from treadle.datagen.config.estimate import Estimate, estimate, is_server, largest_prompts
from treadle.datagen.config.generation_config import GenerationConfig, Role
from treadle.datagen.config.roles import ROLES, try_models, used_roles
from treadle.datagen.dataset.dataset_folder import SPLIT_NAME, DatasetFolder
from treadle.datagen.quality.registry import find_faults, find_lower_faults
from treadle.datagen.scenarios.environment import open_environments
from treadle.datagen.scenarios.kinds import MIN_CALLS, MIN_STEPS
from treadle.datagen.topics.topic_files import load_topics
from treadle.export.exporter import FORMATS
from treadle.export.parquet import require_arrow
from treadle.jobs.meter import is_free
from treadle.jobs.sections import find_mistakes
from treadle.journal.named_files import suggest_path
from treadle.models.protocol import Model, context_tokens_of, has_price
from treadle.runs.task import task_set
from treadle.tools.resolve import check_part, is_code, resolve_tools
from treadle.tools.schema.tool_definitions import parse_definitions
from treadle.workers.registry import check_workers


def find_conflicts(config: GenerationConfig) -> list[Problem]:
    """Return the problems of a configuration that can be found without files, models and topics."""
    checks: tuple[Callable[[GenerationConfig], Iterator[Problem]], ...] = (
        _check_topics,
        _check_conversation,
        _check_kinds,
        _check_weights,
        _check_formats,
        _check_splits,
        _check_judge,
        _check_filters,
    )
    workers = find_mistakes({("generation", "workers"): lambda: check_workers(config.generation.workers)})
    return workers + [problem for check in checks for problem in check(config)]


def find_unknown_names(config: GenerationConfig) -> list[Problem]:
    """Return the formats and filters of a configuration that do not exist."""
    return [*_check_formats(config), *_check_filters(config)]


def _check_topics(config: GenerationConfig) -> Iterator[Problem]:
    topics = config.topics
    if topics.load is None:
        if not topics.prompt.strip():
            yield Problem(("topics", "prompt"), "it is missing; give the root topic, or a file with 'load'")
        return
    for key in ("degree", "depth", "mode", "window", "max_attempts", "similarity", "instructions"):
        if key in topics.model_fields_set:
            text = f"topics that are loaded are not built; delete {key!r}, or delete 'load'"
            yield Problem(("topics", key), text)


def _check_conversation(config: GenerationConfig) -> Iterator[Problem]:
    conversation, tools = config.generation.conversation, config.tools
    path = ("generation", "conversation")
    has_tools = bool(tools.use or tools.definitions)
    if conversation.type == "agent" and not has_tools and tools.task_set is None:
        hint = "; your files need 'use: [files]'" if tools.files is not None else ""
        yield Problem(
            ("tools", "use"),
            f"an agent needs tools: name toolsets here, such as 'files', or give 'definitions'{hint}. For "
            "conversations without tools set generation.conversation.type to 'basic' or 'cot'",
        )
    if conversation.type != "agent" and has_tools:
        text = (
            f"conversations of the type {conversation.type!r} use no tools; set it to 'agent', or delete them"
        )
        yield Problem((*path, "type"), text)
    for key in ("max_steps", "max_calls"):
        if key in tools.model_fields_set and not has_tools and tools.task_set is None:
            yield Problem(("tools", key), f"without tools it has no effect; delete {key!r}")
    if conversation.type == "cot" and conversation.reasoning is None:
        text = "'cot' needs the form of its reasoning: 'freetext' or 'agent'"
        yield Problem((*path, "reasoning"), text)
    if conversation.type == "basic" and conversation.reasoning is not None:
        text = "conversations of the type 'basic' have no reasoning; set the type to 'cot', or delete it"
        yield Problem((*path, "reasoning"), text)
    if conversation.type == "agent" and conversation.reasoning == "freetext":
        text = "the reasoning of agents is kept with each step, which is 'agent'; 'freetext' is for 'cot'"
        yield Problem((*path, "reasoning"), text)
    if conversation.min_turns > conversation.max_turns:
        text = (
            f"min_turns is {conversation.min_turns} and max_turns is {conversation.max_turns}; set min_turns to at "
            f"most {conversation.max_turns}, or raise max_turns"
        )
        yield Problem((*path, "min_turns"), text)


def _check_kinds(config: GenerationConfig) -> Iterator[Problem]:
    generation, tools = config.generation, config.tools
    turns = generation.conversation.max_turns
    for kind, weight in generation.kinds.items():
        path = ("generation", "kinds", kind.value)
        if not weight:
            continue
        if generation.conversation.type != "agent":
            text = (
                f"kinds of tool use need agents, and the conversations are {generation.conversation.type!r}"
            )
            yield Problem(path, f"{text}; delete it, or set generation.conversation.type to 'agent'")
        elif tools.max_calls is not None and MIN_CALLS.get(kind, 0) > tools.max_calls * turns:
            text = f"it needs {MIN_CALLS[kind]} calls, and tools.max_calls allows {tools.max_calls}; raise it"
            yield Problem(path, text)
        elif MIN_STEPS.get(kind, 0) > tools.max_steps and (turns == 1 or tools.max_steps == 1):
            text = f"it needs {MIN_STEPS[kind]} steps in a turn, and tools.max_steps is {tools.max_steps}; raise it"
            yield Problem(path, text)
    if generation.conversation.type == "agent" and tools.max_steps == 1 and not generation.kinds:
        text = "an agent needs at least 2 steps in a turn, one for a call and one for the answer"
        yield Problem(("tools", "max_steps"), text)


def _check_weights(config: GenerationConfig) -> Iterator[Problem]:
    for key in ("kinds", "difficulties"):
        weights = getattr(config.generation, key)
        if weights and not any(weights.values()):
            yield Problem(("generation", key), "all weights are 0, so nothing can be drawn; raise one")
    number = config.generation.num_samples
    if isinstance(number, str) and number.endswith("%") and not float(number[:-1]):
        yield Problem(("generation", "num_samples"), f"{number!r} gives no sample; give a larger percentage")


def _check_formats(config: GenerationConfig) -> Iterator[Problem]:
    for number, name in enumerate(config.output.formats):
        if name not in FORMATS:
            known = FORMATS.names()
            text = f"unknown format {name!r}{name_known(name, known, 'known are')}"
            yield Problem(("output", "formats", number), text)


def _check_splits(config: GenerationConfig) -> Iterator[Problem]:
    output, schema = config.output, config.generation.conversation.output_schema
    if "custom" in output.formats and schema is None:
        text = "the format 'custom' needs the schema of its rows: generation.conversation.output_schema"
        yield Problem(("output", "formats", output.formats.index("custom")), text)
    for name in output.splits:
        if not SPLIT_NAME.fullmatch(name):
            text = f"{name!r} cannot be a part of a file name; use only letters, digits and '_'"
            yield Problem(("output", "splits", name), text)
    if not output.include_system_message and output.system_message is not None:
        text = (
            "the rows have no system message, because include_system_message is false; delete one of the two"
        )
        yield Problem(("output", "system_message"), text)


def _check_judge(config: GenerationConfig) -> Iterator[Problem]:
    if config.models.judge is not None and "judge" not in used_roles(config):
        text = (
            "this model would never be asked; give quality.judge with a rubric, switch the filter 'statements' "
            "on, or delete the model"
        )
        yield Problem(("models", "judge"), text)


def _check_filters(config: GenerationConfig) -> Iterator[Problem]:
    for path, text in (
        *find_faults(config.quality.filters, imports=False),
        *find_lower_faults(config.quality),
    ):
        yield Problem(path, text)


def find_obstacles(
    config: GenerationConfig, leaves: int | None = None, *, imports: bool = True
) -> list[Problem]:
    """Return the problems that would stop a generation or make its rows useless.

    `leaves` is the number of leaf topics, if it is known. Without `imports`, the files and modules of tools and
    filters are not imported.
    """
    models, problems = try_models(config)
    problems += _check_files(config)
    problems += _check_tools(config, imports=imports)
    problems += _check_own_filters(config, imports=imports)
    problems += _check_output(config, leaves)
    if problems:
        return problems
    problems += _check_prices(config, models)
    problems += _check_windows(config, models)
    # A dataset that was begun goes on until a limit is reached.
    if not problems and not DatasetFolder(config.output.path).ledger.exists():
        problems += _check_limits(config, estimate(config, leaves, models=models))
    return problems


def _check_files(config: GenerationConfig) -> Iterator[Problem]:
    load, plain = config.topics.load, config.tools.model_copy(update={"use": [], "definitions": []})
    yield from find_mistakes(
        {
            ("topics", "load"): lambda: None if load is None else load_topics(load),
            ("tools", "files"): lambda: open_environments(plain, config.seed),
        }
    )
    for number, path in enumerate(config.quality.evaluation_sets):
        if not path.is_file():
            hint = suggest_path(path, "paths are relative to this file")
            text = f"there is no file {str(path)!r}{hint}"
            yield Problem(("quality", "evaluation_sets", number), text)


def _check_tools(config: GenerationConfig, *, imports: bool) -> Iterator[Problem]:
    """Yield a problem for each toolset that cannot be built. No server is started."""
    names: dict[str, int] = {}
    for number, part in enumerate(config.tools.parts()):
        path = ("tools", "use", number)
        try:
            if is_server(part.name) or (not imports and is_code(part.name)):
                check_part(part)
                continue
            found = [item.spec.name for item in resolve_tools(part)]
        except TreadleError as error:
            mock = f"write 'mock:{part.name}' for the simulated tools of a file of definitions"
            is_file = ":" not in part.name and part.name.endswith((".json", ".yaml", ".yml"))
            yield Problem(path, f"{part.name!r} is not a toolset; {mock}" if is_file else str(error))
            continue
        for name in found:
            if name in names:
                other = config.tools.parts()[names[name]].name
                yield Problem(
                    path, f"it has a tool {name!r}, and {other!r} has one too; use only one of them"
                )
            names.setdefault(name, number)
    if tools := config.tools.definitions:
        read = partial(parse_definitions, {"tools": tools}, "the definitions")
        yield from find_mistakes({("tools", "definitions"): read})
    tasks = config.tools.task_set
    if tasks is not None and config.generation.conversation.type == "agent":
        yield from _check_tasks(config, tasks)


def _check_own_filters(config: GenerationConfig, *, imports: bool) -> Iterator[Problem]:
    """Yield a problem for each filter of the user that cannot be loaded, or has a wrong setting."""
    if imports:
        yield from starmap(Problem, find_faults(config.quality.filters, imports=True))
    else:
        parts = {name: PartSpec(name=name) for name in config.quality.filters if is_code(name)}
        yield from find_mistakes(
            {("quality", "filters", name): partial(check_part, part) for name, part in parts.items()}
        )


def _check_tasks(config: GenerationConfig, name: str) -> Iterator[Problem]:
    try:
        needed = next(iter(task_set(name))).tools
    except (TreadleError, StopIteration):
        return
    used = {part.name for part in config.tools.parts()}
    missing = [tool for tool in needed if tool not in used]
    if used and missing:
        yield Problem(("tools", "use"), f"the tasks of {name!r} need the toolset {missing[0]!r}; add it")


def _check_output(config: GenerationConfig, leaves: int | None) -> Iterator[Problem]:
    path = config.output.path.expanduser()
    nearest = next(item for item in (path, *path.absolute().parents) if item.exists())
    if not nearest.is_dir():
        yield Problem(("output", "path"), f"{str(nearest)!r} is a file; name a folder")
    elif not os.access(nearest, os.W_OK):
        yield Problem(
            ("output", "path"), f"the folder {str(nearest)!r} cannot be written to; name another one"
        )
    elif config.tools.folder is not None and path.resolve() == config.tools.folder.resolve():
        text = f"the folder {str(path)!r} is tools.files too, and would change while the dataset is made"
        yield Problem(("output", "path"), f"{text}; name another one")
    elif nearest == path and _has_others(path, DatasetFolder(path).ledger):
        text = f"the folder {str(path)!r} has files, but no dataset of Treadle; name another one"
        yield Problem(("output", "path"), text)
    if config.output.parquet:
        yield from find_mistakes({("output", "parquet"): require_arrow})
    if leaves is not None and leaves < len(config.output.splits):
        text = (
            f"{leaves} leaf topics cannot fill {len(config.output.splits)} splits, because no topic is in two"
        )
        yield Problem(("output", "splits"), f"{text}; ask for more topics, or for fewer splits")


def _has_others(folder: Path, ledger: Path) -> bool:
    """Return whether a folder has files and no ledger. A job that ends at once may leave the lock of one."""
    return not ledger.exists() and any(item != ledger.with_suffix(".lock") for item in folder.iterdir())


def _check_prices(config: GenerationConfig, models: Mapping[Role, Model]) -> Iterator[Problem]:
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


def _check_windows(config: GenerationConfig, models: Mapping[Role, Model]) -> Iterator[Problem]:
    prompts = largest_prompts(config)
    for role in ROLES:
        window = context_tokens_of(models[role]) if role in models else None
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


def _check_limits(config: GenerationConfig, plan: Estimate) -> Iterator[Problem]:
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
