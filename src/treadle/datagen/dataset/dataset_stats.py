"""Statistics of a dataset, collected in one pass over its rows and one over its rejected samples.

The memory that this takes grows with the number of different topics and with 16 bytes for each row, not with the
texts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path

from msgspec import Struct, field

from treadle.core.types import Message, Role
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.entries import RowEntry, digest_of, make_digest, read_entries
from treadle.datagen.quality.exchanges import count_turns
from treadle.datagen.quality.protocol import FilterVerdict
from treadle.datagen.topics.topic_files import load_topics
from treadle.datagen.topics.topic_graph import TopicGraph
from treadle.export.rows import Row

START, END = "(start)", "(answer)"
"""The names that stand for the user's message and for the answer in the order of the tool calls."""


SPREADS = ("turns", "steps", "calls", "messages", "chars")
"""The statistics that are distributions."""


class Spread(Struct):
    """The distribution of a number as counts of its values."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, value: int) -> None:
        self.counts[value] += 1

    @property
    def rows(self) -> int:
        """How many values there are."""
        return self.counts.total()

    @property
    def total(self) -> int:
        """The sum of the values."""
        return sum(value * count for value, count in self.counts.items())

    @property
    def mean(self) -> float:
        """The mean of the values; 0 if there are none."""
        return self.total / self.rows if self.rows else 0.0

    def quantile(self, share: float) -> int:
        """Return the smallest value that at least this share of the values does not exceed; 0 if there are none."""
        wanted = share * self.rows
        passed = 0
        for value in sorted(self.counts):
            passed += self.counts[value]
            if passed >= wanted:
                return value
        return 0


class Summary(Struct, frozen=True):
    """A distribution in six numbers."""

    total: int
    mean: float
    least: int
    median: int
    p95: int
    """The 95th percentile."""
    most: int

    @classmethod
    def of(cls, spread: Spread) -> "Summary":
        """Return the summary of a distribution."""
        least, median, p95, most = (spread.quantile(share) for share in (0.0, 0.5, 0.95, 1.0))
        return cls(spread.total, round(spread.mean, 2), least, median, p95, most)


class DatasetStats(Struct, kw_only=True):
    rows: int = 0
    rejected: int = 0
    turns: Spread = field(default_factory=Spread)
    steps: Spread = field(default_factory=Spread)
    """The number of assistant messages, with or without calls, of a row."""
    calls: Spread = field(default_factory=Spread)
    messages: Spread = field(default_factory=Spread)
    chars: Spread = field(default_factory=Spread)
    """The characters of messages, reasoning and arguments."""
    tools: Counter[str] = field(default_factory=Counter)
    """The number of calls by tool."""
    tool_errors: Counter[str] = field(default_factory=Counter)
    """The number of calls with an error as the result, by tool."""
    orders: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a call of the second tool follows a call of the first one; `START` and `END` are the ends."""
    sequences: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """The number of turns by the order of their tool calls, in which a repeated tool counts once."""
    offered: Counter[str] = field(default_factory=Counter)
    """The number of rows that offer a tool to the model, by tool."""
    kinds_planned: Counter[str] = field(default_factory=Counter)
    kinds_shown: Counter[str] = field(default_factory=Counter)
    """The number of rows that show a kind of tool use. A row can show several kinds."""
    kinds_met: Counter[str] = field(default_factory=Counter)
    """The number of rows that show the kind that was wanted."""
    difficulties: Counter[str] = field(default_factory=Counter)
    conversations: Counter[str] = field(default_factory=Counter)
    datasets: Counter[str] = field(default_factory=Counter)
    stop_reasons: Counter[str] = field(default_factory=Counter)
    filters: Counter[str] = field(default_factory=Counter)
    """The number of rows that passed a filter, by filter."""
    lowered: int = 0
    """The number of rows that filters have given a lower weight."""
    lowered_by: Counter[str] = field(default_factory=Counter)
    """The number of these rows by filter. Several filters can lower one row."""
    models: dict[str, Counter[str]] = field(default_factory=dict)
    """The number of rows by model, for each role."""
    sources: Counter[str] = field(default_factory=Counter)
    """The number of rows by the origin of their initial files."""
    prices: dict[str, Counter[str]] = field(default_factory=dict)
    topics: Counter[str] = field(default_factory=Counter)
    """The number of rows by topic id."""
    topic_paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    input_tokens: int = 0
    """The input tokens of rows, without those of their rejected attempts, which the rows' lineages include."""
    output_tokens: int = 0
    cost_usd: float = 0.0
    rows_without_cost: int = 0
    """The number of rows whose cost is unknown."""
    duplicates: int = 0
    """The number of rows whose messages are the same as those of an earlier row."""
    repeated_ids: int = 0
    with_calls: int = 0
    """The number of rows with tool calls. Only these can be verified."""
    verified: int = 0
    """The number of rows with tool calls that are marked as verified."""
    statements: int = 0
    """The number of statements of answers that were held against results and requests."""
    grounded: int = 0
    """The number of these statements that results or requests show."""
    controls: int = 0
    """The number of statements that the rules are sure of, about which a judge was asked too."""
    agreed: int = 0
    """The number of these controls that the judge confirmed."""
    repaired: int = 0
    """The number of rows whose last answer was asked for again."""
    from_teacher: int = 0
    from_liar: int = 0
    """How many rows `mock:mediocre` wrote, which lies on purpose."""
    simulated: int = 0
    """The number of rows with a simulated result."""
    simulated_calls: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    """The number of rejected samples by the filter that rejected them. Several filters can reject one sample."""
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    """For each filter, the most frequent reasons, with their counts."""
    rejected_input_tokens: int = 0
    rejected_output_tokens: int = 0
    rejected_cost_usd: float = 0.0
    rejected_without_cost: int = 0
    """The number of rejected samples whose cost is unknown."""

    _contents: set[bytes] = field(default_factory=set)
    _ids: set[bytes] = field(default_factory=set)
    _spent: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    """What the rejected attempts at a sample have used so far, by the sample's id."""

    @property
    def verified_share(self) -> float | None:
        """The share of the rows with tool calls that are verified; `None` if no row has calls."""
        return self.verified / self.with_calls if self.with_calls else None

    def describe_lowered(self) -> str:
        """Return, in a sentence for people, how many rows have a lower weight, and by which filters."""
        filters = ", ".join([f"{name} {count:,}" for name, count in self.lowered_by.most_common()])
        return f"{self.lowered:,} of {self.rows:,} rows were kept with a lower weight (by filter: {filters})."

    def describe_built_in(self) -> list[str]:
        """Return sentences for people about the rows that Treadle's own models wrote."""
        return [
            f"{which} rows were written by Treadle's built-in {writer}."
            for count, writer in (
                (self.from_teacher, "teacher, and not by a language model"),
                (self.from_liar, "model that lies on purpose, to test filters: do not train on them"),
            )
            if (which := "All" if count == self.rows else f"{count:,} of the") and count
        ]

    def add(self, entry: RowEntry) -> None:
        """Count a kept row."""
        row = entry.row
        self.rows += 1
        self.duplicates += _is_known(self._contents, digest_of(row.messages))
        self.repeated_ids += _is_known(self._ids, make_digest(entry.row_id.encode()))
        self.stop_reasons[row.lineage.stop_reason] += 1
        self.simulated += bool(row.lineage.simulated)
        self.simulated_calls += len(row.lineage.simulated)
        self._add_messages(row)
        self._add_sample(row)

    def reject(self, entry: RowEntry) -> None:
        """Count a rejected sample. All kept rows must have been counted before."""
        self.rejected += 1
        failed = [verdict for verdict in entry.verdicts if not verdict.is_kept]
        for verdict in failed or [FilterVerdict("(no filter)", is_passed=False)]:
            self.rejections[verdict.filter] += 1
            reasons = self.reasons.setdefault(verdict.filter, Counter())
            if verdict.reason in reasons or len(reasons) < _MAX_REASONS:
                reasons[verdict.reason] += 1
        sample = entry.row.lineage.sample
        if sample is not None:
            spent = sample.input_tokens, sample.output_tokens, sample.cost_usd or 0.0
            self._add_rejected_use(sample.sample_id, spent)
            self.rejected_without_cost += sample.cost_usd is None
            self.topic_paths.setdefault(sample.topic_id, sample.topic)

    def _add_rejected_use(self, sample_id: str, spent: tuple[int, int, float]) -> None:
        """Count what a rejected attempt has used. `spent` includes all earlier attempts at the sample."""
        before = self._spent.get(sample_id, (0, 0, 0.0))
        self._spent[sample_id] = spent
        own_in, own_out, own_cost = spent[0] - before[0], spent[1] - before[1], spent[2] - before[2]
        self.rejected_input_tokens += own_in
        self.rejected_output_tokens += own_out
        self.rejected_cost_usd += own_cost
        if make_digest(sample_id.encode()) in self._ids:
            self.input_tokens -= own_in
            self.output_tokens -= own_out
            self.cost_usd -= own_cost

    def _add_messages(self, row: Row) -> None:
        counts: Counter[Role] = Counter(message.role for message in row.messages)
        errors = set(row.lineage.tool_errors)
        self.messages.add(len(row.messages))
        self.turns.add(count_turns(row.messages))
        self.steps.add(counts[Role.ASSISTANT])
        self.chars.add(count_chars(row.messages))
        self.offered.update({tool.name for tool in row.tools})
        calls = 0
        order: list[str] = []
        for message in row.messages:
            for call in message.tool_calls:
                calls += 1
                self.tools[call.name] += 1
                self.tool_errors[call.name] += call.call_id in errors
                order.append(call.name)
            if message.role is Role.ASSISTANT and not message.tool_calls:
                self._add_order(order)
                order = []
        if order:
            self._add_order(order)
        self.calls.add(calls)
        self.with_calls += calls > 0

    def _add_order(self, order: list[str]) -> None:
        """Count the tool calls of one turn."""
        self.orders.update(pairwise([START, *order, END]))
        names = tuple([name for name, _ in groupby(order)])
        if names in self.sequences or len(self.sequences) < _MAX_REASONS:
            self.sequences[names] += 1

    def _add_sample(self, row: Row) -> None:
        sample = row.lineage.sample
        if sample is None:
            self.models.setdefault("agent", Counter())[row.lineage.model or "unknown"] += 1
            self.rows_without_cost += 1
            return
        self.datasets[sample.dataset] += 1
        self.difficulties[sample.difficulty] += bool(sample.difficulty)
        self.conversations[sample.conversation] += 1
        self.kinds_shown.update(sample.kinds)
        if sample.kind is not None:
            self.kinds_planned[sample.kind] += 1
            self.kinds_met[sample.kind] += sample.kind in sample.kinds
        for found, values in ((self.models, sample.models), (self.prices, sample.prices)):
            for role, name in values.items():
                found.setdefault(role, Counter())[name] += 1
        self.sources[sample.environment] += bool(sample.environment)
        self.filters.update(sample.filters.keys())
        self.lowered += bool(sample.lowered)
        self.lowered_by.update(sample.lowered.keys())
        self.topics[sample.topic_id] += 1
        self.topic_paths.setdefault(sample.topic_id, sample.topic)
        self.input_tokens += sample.input_tokens
        self.output_tokens += sample.output_tokens
        self.cost_usd += sample.cost_usd or 0.0
        self.rows_without_cost += sample.cost_usd is None
        self.statements += sample.statements
        self.grounded += sample.grounded
        self.controls += sample.controls
        self.agreed += sample.agreed
        self.repaired += sample.repairs > 0
        self.verified += sample.is_verified and any(message.tool_calls for message in row.messages)
        self.from_liar += sample.is_from_liar
        self.from_teacher += sample.is_from_teacher and not sample.is_from_liar


_MAX_REASONS = 1_000
"""How many different reasons of each filter are counted, and how many different orders of tool calls."""


def collect(path: Path) -> DatasetStats:
    """Return the statistics of a dataset's folder or of a file of rows.

    Raises: as `read_entries` does.
    """
    stats = DatasetStats()
    for entry in read_entries(path):
        stats.add(entry)
    for entry in read_entries(path, is_rejected=True):
        stats.reject(entry)
    return stats


def count_chars(messages: Sequence[Message]) -> int:
    """Return the number of characters of messages, of their reasoning and of their calls' arguments."""
    return sum(
        len(message.content)
        + len(message.reasoning or "")
        + sum(len(call.arguments) for call in message.tool_calls)
        for message in messages
    )


def _is_known(known: set[bytes], digest: bytes) -> bool:
    """Return whether `digest` is known, and add it."""
    if digest in known:
        return True
    known.add(digest)
    return False


def describe(stats: DatasetStats) -> dict[str, object]:
    """Return the statistics as a mapping for JSON."""
    spreads = {name: Summary.of(getattr(stats, name)) for name in SPREADS}
    plain = {
        name: getattr(stats, name)
        for name in stats.__struct_fields__
        if not name.startswith("_") and name not in (*spreads, *_NOT_LISTED)
    }
    counts = {name: +value if isinstance(value, Counter) else value for name, value in plain.items()}
    reasons = {name: dict(found.most_common(5)) for name, found in stats.reasons.items()}
    return {
        **counts,
        **spreads,
        "topics": len(stats.topics),
        "verified_share": stats.verified_share,
        "cost_usd": None if stats.rows_without_cost else stats.cost_usd,
        "reasons": reasons,
    }


_NOT_LISTED = ("orders", "sequences", "topic_paths", "topics", "reasons", "prices")


def read_topics(path: Path) -> TopicGraph | None:
    """Return the topics in the folder of a dataset; `None` if there are none.

    Raises: `ConfigError` if they cannot be read.
    """
    place = DatasetFolder(path).topics
    return load_topics(place) if path.is_dir() and place.exists() else None


def read_leaves(path: Path, stats: DatasetStats) -> Mapping[tuple[str, ...], int]:
    """Return the number of rows of each leaf topic, those without rows included, by the path of the topic."""
    leaves: Counter[tuple[str, ...]] = Counter()
    for key, count in stats.topics.items():
        if names := stats.topic_paths.get(key):
            leaves[names] += count
    if (graph := read_topics(path)) is not None:
        for topic in graph.leaves():
            leaves.setdefault(topic.path, 0)
    return leaves
