"""`treadle topics`: the topics of a dataset."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute_until_stopped
from treadle.cli.options.option_groups import OptionGroup
from treadle.cli.terminal.output import (
    bar,
    clean,
    print_error,
    print_json,
    print_line,
    print_note,
    stdout,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.datagen.config.generation_config import GenerationConfig, Models, Topics
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.generation_progress import TopicExpanded
from treadle.datagen.topics.building import BuildStoppedError, build_topics
from treadle.datagen.topics.topic_files import load_topics, parse_topics, read_topics, save_topics
from treadle.datagen.topics.topic_graph import SEPARATOR, Topic, TopicGraph, clean_topic, topic_id
from treadle.journal.registry import make_folder, open_journal
from treadle.models.config.tables import ModelTable

if TYPE_CHECKING:
    from rich.text import Text


def read(file: str) -> TopicGraph:
    """Return the topics of a file, and print what was changed when it was read. Raises: `ConfigError`."""
    found = parse_topics(sys.stdin.buffer.read(), "standard input") if file == "-" else read_topics(file)
    for note in found.notes:
        print_note(note)
    return found.graph


def describe(graph: TopicGraph) -> str:
    """Return the counts of a graph in words."""
    failed, links = len(list(graph.failed())), graph.count_links()
    parts = [
        write_count(len(graph.topics), "topic"),
        f"{len(list(graph.leaves())):,} of them leaves",
        *([write_count(links, "cross-link")] if links else []),
        *([f"{failed:,} failed"] if failed else []),
    ]
    return ", ".join(parts)


class TopicOptions(OptionGroup, frozen=True, kw_only=True):
    """The options that override keys of the section `topics`. Each field has the name of its key."""

    prompt: str | None = None
    mode: Literal["tree", "graph"] | None = None
    degree: int | None = None
    depth: int | None = None
    instructions: str | None = None
    window: int | None = None


def build(
    config: Path | None = None,
    *,
    options: TopicOptions,
    model: str | None = None,
    base_url: str | None = None,
    seed: int | None = None,
    out: Path | None = None,
    journal: str | None = None,
    is_forced: bool = False,
    is_json: bool = False,
) -> int:
    """Build a tree or a graph of topics with a model.

    Each answer is stored in the journal. If the command is interrupted, the same command continues and pays for
    nothing twice. The exit code is 1 if topics failed; the same command tries these again.

    Examples:
        treadle topics build config.yaml
        treadle topics build --prompt 'Office work' --mode graph --degree 8 --depth 3 --model mock:teacher
    """
    given = _configure(config, options.given_values, seed)
    given = _with_model(given, model, base_url)
    folder = DatasetFolder(given.output.path)
    target = out or (folder.topics if config is not None else Path("topics.json"))
    if target.is_dir():
        raise ConfigError(f"{str(target)!r} is a folder; name a file in it")
    if os.path.lexists(target) and not is_forced and not _is_own(target, given):
        raise ConfigError(f"{str(target)!r} exists; --force replaces it")
    make_folder(target.parent)
    address = journal or str(
        folder.journal if config is not None and out is None else target.with_suffix(".db")
    )
    graph = _build(given, address, is_json=is_json)
    if graph is None:
        return ExitCode.INTERRUPTED
    save_topics(graph, target)
    return _report(graph, target, is_json=is_json)


def _configure(path: Path | None, topics: dict[str, Any], seed: int | None) -> GenerationConfig:
    """Return the configuration with the options in place of its values. Raises: `ConfigError`."""
    from treadle.datagen.config.loading import load_config

    if path is None:
        if "prompt" not in topics:
            raise ConfigError("give the root topic with --prompt, or the configuration of a dataset")
        return GenerationConfig(name="topics", seed=seed or 0, topics=Topics(**topics))
    loaded = load_config(path)
    for note in loaded.notes:
        print_note(note)
    config = loaded.config
    if config.topics.load is not None and "prompt" not in topics:
        raise ConfigError(
            f"{path} loads its topics from {str(config.topics.load)!r}; there is nothing to build"
        )
    changed = config.topics.model_copy(update={"load": None, **topics})
    return config.model_copy(update={"topics": changed, "seed": config.seed if seed is None else seed})


def _with_model(config: GenerationConfig, model: str | None, base_url: str | None) -> GenerationConfig:
    """Return the configuration with one model, that of the topics. Raises: `ConfigError`."""
    if base_url is not None and model is None:
        raise ConfigError("--base-url goes with --model NAME")
    given: str | ModelTable | None = config.models.topics or config.models.default
    if model is not None:
        given = model if base_url is None else ModelTable(model=model, base_url=base_url)
    quality = config.quality.model_copy(update={"judge": None})
    return config.model_copy(update={"models": Models(default=given), "quality": quality})


def _is_own(target: Path, config: GenerationConfig) -> bool:
    """Return whether a file has topics that an earlier command built from the same root."""
    if not target.is_file():
        return False
    try:
        graph = load_topics(target)
    except ConfigError:
        return False
    return graph.origin is not None and graph.root_id == topic_id((clean_topic(config.topics.prompt),))


def _build(config: GenerationConfig, address: str, *, is_json: bool) -> TopicGraph | None:
    """Return the graph; `None` if the build was interrupted."""
    from treadle.datagen.config.roles import make_models
    from treadle.jobs.meter import JobMeter
    from treadle.jobs.sections import LimitSection

    try:
        model = make_models(config)["topics"]
    except ConfigError as error:
        raise ConfigError(str(error).replace("models.default:", "--model:")) from error
    topics = config.topics
    total = sum(topics.degree**level for level in range(topics.depth))
    with open_journal(address) as journal, bar("topics", total, is_json=is_json) as advance:

        def start(stop: asyncio.Event) -> Coroutine[Any, Any, TopicGraph]:
            meter = JobMeter(LimitSection())
            meter.stop = stop
            return build_topics(
                topics,
                model=meter.measure(model),
                journal=journal,
                seed=config.seed,
                dataset=config.name,
                on_notice=_listen(advance, is_json=is_json),
                stop=stop,
            )

        try:
            return execute_until_stopped(
                start, lambda: print_note("finishing what has begun; Ctrl-C stops now")
            )
        except BuildStoppedError as error:
            print_note(str(error))
            return None


def _listen(advance: Callable[[str], None], *, is_json: bool) -> Callable[[TopicExpanded], None]:
    def listen(notice: TopicExpanded) -> None:
        advance(notice.path[-1])
        if is_json:
            print_json(notice)
        elif notice.error is not None:
            print_error(f"topic {notice.path[-1]!r:.80}: {notice.error}")

    return listen


def _report(graph: TopicGraph, target: Path, *, is_json: bool) -> ExitCode:
    failed, origin = list(graph.failed()), graph.origin
    missing = sum(topic.missing for topic in graph.topics.values())
    if is_json:
        print_json(
            {
                "event": "topics_written",
                "file": str(target),
                "topics": len(graph.topics),
                "leaves": len(list(graph.leaves())),
                "failed": len(failed),
                "missing": missing,
                "origin": origin,
            }
        )
    else:
        print_note(f"{describe(graph)}: written to {target}")
        if origin is not None and origin.merged:
            print_note(f"{write_count(origin.merged, 'near-duplicate')} merged")
        if missing:
            print_note(f"{write_count(missing, 'subtopic')} missing, although the model was asked again")
    if failed:
        print_note("the same command tries the failed topics again")
    return ExitCode.FAILED if failed else ExitCode.DONE


def show(
    file: str,
    depth: int | None = None,
    is_leaves: bool = False,
    is_failed: bool = False,
    is_json: bool = False,
) -> None:
    """Show the topics of a file as a tree.

    A cross-link is shown at the topic that it leads to.

    Examples:
        treadle topics show topics.json --depth 1
        treadle topics show topics.json --leaves
    """
    graph = read(file)
    chosen = [
        topic
        for topic in (graph.leaves() if is_leaves else graph.failed() if is_failed else graph.walk())
        if depth is None or len(topic.path) - 1 <= depth
    ]
    if is_json:
        print_json(*chosen)
    elif is_leaves or is_failed:
        for topic in chosen:
            error = f": {topic.error}" if is_failed else ""
            print_line(SEPARATOR.join(topic.path) + error)
    else:
        _print_tree(graph, chosen)
    print_note(describe(graph))


def _print_tree(graph: TopicGraph, chosen: list[Topic]) -> None:
    from rich.tree import Tree

    made: dict[str, Tree] = {}
    for topic in chosen:
        label = _label(graph, topic, len(topic.children))
        parent = made[topic.parents[0]] if topic.parents else None
        made[topic.topic_id] = Tree(label) if parent is None else parent.add(label)
    stdout().print(made[graph.root_id])


def _label(graph: TopicGraph, topic: Topic, count: int) -> "Text":
    from rich.text import Text

    label = Text(clean(topic.text), style="bold" if count else "")
    if topic.error is not None:
        label.append(f"  failed: {clean(topic.error)[:100]}", style="red")
    elif topic.missing:
        label.append(f"  {topic.missing} missing", style="yellow")
    if len(topic.parents) > 1:
        others = ", ".join(clean(graph.topics[key].text) for key in topic.parents[1:])
        label.append(f"  also below {others}", style="dim")
    return label
