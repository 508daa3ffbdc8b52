"""The card of a dataset: a README for the Hub, with metadata as YAML and the facts in Markdown.

Only named facts are written. The configuration is not copied, so keys, headers, addresses and the paths of this
machine cannot get into it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

import treadle
from treadle.core.tally import write_usd
from treadle.core.texts.documents import read_data
from treadle.core.types import Json
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_stats import DatasetStats, collect
from treadle.datagen.dataset.splits import WrittenSplits, read_written
from treadle.export.whole import write_whole
from treadle.jobs.ledger import Ledger

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_LARGEST = "1M<n<10M"
_TAGS = ("synthetic", "tool-use", "function-calling", "agents", "treadle")
_CODE = re.compile(r"`[^`]*+`(?:, `[^`]*+`)*")
"""File names, which the card shows as code."""
_SETTINGS = ("temperature", "top_p", "max_output_tokens", "seed", "output_mode", "format")
"""The settings of a model that the card shows."""


def write_card(folder: Path, config: GenerationConfig, stats: DatasetStats | None = None) -> Path:
    """Write the card of a dataset's folder, after its splits, and return its path.

    `stats` are the statistics of the dataset, if they have already been collected. Raises: as `read_entries` does;
    `ConfigError` if no file can be made.
    """
    text = make_card(folder, config, collect(folder) if stats is None else stats)
    write_whole(text.rstrip("\n").encode().split(b"\n"), DatasetFolder(folder).card)
    return DatasetFolder(folder).card


def make_card(folder: Path, config: GenerationConfig, stats: DatasetStats, tags: Sequence[str] = ()) -> str:
    """Return the card as text. `tags` are added to the usual ones."""
    written = read_written(folder)
    meta = yaml.safe_dump(_meta(config, stats, written, tags), sort_keys=False, allow_unicode=True)
    parts = [
        f"# {_plain(config.name)}",
        _intro(config, stats),
        _contents(stats, written),
        _making(config, stats),
        _quality(folder, config, stats),
        _kinds(stats),
        _licenses(config, stats),
        _fill("again", config=config, version=treadle.__version__),
    ]
    return f"---\n{meta}---\n\n" + "\n\n".join(filter(None, parts)) + "\n"


def _meta(
    config: GenerationConfig, stats: DatasetStats, written: WrittenSplits, tags: Sequence[str]
) -> dict[str, Json]:
    meta: dict[str, Json] = {}
    if config.publish.license:
        meta["license"] = license_on("hub", config.publish.license)
        if meta["license"] == OTHER:
            meta["license_name"] = config.publish.license
    if languages := _languages(config):
        meta["language"] = languages
    meta["pretty_name"] = config.name
    meta["size_categories"] = [next((name for size, name in _SIZES if stats.rows < size), _LARGEST)]
    meta["task_categories"] = ["text-generation"]
    meta["tags"] = list(dict.fromkeys((*_TAGS, *tags)))
    meta["configs"] = [
        {
            "config_name": format,
            **({"default": True} if number == 0 else {}),
            "data_files": [{"split": split, "path": path} for split, path in files.items()],
        }
        for number, (format, files) in enumerate(written.by_format().items())
    ]
    return {name: value for name, value in meta.items() if value != []}


def _languages(config: GenerationConfig) -> list[str]:
    """Return the languages that the rows are checked for."""
    found = config.quality.filters.get("language")
    if not isinstance(found, dict):
        return []
    named: Json = found.get("languages", found.get("language", []))
    return [item for item in ([named] if isinstance(named, str) else named) if isinstance(item, str)]


def _intro(config: GenerationConfig, stats: DatasetStats) -> str:
    about = f" about {_plain(config.topics.prompt)!r}" if config.topics.prompt else ""
    # A model may call tools that there are not; no call of these succeeds.
    used = len([name for name, count in stats.tools.items() if count > stats.tool_errors[name]])
    plural = "" if used == 1 else "s"
    tools = _fill("tools", stats=stats, tools=used, plural=plural) if used else ""
    lines = [_fill("intro", stats=stats, about=about, tools=tools, version=treadle.__version__)]
    lines += [f"**{text}**" for text in stats.describe_built_in()]
    told = {
        "simulated": stats.simulated,
        "real": stats.tools and not stats.simulated,
        "verified": stats.verified,
        "repaired": stats.repaired,
    }
    return "\n".join([*lines, *[_fill(name, stats=stats) for name, is_told in told.items() if is_told]])


def _fill(name: str, **values: object) -> str:
    """Return a text of `card.toml` with these values."""
    return str(read_data(__package__, "card")[name]).strip("\n").format(**values)


def _contents(stats: DatasetStats, written: WrittenSplits) -> str:
    rows = [
        (split, f"{written.rows.get(split, 0):,}", f"{count:,}")
        for split, count in written.count_topics().items()
    ]
    text = "## Contents\n\n"
    if rows:
        text += "No topic is in two splits.\n\n" if len(rows) > 1 else ""
        text += _table(("split", "rows", "topics"), rows) + "\n\n"
    files = [
        (format, ", ".join(f"`{path}`" for path in files.values()))
        for format, files in written.by_format().items()
    ]
    text += _table(("format", "files"), files) + "\n\n" if files else ""
    text += "".join(f"`{file}` lacks {_plain(lacks)}.\n\n" for file, lacks in written.left_out.items())
    spreads = [
        (name, f"{spread.mean:,.1f}", f"{spread.quantile(0.5):,}", f"{spread.quantile(1.0):,}")
        for name, spread in (
            ("turns", stats.turns),
            ("steps", stats.steps),
            ("tool calls", stats.calls),
            ("characters", stats.chars),
        )
    ]
    text += _table(("per row", "mean", "median", "most"), spreads)
    tools = [
        (name, f"{count:,}", f"{stats.tool_errors[name]:,}") for name, count in stats.tools.most_common()
    ]
    return text + ("\n\n" + _table(("tool", "calls", "with an error"), tools) if tools else "")


def _making(config: GenerationConfig, stats: DatasetStats) -> str:
    models = []
    for role, names in sorted(stats.models.items()):
        table = getattr(config.models, role, None) or config.models.default
        # A model that is given by its name has no settings, and a text has a method `format`.
        given = {} if isinstance(table, str) else {name: getattr(table, name, None) for name in _SETTINGS}
        settings = ", ".join([f"{name} {value}" for name, value in given.items() if value is not None])
        prices = "; ".join(stats.prices.get(role, Counter()))
        models += [(role, name, settings, prices, f"{count:,}") for name, count in names.most_common()]
    generation = config.generation
    conversation, tools = generation.conversation, config.tools
    listed = {
        "conversations": conversation.type
        + (f", reasoning: {conversation.reasoning}" if conversation.reasoning else ""),
        "turns": f"{conversation.min_turns} to {conversation.max_turns}",
        "steps of a turn": f"at most {tools.max_steps}",
        "calls of a turn": f"at most {tools.max_calls}" if tools.max_calls else "",
        "topics": f"{config.topics.mode}, {len(stats.topics):,} with rows",
        "initial files": ", ".join(_names(stats.sources)),
        "seed": str(config.seed),
    }
    return _fill(
        "making",
        stats=stats,
        models=_table(("role", "model", "settings", "prices", "rows"), models),
        settings=_table(("setting", "value"), [(name, value) for name, value in listed.items() if value]),
        cost="unknown" if stats.rows_without_cost else write_usd(stats.cost_usd),
    )


def _names(sources: Iterable[str]) -> list[str]:
    """Return the origins of files without the folders of this machine, and tasks without their ids."""
    names = {Path(name).name if "/" in name else name.partition(":")[0] for name in sources}
    return [name for name in sorted(names) if name][:20]


def _quality(folder: Path, config: GenerationConfig, stats: DatasetStats) -> str:
    filters = list(dict.fromkeys([*stats.filters, *stats.lowered_by, *stats.rejections]))
    rows = [(name, f"{stats.filters[name]:,}", f"{stats.rejections[name]:,}") for name in filters]
    duplicates = sum(count for name, count in stats.rejections.items() if "duplicate" in name)
    lines = [_fill("rejected", stats=stats, duplicates=duplicates)]
    if stats.lowered:
        lines.append(stats.describe_lowered())
    if DatasetFolder(folder).ledger.exists():
        with Ledger(DatasetFolder(folder).ledger, is_readonly=True) as ledger:
            if failed := ledger.counts().failed:
                lines.append(_fill("failed", failed=failed))
    if config.quality.evaluation_sets:
        names = [path.name for path in config.quality.evaluation_sets]
        lines.append(f"No row overlaps with: {', '.join(names)}.")
    table = _table(("filter", "rows that passed", "samples rejected"), rows)
    return "## Filters\n\n" + " ".join(lines) + (f"\n\n{table}" if rows else "")


def _kinds(stats: DatasetStats) -> str:
    kinds = [
        (kind, f"{count:,}", f"{stats.kinds_met[kind]:,}", f"{stats.kinds_shown[kind]:,}")
        for kind, count in stats.kinds_planned.most_common()
    ]
    if not kinds:
        return ""
    return "## Kinds of tool use\n\n" + _table(
        ("kind", "rows planned for it", "of these, show it", "rows that show it"), kinds
    )


def _licenses(config: GenerationConfig, stats: DatasetStats) -> str:
    name = config.publish.license
    lines = [f"The dataset: {_plain(name)}." if name else "No licence was named for this dataset."]
    sources = [(source, license) for source, license in config.publish.sources.items()]
    if sources:
        lines.append("The sources:\n\n" + _table(("source", "licence"), sources))
    return "## Licences\n\n" + "\n\n".join(lines)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Return a text as one line, with the characters that have a meaning in Markdown escaped."""
    line = " ".join(text.split()).replace("\\", "\\\\")
    for mark in "|<>" if _CODE.fullmatch(line) else "|<>[]*_`":
        line = line.replace(mark, f"\\{mark}" if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark])
    return line


OTHER = "other"
"""The name that both services have for a licence that is not in their lists. The description then has its name."""


def license_on(service: str, name: str) -> str:
    """Return the name that `hub` or `kaggle` has for a licence, which is `other` if its list does not have it."""
    licences = read_data(__package__, "licences")
    known = {item.lower(): item for item in licences[service].split()}
    plain = name.strip().lower().removesuffix("-only").removesuffix("-or-later")
    return known.get(plain) or known.get(licences["aliases"].get(plain, "")) or OTHER
