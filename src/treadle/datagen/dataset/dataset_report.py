"""The report of a dataset, as blocks for the viewer: topics, tools, lengths, kinds, quality, time and rows."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from time import gmtime, strftime

from msgspec import Struct

from treadle.core.types import Json, Role
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import read_config
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_stats import END, START, DatasetStats, read_leaves
from treadle.datagen.dataset.entries import RowEntry, find_rows, read_entries
from treadle.datagen.dataset.splits import read_written
from treadle.export import report_blocks as b
from treadle.jobs.ledger import ItemStatus, Ledger

_WHOLE, _WHOLE_BYTES = 1_000, 12_000_000
"""How many rows, and how many rejected samples, have their messages in the report, and how many bytes these may
have."""
_MAX_MESSAGES = 80
_MAX_CELLS = 1_200
"""The largest number of rectangles in the map. If there are more topics, subtopics are drawn together."""
_MAX_TOOLS = 14
_OTHERS = "(other tools)"
_BINS = 120
_HEADS = (
    ("status", "kept or rejected"),
    ("kind", "any kind"),
    ("tool", "any tool"),
    ("filter", "any rejection"),
    ("topic", "any topic"),
)


class DatasetContents(Struct, frozen=True):
    """The data that was read from a dataset: its statistics, its rows and its rejected samples."""

    stats: DatasetStats
    kept: b.RowSample
    rejected: b.RowSample


def read_contents(folder: Path) -> DatasetContents:
    """Read the rows of a dataset's folder, or of a file of rows, for a report. Raises: as `read_entries` does."""
    stats = DatasetStats()
    kept, rejected = b.RowSample(_WHOLE, _WHOLE_BYTES), b.RowSample(_WHOLE, _WHOLE_BYTES)
    for rows, is_rejected in ((kept, False), (rejected, True)):
        for entry in read_entries(folder, is_rejected=is_rejected):
            (stats.reject if is_rejected else stats.add)(entry)
            head = _write_head(entry, is_rejected=is_rejected)
            key = f"{entry.row_id}\x1f{entry.row.lineage.run_id}"
            rows.add(head, partial(_write_body, entry), key, texts=partial(_texts_of, entry))
    return DatasetContents(stats, kept, rejected)


def report_path(folder: Path) -> Path:
    """Return where the report of a dataset's folder, or of a file of rows, is written by default."""
    return DatasetFolder(folder).report if folder.is_dir() else folder.with_suffix(".report.html")


def make_dataset_report(folder: Path, contents: DatasetContents | None = None) -> b.Report:
    """Return the report of a dataset's folder, or of a file of rows.

    `contents` has what was read before; `None` to read it now. Raises: as `read_entries` does.
    """
    find_rows(folder)
    contents = contents or read_contents(folder)
    stats, config = contents.stats, read_config(folder)
    name = ", ".join(sorted(stats.datasets)) or (config.name if config is not None else folder.name)
    return b.Report(
        title=f"{name}: dataset report",
        name=name,
        lead=_lead(stats, config),
        figures=_figures(stats),
        notes=_notes(folder, stats),
        sections=(
            _topics(folder, stats),
            _tools(stats),
            _lengths(stats),
            _kinds(stats),
            _quality(stats),
            _time(folder, stats),
            _browse(folder, contents),
        ),
        footer="Written by treadle dataset report. This file contains everything that it shows.",
    )


def _lead(stats: DatasetStats, config: GenerationConfig | None) -> str:
    agents = ", ".join(stats.models.get("agent", {}))
    about = f"Conversations about {config.topics.prompt!r}" if config is not None else "Conversations"
    return f"{about}, written by {agents}." if agents else f"{about}."


def _figures(stats: DatasetStats) -> list[b.Figure]:
    verified = b.write_share(stats.verified, stats.with_calls)
    rejected = b.write_share(stats.rejected, stats.rows + stats.rejected)
    tokens = stats.input_tokens + stats.output_tokens
    return [
        b.Figure(f"{stats.rows:,}", "rows kept"),
        b.Figure(
            verified, "results verified, of rows with calls", "good" if stats.verified_share == 1 else ""
        ),
        *_grounding_figures(stats),
        b.Figure(f"{stats.rejected:,}", f"samples rejected ({rejected})"),
        b.Figure(f"{stats.duplicates:,}", "duplicate rows left", "bad" if stats.duplicates else ""),
        b.Figure(f"{len(stats.topics):,}", "topics with rows"),
        b.Figure(f"{stats.calls.total:,}", "tool calls in rows"),
        b.Figure(_short(tokens), "tokens for the rows", "", f"{tokens:,} input and output tokens"),
        b.Figure(_cost(stats.cost_usd, stats.rows_without_cost), "cost of the rows"),
    ]


def _grounding_figures(stats: DatasetStats) -> list[b.Figure]:
    """Return how far the answers are grounded, and how far a judge agrees with the rules."""
    if not stats.statements:
        return []
    about = f"{stats.grounded:,} of {stats.statements:,} statements of the answers in rows"
    about += f"; {stats.repaired:,} rows have an answer that was asked for again" if stats.repaired else ""
    figures = [b.Figure(b.write_share(stats.grounded, stats.statements), "statements grounded", "", about)]
    if stats.controls:
        share = b.write_share(stats.agreed, stats.controls)
        told = f"{stats.agreed:,} of {stats.controls:,} statements that the rules are sure of"
        figures.append(b.Figure(share, "judge agrees with the rules", "", told))
    return figures


def _notes(folder: Path, stats: DatasetStats) -> list[str]:
    notes = [f"{file} lacks {lacks}." for file, lacks in read_written(folder).left_out.items()]
    if stats.lowered:
        notes.append(stats.describe_lowered())
    notes += stats.describe_built_in()
    if stats.simulated:
        calls = f"{stats.simulated_calls:,} of {stats.calls.total:,} calls"
        notes.append(
            f"{stats.simulated:,} rows have results that were simulated ({calls}); no tool ran for them."
        )
    return notes


def _topics(folder: Path, stats: DatasetStats) -> b.ReportSection:
    leaves = read_leaves(folder, stats)
    lacking = sum(not count for count in leaves.values())
    lead = f"{len(leaves):,} leaf topics, {f'{lacking:,} of them without rows' if lacking else 'all with rows'}. "
    depth = max(map(len, leaves), default=0)
    while depth > 1 and len({path[:depth] for path in leaves}) > _MAX_CELLS:
        depth -= 1
    rows, topics = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for path, count in leaves.items():
        rows[path[:depth]] += count
        topics[path[:depth]] += 1
    if len(rows) < 2:
        return b.ReportSection("topics", "Topics", lead, ())
    if len(rows) < len(leaves):
        lead += (
            f"{len(leaves):,} topics are drawn as {len(rows):,}; the size of a rectangle is their number. "
        )
    root = next(iter(rows))[:1]
    above = root if all(path[:1] == root and len(path) > 1 for path in rows) else ()
    items = [b.Leaf(path[len(above) :], count, topics[path]) for path, count in rows.items()]
    block = b.TreemapBlock(items=items, unit="rows", above=above, about="Select a topic to see its rows.")
    return b.ReportSection("topics", "Topics", lead + "The colour is the number of rows.", (block,))


def _tools(stats: DatasetStats) -> b.ReportSection:
    lead = f"{stats.calls.total:,} calls; {stats.tool_errors.total():,} of them have an error as the result (red)."
    if unused := sorted(set(stats.offered) - set(stats.tools)):
        lead += f" Never called: {', '.join(unused)}."
    total = stats.sequences.total()
    orders = [
        (" → ".join(names) if names else "no tool", f"{count:,}", f"{count / total:.1%}")
        for names, count in stats.sequences.most_common(8)
    ]
    blocks = (
        *b.make_bars("Calls by tool", stats.tools, "calls", parts=stats.tool_errors, part="with an error"),
        *b.make_table(("order in a turn", "turns", "share"), orders, (1, 2), "Most frequent orders of tools"),
        *_matrix(stats),
    )
    return b.ReportSection("tools", "Tool use", lead, blocks if stats.tools else ())


def _matrix(stats: DatasetStats) -> Iterable[b.MatrixBlock]:
    """Return how often one tool follows another."""
    names = [name for name, _ in stats.tools.most_common(_MAX_TOOLS)]
    extra = [_OTHERS] if len(stats.tools) > _MAX_TOOLS else []
    known, counts = {START, END, *names}, Counter[tuple[str, str]]()
    for (one, two), count in stats.orders.items():
        counts[one if one in known else _OTHERS, two if two in known else _OTHERS] += count
    rows, columns = [START, *names, *extra], [*names, *extra, END]
    lead = "Each line is a tool; its cells say how often another tool, the same one or the answer comes next."
    cells = [[counts[one, two] for two in columns] for one in rows]
    yield b.MatrixBlock(title="Which tool comes next", lead=lead, rows=rows, columns=columns, counts=cells)


def _lengths(stats: DatasetStats) -> b.ReportSection:
    named = {
        "Turns of a row": stats.turns,
        "Steps of a row": stats.steps,
        "Tool calls of a row": stats.calls,
        "Messages of a row": stats.messages,
        "Characters of a row": stats.chars,
    }
    blocks = [block for name, values in named.items() for block in b.make_histogram(name, values, "rows")]
    lead = "How many rows have which length. Hold the pointer over a bar for its numbers."
    return b.ReportSection("lengths", "Lengths", lead, blocks)


def _kinds(stats: DatasetStats) -> b.ReportSection:
    notes = {
        kind: f"{stats.kinds_shown[kind]:,} rows show it in all"
        for kind, met in stats.kinds_met.items()
        if stats.kinds_shown[kind] > met
    }
    kinds = "Kinds of tool use: shown, of planned"
    models = [
        (role, model, f"{count:,}")
        for role, names in sorted(stats.models.items())
        for model, count in names.most_common()
    ]
    blocks = (
        *b.make_bars(kinds, stats.kinds_planned, "rows", parts=stats.kinds_met, part="of", notes=notes),
        *b.make_bars("Difficulties", stats.difficulties, "rows"),
        *b.make_bars("Conversations", stats.conversations, "rows"),
        *b.make_table(("role", "model", "rows"), models, (2,), "Models"),
    )
    lead = "For each kind of tool use: how many rows were planned for it, and how many of them show it."
    return b.ReportSection("kinds", "Kinds, difficulties and models", lead, blocks)


def _quality(stats: DatasetStats) -> b.ReportSection:
    notes = {
        name: "; ".join([f"{count:,} × {why}" for why, count in reasons.most_common(3) if why])[:400]
        for name, reasons in stats.reasons.items()
    }
    lead = (
        f"{stats.rows:,} rows were kept and {stats.rejected:,} samples were rejected. A sample can be rejected for "
        "several reasons."
    )
    if stats.duplicates:
        lead += f" {stats.duplicates:,} rows have the same messages as an earlier one."
    names = dict.fromkeys((*stats.filters, *stats.rejections))
    filters = [(name, f"{stats.filters[name]:,}", f"{stats.rejections[name]:,}") for name in names]
    blocks = (
        *b.make_bars("Rejected by", stats.rejections, "samples", notes=notes, kind="bad"),
        *b.make_table(("filter", "passed", "rejected"), filters, (1, 2), "Filters"),
        *b.make_bars("How the conversations ended", stats.stop_reasons, "rows"),
    )
    return b.ReportSection("quality", "Quality", lead, blocks)


def _time(folder: Path, stats: DatasetStats) -> b.ReportSection:
    uses = [
        (
            "rows",
            f"{stats.input_tokens:,}",
            f"{stats.output_tokens:,}",
            _cost(stats.cost_usd, stats.rows_without_cost),
        )
    ]
    if stats.rejected:
        used = stats.rejected_input_tokens, stats.rejected_output_tokens
        cost = _cost(stats.rejected_cost_usd, stats.rejected_without_cost)
        uses.append(("rejected samples", f"{used[0]:,}", f"{used[1]:,}", cost))
    lines = _read_times(DatasetFolder(folder).ledger) if folder.is_dir() else ()
    has_use = lines or stats.input_tokens or stats.rejected_input_tokens + stats.rejected_output_tokens
    table = b.make_table(
        ("spent on", "input tokens", "output tokens", "cost"), uses, (1, 2, 3), "Tokens and cost"
    )
    return b.ReportSection("time", "Time and cost", "", (*lines, *table) if has_use else ())


def _read_times(ledger: Path) -> Sequence[b.LineBlock]:
    """Return rows, tokens and cost over time; nothing without a ledger with two attempts at least."""
    if not ledger.exists():
        return ()
    with Ledger(ledger, is_readonly=True) as opened:
        entries = sorted(
            [
                (item.at, item.status, item.input_tokens + item.output_tokens, item.cost_usd or 0.0)
                for item in opened.entries()
            ]
        )
    if len(entries) < 2 or entries[0][0] == entries[-1][0]:
        return ()
    begin, seconds = entries[0][0], entries[-1][0] - entries[0][0]
    edges = [begin + seconds * (index + 1) / _BINS for index in range(_BINS - 1)]

    def sums(value: Callable[[tuple[float, str, int, float]], float]) -> list[float]:
        bins = [0.0] * _BINS
        for entry in entries:
            bins[bisect_right(edges, entry[0])] += value(entry)
        return list(accumulate(bins))

    kept, rejected = sums(lambda it: it[1] == ItemStatus.KEPT), sums(lambda it: it[1] == ItemStatus.REJECTED)
    tokens, cost = sums(lambda it: it[2]), sums(lambda it: it[3])
    ends = strftime("%Y-%m-%d %H:%M UTC", gmtime(begin)), f"after {_write_seconds(seconds)}"
    point = f"part of {_BINS}, part"
    rows = [b.Series("rows kept", kept, "area")]
    rows += [b.Series("samples rejected", rejected, "bad")] if rejected[-1] else []
    about = f"{kept[-1]:,.0f} kept, {rejected[-1]:,.0f} rejected"
    found = [
        b.LineBlock(title="Rows over time", about=about, series=rows, ends=ends, point=point),
        b.LineBlock(
            title="Tokens over time",
            about=f"{tokens[-1]:,.0f} in all",
            series=[b.Series("tokens", tokens, "area")],
            ends=ends,
            point=point,
        ),
    ]
    if cost[-1]:
        line, about = b.Series("cost in USD", cost, "area"), f"{b.write_dollars(cost[-1])} in all"
        found.append(
            b.LineBlock(title="Cost over time", about=about, series=[line], ends=ends, unit="$", point=point)
        )
    return found


def _browse(folder: Path, contents: DatasetContents) -> b.ReportSection:
    items, parts = [], []
    for sample, what in ((contents.kept, "rows"), (contents.rejected, "rejected samples")):
        rows, whole = sample.rows()
        items += rows
        if rows:
            drawn = "" if whole == len(rows) else f"; {whole:,} of them (drawn at random) show their messages"
            parts.append(f"all {len(rows):,} {what}{drawn}")
    absent = (
        f"The messages of this row are not in the page. Read it with: treadle dataset show {folder} {{id}}"
    )
    unit = "rows and rejected samples" if contents.stats.rejected else "rows"
    block = b.RowBlock(items=items, filters=_HEADS, unit=unit, absent=absent)
    lead = f"To search: {' and '.join(parts)}. Long texts are cut."
    return b.ReportSection("browse", "Rows", lead, (block,) if items else ())


def _write_head(entry: RowEntry, *, is_rejected: bool) -> dict[str, Json]:
    """Return what the list shows of a row."""
    sample, messages = entry.row.lineage.sample, entry.row.messages
    asked = next((message.content for message in messages if message.role is Role.USER), "")
    failed = [item.filter for item in entry.verdicts if not item.is_kept]
    tools = sorted({call.name for message in messages for call in message.tool_calls})
    chips = [(sample.kind.replace("_", " "), "")] if sample is not None and sample.kind else []
    if is_rejected:
        chips.append((failed[0] if failed else "rejected", "bad"))
    elif sample is not None and sample.is_verified:
        chips.append(("results verified", "good"))
    if not is_rejected and entry.row.weight != 1:
        chips.append((f"weight {entry.row.weight:g}", "bad"))
    else:
        chips.append(("not verified" if tools else "no calls", ""))
    keys: dict[str, Json] = {"status": "rejected" if is_rejected else "kept", "tool": tools, "filter": failed}
    if sample is not None:
        keys |= {"kind": sample.kind or [], "topic": " › ".join(sample.topic)}
    return {"id": entry.row_id, "text": " ".join(asked[:300].split())[:160], "chips": chips, "keys": keys}


def _texts_of(entry: RowEntry) -> Iterator[str]:
    """Yield the texts by which a row is found."""
    lineage, sample = entry.row.lineage, entry.row.lineage.sample
    yield from (lineage.run_id, lineage.model or "", lineage.stop_reason)
    yield from (sample.difficulty, sample.persona) if sample is not None else ()
    for message in entry.row.messages:
        yield from (message.content, message.reasoning or "")
        yield from [f"{call.name} {call.arguments}" for call in message.tool_calls]
    yield from [f"{item.filter} {item.reason}" for item in entry.verdicts]


def _write_body(entry: RowEntry) -> dict[str, Json]:
    """Return what a row shows when it is opened."""
    lineage, sample, messages = entry.row.lineage, entry.row.lineage.sample, entry.row.messages
    facts = [f"run {lineage.run_id}", lineage.model or "", f"ended with {lineage.stop_reason}"]
    verdicts: list[Json] = [
        {"filter": item.filter, "is_passed": item.is_passed, "reason": b.cut_text(item.reason)}
        for item in entry.verdicts
    ]
    if sample is not None:
        facts = [" › ".join(sample.topic), sample.difficulty, sample.persona, *facts, f"seed {sample.seed}"]
        facts.append(f"{sample.input_tokens + sample.output_tokens:,} tokens")
        verdicts = verdicts or [
            {"filter": name, "is_passed": is_passed, "reason": b.cut_text(note)}
            for notes, is_passed in ((sample.filters, True), (sample.lowered, False))
            for name, note in notes.items()
        ]
    left = len(messages) - _MAX_MESSAGES
    return {
        "facts": [b.cut_text(fact, 300) for fact in facts if fact],
        "messages": b.write_conversation(messages[:_MAX_MESSAGES], frozenset(lineage.simulated)),
        "verdicts": verdicts,
        "cut": f"{left:,} more messages" if left > 0 else "",
    }


def _write_seconds(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 3600:,.1f} h" if seconds >= 7200 else f"{seconds / 60:,.1f} min"
    return f"{seconds:.1f} s"


def _cost(cost_usd: float, unknown: int) -> str:
    """Return a cost without the `unknown` ones."""
    if unknown and not cost_usd:
        return "unknown"
    return b.write_dollars(cost_usd) + ("+" if unknown else "")


def _short(number: int) -> str:
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if number >= size:
            return f"{number / min(size, 1_000 if unit == 'k' else size):,.1f}{unit}"
    return f"{number:,}"
