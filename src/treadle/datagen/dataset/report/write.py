"""The report of a dataset as one HTML file. All texts of the dataset are escaped, and the page loads nothing."""

from html import escape
from pathlib import Path

from msgspec import Struct, structs

from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import read_config
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_stats import DatasetStats, read_leaves
from treadle.datagen.dataset.entries import find_rows, read_entries
from treadle.datagen.dataset.report.orders import draw_orders, list_sequences
from treadle.datagen.dataset.report.samples import Drawn
from treadle.datagen.dataset.report.timeline import draw_time
from treadle.datagen.dataset.report.topic_map import draw_map
from treadle.export.html.blocks import bars, columns, dollars, section, spread, table, tile
from treadle.export.html.page import Page, write_page
from treadle.export.whole import write_whole

_ROWS, _REJECTED = 400, 200
"""How many rows and rejected samples can be read in the report."""
_ROWS_BYTES, _REJECTED_BYTES = 4_500_000, 1_500_000
_SECTIONS = {
    "topics": "Topics",
    "tools": "Tools",
    "shape": "Lengths",
    "kinds": "Kinds",
    "quality": "Quality",
    "time": "Time and cost",
    "browse": "Rows",
}
_GAP = '<div class="gap"></div>'


class Contents(Struct, frozen=True):
    """What a report shows of the rows and of the rejected samples."""

    stats: DatasetStats
    kept: Drawn
    rejected: Drawn


def read_contents(folder: Path) -> Contents:
    """Read the rows of a dataset's folder, or of a file of rows, for a report. Raises: as `read_entries` does."""
    stats, kept = DatasetStats(), Drawn(_ROWS, _ROWS_BYTES)
    rejected = Drawn(_REJECTED, _REJECTED_BYTES, is_rejected=True)
    for entry in read_entries(folder):
        stats.add(entry)
        kept.add(entry)
    for entry in read_entries(folder, is_rejected=True):
        stats.reject(entry)
        rejected.add(entry)
    return Contents(stats, kept, rejected)


def write_report(folder: Path, out: Path | None = None, *, contents: Contents | None = None) -> Path:
    """Write the report of a dataset's folder, or of a file of rows, and return the path of the report.

    `contents` is what was read before, if it was. Raises: as `read_entries` does; `ConfigError` if no file can be
    made.
    """
    find_rows(folder)
    if out is None:
        out = DatasetFolder(folder).report if folder.is_dir() else folder.with_suffix(".report.html")
    stats, kept, rejected = structs.astuple(contents or read_contents(folder))
    rows, samples = kept.rows(), rejected.rows()
    config = read_config(folder)
    name = ", ".join(sorted(stats.datasets)) or (config.name if config is not None else folder.name)
    time = draw_time(DatasetFolder(folder).ledger) if folder.is_dir() else ""
    sections = {
        "topics": _topics(folder, stats),
        "tools": _tools(stats),
        "shape": _shape(stats),
        "kinds": _kinds(stats),
        "quality": _quality(stats),
        "time": _time(stats, time),
        "browse": _browse((len(rows), kept.seen, "rows"), (len(samples), rejected.seen, "rejected samples")),
    }
    page = Page(
        title=f"{name}: dataset report",
        head=_head(name, stats, config),
        sections=sections,
        titles=_SECTIONS,
        footer="Written by treadle dataset report. This file contains everything that it shows.",
        package="treadle.datagen.dataset.report",
        data=[*rows, *samples],
    )
    write_whole([write_page(page).encode()], out)
    return out


def _head(name: str, stats: DatasetStats, config: GenerationConfig | None) -> str:
    agents = ", ".join(model for model, _ in stats.models.get("agent", {}).items())
    about = f"Conversations about {config.topics.prompt!r}" if config is not None else "Conversations"
    tokens = stats.input_tokens + stats.output_tokens
    share = "-" if stats.verified_share is None else f"{stats.verified_share:.1%}"
    rejected = stats.rejected / (stats.rows + stats.rejected) if stats.rejected else 0.0
    tiles = [
        tile(f"{stats.rows:,}", "rows"),
        tile(f"{len(stats.topics):,}", "topics with rows"),
        tile(f"{stats.calls.total:,}", "tool calls"),
        tile(share, "verified, of rows with calls", "good" if stats.verified_share == 1 else ""),
        tile(f"{stats.rejected:,}", f"rejected ({rejected:.1%})"),
        tile(f"{stats.duplicates:,}", "duplicates left", "bad" if stats.duplicates else ""),
        tile(_short(tokens), "tokens for the rows"),
        tile(_cost(stats), "cost of the rows"),
    ]
    note = ""
    if stats.from_teacher:
        which = "All rows were" if stats.from_teacher == stats.rows else f"{stats.from_teacher:,} rows were"
        note += f'<p class="note">{which} written by the built-in teacher, and not by a language model.</p>'
    if stats.simulated:
        note += (
            f'<p class="note">{stats.simulated:,} rows have results that were simulated '
            f"({stats.simulated_calls:,} of {stats.calls.total:,} calls); no tool ran for them.</p>"
        )
    by = f", written by {agents}" if agents else ""
    return (
        f'<h1>{escape(name)}</h1><p class="lead">{escape(about + by)}.</p>'
        f'<div class="tiles">{"".join(tiles)}</div>{note}'
    )


def _topics(folder: Path, stats: DatasetStats) -> str:
    leaves = read_leaves(folder, stats)
    lacking = sum(not count for count in leaves.values())
    rest = f"{lacking:,} of them have no rows" if lacking else "all with rows"
    lead = f"{len(leaves):,} leaf topics, {rest}." if leaves else ""
    return section("topics", "Topics", lead, draw_map(leaves))


def _tools(stats: DatasetStats) -> str:
    if not stats.tools:
        return ""
    unused = sorted(set(stats.offered) - set(stats.tools))
    lead = f"{stats.calls.total:,} calls; {stats.tool_errors.total():,} of them have an error as the result (red)."
    if unused:
        lead += f" Never called: {', '.join(unused)}."
    order = f"<h3>The most frequent orders in a turn</h3>{list_sequences(stats)}"
    matrix = (
        "<h3>Which tool comes next</h3><p class='soft'>Each line is a tool; its cells say how often another tool, "
        f"the same one or the answer comes next.</p>{draw_orders(stats)}"
    )
    return section(
        "tools",
        "Tool use",
        lead,
        columns(bars("Calls by tool", stats.tools, marked=stats.tool_errors) + _GAP + order, matrix),
    )


def _shape(stats: DatasetStats) -> str:
    return section(
        "shape",
        "Lengths",
        "How many rows have which length. Hold the pointer over a bar for its numbers.",
        columns(
            spread("Turns", stats.turns),
            spread("Steps", stats.steps),
            spread("Tool calls", stats.calls),
            spread("Messages", stats.messages),
            spread("Characters", stats.chars),
        ),
    )


def _kinds(stats: DatasetStats) -> str:
    notes = {
        kind: f"{stats.kinds_shown[kind]:,} rows show it in all"
        for kind, met in stats.kinds_met.items()
        if stats.kinds_shown[kind] > met
    }
    return section(
        "kinds",
        "Kinds, difficulties and models",
        "For each kind of tool use: how many rows were planned for it, and how many of them show it.",
        columns(
            bars(
                "Kinds: shown, of planned",
                stats.kinds_planned,
                marked=stats.kinds_met,
                notes=notes,
                kind="pale",
            ),
            bars("Difficulties", stats.difficulties) + _GAP + bars("Conversations", stats.conversations),
            table(
                ("role", "model", "rows"),
                [
                    (role, model, f"{count:,}")
                    for role, names in sorted(stats.models.items())
                    for model, count in names.most_common()
                ],
                (2,),
            ),
        ),
    )


def _quality(stats: DatasetStats) -> str:
    notes = {}
    for name, reasons in stats.reasons.items():
        listed = [f"{count:,} × {reason}" for reason, count in reasons.most_common(3) if reason]
        notes[name] = "; ".join(listed)[:400]
    lead = (
        f"{stats.rows:,} rows were kept and {stats.rejected:,} samples were rejected. A sample can be rejected for "
        "several reasons."
    )
    if stats.duplicates:
        lead += f" {stats.duplicates:,} rows have the same messages as an earlier one."
    return section(
        "quality",
        "Quality",
        lead,
        columns(
            bars("Rejected by", stats.rejections, notes=notes, kind="bad"),
            table(
                ("filter", "passed", "rejected"),
                [
                    (name, f"{stats.filters[name]:,}", f"{stats.rejections[name]:,}")
                    for name in dict.fromkeys((*stats.filters, *stats.rejections))
                ],
                (1, 2),
            ),
            bars("How the conversations ended", stats.stop_reasons),
        ),
    )


def _time(stats: DatasetStats, pictures: str) -> str:
    spent = stats.rejected_input_tokens + stats.rejected_output_tokens
    facts = [
        ("rows", f"{stats.input_tokens:,}", f"{stats.output_tokens:,}", _cost(stats)),
    ]
    if stats.rejected:
        facts.append(
            (
                "rejected samples",
                f"{stats.rejected_input_tokens:,}",
                f"{stats.rejected_output_tokens:,}",
                dollars(stats.rejected_cost_usd),
            )
        )
    if not pictures and not spent and not stats.input_tokens:
        return ""
    sums = table(("spent on", "input tokens", "output tokens", "cost"), facts, (1, 2, 3))
    return section("time", "Time and cost", "", pictures, _GAP, sums)


def _browse(*drawn: tuple[int, int, str]) -> str:
    """Return the section with the list. `drawn` says how many there are to read, of how many, of what."""
    parts = [
        f"all {seen:,} {what}" if shown == seen else f"{shown:,} of {seen:,} {what} (drawn at random)"
        for shown, seen, what in drawn
        if seen
    ]
    if not parts:
        return ""
    selects = "".join(
        f'<select id="by-{name}" aria-label="{label}"><option value="">{label}</option>{options}</select>'
        for name, label, options in (
            (
                "status",
                "kept or rejected",
                '<option value="kept">kept</option><option value="rejected">rejected</option>',
            ),
            ("kind", "any kind", ""),
            ("tool", "any tool", ""),
            ("filter", "any rejection", ""),
            ("topic", "any topic", ""),
        )
    )
    return section(
        "browse",
        "Rows",
        f"To read: {' and '.join(parts)}. Long texts are cut.",
        '<div class="controls"><input id="search" type="search" '
        'placeholder="Search in messages, calls and results" '
        f'aria-label="search">{selects}<button id="clear" type="button">Clear</button></div>',
        '<p class="soft num" id="shown" aria-live="polite"></p><div id="list"></div>',
        '<button class="more" id="more" type="button" hidden>Show more</button>',
    )


def _cost(stats: DatasetStats) -> str:
    if stats.rows_without_cost and stats.rows_without_cost == stats.rows:
        return "unknown"
    return dollars(stats.cost_usd) + ("+" if stats.rows_without_cost else "")


def _short(number: int) -> str:
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if number >= size:
            return f"{number / min(size, 1_000 if unit == 'k' else size):,.1f}{unit}"
    return f"{number:,}"
