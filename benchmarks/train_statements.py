"""Train the weights of statements: `python -m benchmarks.train_statements` (needs numpy).

They learn from the answers of `mock:mediocre`, whose ledger says what is untrue, over the splits of its texts in
`benchmarks.lies.KNOWN`, from answers of the oracle, from the scenes of the tests, and from the sentences of
`data/remarks.toml`, by logistic regression. What is printed is measured on each split by weights that were trained
without it; the rules know these splits, so that texts that nobody has seen are harder than that.
`TREADLE_CONVERSATIONS` names a folder that keeps the conversations for the next training.
"""

import asyncio
import json
import os
import pickle
import random
import re
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import exp
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.lies import KNOWN, Told, collect
from treadle import Agent, open_journal, task_set
from treadle.core.types import Effect, Message, Role, ToolCall, ToolSpec
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.quality.filters.grounding import (
    DOUBTFUL,
    Finding,
    GroundingFilter,
    GroundingSettings,
    lenience,
)
from treadle.datagen.quality.protocol import Resources
from treadle.datagen.quality.statements import statement_features
from treadle.datagen.quality.statements.doubts import Doubt, DoubtKind
from treadle.datagen.quality.statements.statements import StatementKind
from treadle.datagen.scenarios.scenario import Kind
from treadle.export.rows import load_row
from treadle.tasks.files import TASK_SET
from treadle.testbed import oracle_for
from treadle.testbed.mediocre.composition import Falsehood
from treadle.testbed.mediocre.figures import FIGURES
from treadle.testbed.mediocre.ledger_judge import overlaps

SAMPLES = int(os.environ.get("TREADLE_ROWS", "600"))
SCENES = Path(__file__).parents[1] / "tests/data/grounding"
REMARKS = Path(__file__).parent / "data/remarks.toml"
WEIGHTS = Path(statement_features.__file__).parent / "statement_weights.json"
KEPT = os.environ.get("TREADLE_CONVERSATIONS", "")
"""A folder that keeps the conversations, so that the next training reads them instead of making them again."""
RIDGE, WORD_RIDGE, STEPS = 3.0, 24.0, 800
"""How strongly weights are held small, those of words more than others, and how many steps are made."""
LEAST_SEEN, LEAST_PARTS, LEAST_WEIGHT = 10, 4, 0.2
"""In how many examples, and in how many of the splits and other sources, a feature must occur: what only a few
hands write says little about others. Smaller weights are left out: they change nothing that is measured."""
LIMITS = tuple(sorted({0.09, 0.11, DOUBTFUL, 0.18, 0.22, 0.26, 0.33}))
"""The degrees of doubt for which figures are printed."""
WORST = 3
"""Of how many splits the worst figures are averaged, each figure by itself."""
MOST = 3
"""How often equal examples of a split count."""
_NUMBER = re.compile(r"(?<![\w./:-])\d{3,}(?:\.\d+)?(?![\w/:-]|\.\d)")
_NAME = re.compile(r"(?<=[a-z:] )[A-Z][a-z]+(?=[ -][A-Z]|\.|$)", re.MULTILINE)
_NAMES = ("Hildegard", "Okonkwo", "Thaddeus", "Winterbottom", "Ravenna", "Oyelaran")
SOLVED = 12
"""How many tasks of each family the oracle solves. They are others than those of the tests."""
SCENE_COPIES = 16
"""How often the scenes of the tests count once more: they are few, and by other hands."""
COPIES, FIRST, SPARSE, SHARES = 4, 0.4, 16, 8
"""In how many answers each sentence of `REMARKS` stands, in which share of them at the beginning, of how many
conversations one lends its answers, and into how many parts the sentences are divided: each counts as one hand."""
REMARK_COPIES = 1
"""How often these parts count once more."""

Table = Counter[tuple[frozenset[str], bool]]
_Row = np.ndarray[Any, Any]
_FILTER = GroundingFilter(
    GroundingSettings(), Resources(config=GenerationConfig.model_validate({"topics": {"prompt": ""}}))
)


class Example(Struct, frozen=True):
    """A statement with its label."""

    features: frozenset[str]
    is_untrue: bool | None
    """`None` if it is not known."""
    doubt: Doubt
    kind: StatementKind

    def weigh(self, weights: dict[str, float]) -> float:
        """Return its degree of doubt by some weights."""
        if self.doubt.is_sure:
            return 1.0
        total = sum([weights.get(name, 0.0) for name in self.features])
        degree = 1 / (1 + exp(-total)) if self.features else 0.0
        return degree - lenience(self.kind, self.doubt)


class Judged(Struct, frozen=True):
    """What is known about one conversation."""

    examples: list[Example]
    is_honest: bool
    has_lie: bool
    is_rejected: bool
    """Whether another filter rejects it."""


def read_told(told: Told) -> Judged:
    """Return the statements of a conversation of `mock:mediocre`."""
    row = told.entry.row
    kind = row.lineage.sample.kind if row.lineage.sample else None
    truths = {item.position: item for item in told.truths}
    examples = [
        Example(item.features, label(item, truth.falsehood), item.doubt, item.statement.kind)
        for item in _FILTER.read(row.messages, row.tools, Kind(kind) if kind else None)
        if (truth := truths.get(item.index)) is not None
    ]
    return Judged(examples, told.is_honest, bool(told.lies), not told.is_kept)


def label(finding: Finding, lie: Falsehood | None) -> bool | None:
    """Return whether a statement of an answer with a lie is untrue."""
    if lie is None:
        return False
    is_open = True if finding.doubt.kind is not DoubtKind.SEEN else None
    statement = finding.statement
    if lie.kind in FIGURES["whole_lies"]:
        return is_open
    if not (overlaps(lie.sentence, statement.sentence) or overlaps(lie.sentence, statement.text)):
        return False
    return True if any([overlaps(value, statement.text) for value in lie.claimed]) else is_open


def read_scenes(name: str) -> Iterator[Judged]:
    """Yield the answers of the scenes of a file."""
    for scene in tomllib.loads((SCENES / f"{name}.toml").read_text())["scene"]:
        messages, tools = [Message(Role.USER, scene["request"])], []
        for number, made in enumerate(scene["calls"]):
            call = ToolCall(f"c{number}", made["tool"], json.dumps(made["arguments"]))
            messages.append(Message(Role.ASSISTANT, "", (call,)))
            messages.append(
                Message(
                    Role.TOOL, made["result"].strip("\n"), call_id=call.call_id, name=call.name,
                    is_error=made.get("error", False),
                )
            )  # fmt: skip
            tools.append(ToolSpec(made["tool"], "", {}, effect=Effect(made.get("effect", "pure"))))
        kind = Kind(scene.get("kind", "chained"))
        for is_lie, texts in ((False, scene["honest"]), (True, [text for _, text in scene["lies"]])):
            for text in texts:
                found = _FILTER.read([*messages, Message(Role.ASSISTANT, text)], tuple(tools), kind)
                examples = [
                    Example(
                        item.features,
                        item.doubt.is_open or None if is_lie else False,
                        item.doubt,
                        item.statement.kind,
                    )
                    for item in found
                ]
                yield Judged(examples, not is_lie, is_lie, is_rejected=False)


def read_all(told: Sequence[Told]) -> list[Judged]:
    """Return the statements of conversations."""
    return [read_told(item) for item in told]


def read_remarks(told: Sequence[Told]) -> dict[str, list[Judged]]:
    """Return answers that are honest but for a sentence of `REMARKS`, with the statements of this sentence, in
    `SHARES` parts. The sentence begins the answer or ends it."""
    draw = random.Random(5)
    made: dict[str, list[Judged]] = defaultdict(list)
    honest = [item for item in told if item.is_honest and item.is_kept]
    for name, text in tomllib.loads(REMARKS.read_text()).items():
        is_lie = name == "untrue"
        for number, line in enumerate([line for line in text.strip().splitlines() for _ in range(COPIES)]):
            row = draw.choice(honest).entry.row
            *before, last = row.messages
            parts = [last.content.strip(), line]
            if draw.random() < FIRST:
                parts.reverse()
            gap = draw.choice(("\n\n", "\n", " ")) if parts[0][-1:] in ".!?" else "\n\n"
            found = _FILTER.read([*before, replace(last, content=gap.join(parts))], row.tools, None)
            examples = [
                Example(item.features, is_lie, item.doubt, item.statement.kind)
                for item in found
                if item.index == len(before) and overlaps(line, item.statement.sentence)
            ]
            part = f"remarks {number // COPIES % SHARES}"
            made[part].append(Judged(examples, not is_lie, is_lie, is_rejected=False))
    return made


async def solve() -> AsyncIterator[Judged]:
    """Yield answers of the oracle, and after each the same answer with another number or name."""
    draw = random.Random(7)
    for task_id in [
        f"{family.name}-{seed:04d}" for family in TASK_SET.templates for seed in range(100, 100 + SOLVED)
    ]:
        task, journal = task_set("files").get(task_id), open_journal("memory:")
        model = oracle_for(task) or ""
        agent = Agent(model, tools=["files"], journal=journal, instructions=task.instructions)
        row = load_row(journal, (await agent.run(task)).run_id)
        found = _FILTER.read(row.messages, row.tools, Kind.CHAINED)
        yield Judged(
            [Example(item.features, False, item.doubt, item.statement.kind) for item in found],
            True,
            False,
            False,
        )
        *before, last = row.messages
        for place in [*[*_NUMBER.finditer(last.content)][:2], *[*_NAME.finditer(last.content)][:2]]:
            if place[0].isalpha():
                other = draw.choice(_NAMES)
            else:
                other = str(round(float(place[0]) * draw.choice((0.6, 1.3, 1.7))) + draw.choice((-3, 4, 11)))
            text = f"{last.content[: place.start()]}{other}{last.content[place.end() :]}"
            found = _FILTER.read([*before, replace(last, content=text)], row.tools, Kind.CHAINED)
            untrue = [item for item in found if item.statement.text == other]
            made = [Example(item.features, True, item.doubt, item.statement.kind) for item in untrue]
            yield Judged(made, False, True, False)


def tabulate(part: Sequence[Judged]) -> Table:
    """Return how often each set of features with its label counts. What looks like advice also counts without that:
    the patterns of advice know the texts for which they were written."""
    own: Table = Counter()
    for item in [item for conversation in part for item in conversation.examples]:
        if item.is_untrue is not None and item.features:
            plain = frozenset([name for name in item.features if not name.endswith("advice")])
            own.update({(features, item.is_untrue) for features in (item.features, plain)})
    return Counter({key: min(count, MOST) for key, count in own.items()})


def train(tables: Iterable[Table]) -> dict[str, float]:
    """Return the weights of features by logistic regression."""
    made: Table = Counter()
    sources: Counter[str] = Counter()
    for table in tables:
        made.update(table)
        sources.update({name for features, _ in table for name in features})
    counts = Counter([name for features, _ in made for name in features])
    names = sorted(
        [name for name, count in counts.items() if count >= LEAST_SEEN and sources[name] >= LEAST_PARTS]
    )
    places = {name: place for place, name in enumerate(names)}
    held = [[places[name] for name in features if name in places] for features, _ in made]
    rows = np.repeat(np.arange(len(held)), [len(item) for item in held])
    columns = np.concatenate([np.array(item, int) for item in held])
    wanted = np.array([is_untrue for _, is_untrue in made], float)
    ridges = np.array([WORD_RIDGE if name.startswith("says ") else RIDGE for name in names])
    weights = _descend(rows, columns, wanted, np.array([*made.values()], float), ridges)
    return {
        name: round(float(weight), 2)
        for name, weight in zip(names, weights, strict=True)
        if abs(weight) >= LEAST_WEIGHT
    }


def _descend(rows: _Row, columns: _Row, wanted: _Row, counts: _Row, ridges: _Row) -> _Row:
    width = len(ridges)
    weights, first, second = np.zeros(width), np.zeros(width), np.zeros(width)
    for step in range(1, STEPS + 1):
        chance = 1 / (1 + np.exp(-np.bincount(rows, weights[columns], len(wanted))))
        slope = np.bincount(columns, ((chance - wanted) * counts)[rows], width) + ridges * weights
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        rate = 0.15 if step < 0.7 * STEPS else 0.03
        size = np.sqrt(second / (1 - 0.99**step)) + 1e-8
        weights = weights - rate * first / (1 - 0.9**step) / size
    return weights


def measure(part: Sequence[Judged], weights: dict[str, float], limit: float) -> list[float]:
    """Return the shares of caught lies, of rejected honest conversations, and of kept ones that lie."""

    def is_rejected(item: Judged) -> bool:
        return item.is_rejected or any([one.weigh(weights) >= limit for one in item.examples])

    lies = [is_rejected(item) for item in part if item.has_lie]
    honest = [is_rejected(item) for item in part if item.is_honest]
    kept = [item.has_lie for item in part if not is_rejected(item)]
    return [sum(found) / max(1, len(found)) for found in (lies, honest, kept)]


async def converse(folder: Path, split: str) -> list[Told]:
    """Return conversations of a split, with all honest and untrue answers."""
    kept = Path(KEPT) / f"{split}.pickle"
    if KEPT and await asyncio.to_thread(kept.exists):
        return cast(list[Told], pickle.loads(await asyncio.to_thread(kept.read_bytes)))
    told = await collect(folder, split, samples=SAMPLES, has_grounding=False)
    if KEPT:
        await asyncio.to_thread(kept.write_bytes, pickle.dumps(told))
    return told


async def main() -> None:
    """Collect, measure with each split left out, and write the weights."""
    parts: dict[str, list[Judged]] = {}
    with tempfile.TemporaryDirectory(prefix="treadle-bench-", dir=".") as folder:
        place = await asyncio.to_thread(Path(folder).absolute)
        told = {split: await converse(place / split, split) for split in KNOWN}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        read = {split: [pool.submit(read_all, told[split][start::2]) for start in (0, 1)] for split in KNOWN}
        remarks = pool.submit(read_remarks, [item for split in KNOWN for item in told[split][::SPARSE]])
        parts |= {split: [item for made in both for item in made.result()] for split, both in read.items()}
        parts |= remarks.result()
    parts |= {name: list(read_scenes(name)) for name in ("development", "figures")}
    parts["oracle"] = [item async for item in solve()]
    tables = {name: tabulate(part) for name, part in parts.items()}
    weights = train([*_more(tables), *tables.values()])
    lines = ",\n".join([f"{json.dumps(name)}: {weight}" for name, weight in weights.items()])
    WEIGHTS.write_text(f"{{\n{lines}\n}}\n")
    print(f"{len(weights)} weights")
    _PARTS.update(parts)
    _TABLES.update(tables)
    print("left out: lies caught, honest rejected, kept that lie, at", *LIMITS, flush=True)
    figures = []
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:  # what was read is not sent again
        for split, found in zip(KNOWN, pool.map(leave_out, KNOWN), strict=True):
            figures.append(found)
            _show(split, found)
    table = np.array(figures)
    _show("mean", np.mean(table, 0))
    table[:, :, 0] *= -1
    _show(f"worst {WORST}", np.abs(np.mean(np.sort(table, 0)[-WORST:], 0)))


_PARTS: dict[str, list[Judged]] = {}
_TABLES: dict[str, Table] = {}
"""What was read, for the processes that leave a split out."""


def leave_out(split: str) -> list[list[float]]:
    """Return the figures of a split at each limit by weights that were trained without it."""
    weights = train([*_more(_TABLES), *[table for name, table in _TABLES.items() if name != split]])
    return [measure(_PARTS[split], weights, limit) for limit in LIMITS]


def _more(tables: dict[str, Table]) -> list[Table]:
    """Return the tables that count more than once."""
    scenes = [tables[name] for name in ("development", "figures")]
    return (
        scenes * SCENE_COPIES
        + [tables[name] for name in tables if name.startswith("remarks")] * REMARK_COPIES
    )


def _show(name: str, found: Iterable[Iterable[float]]) -> None:
    print(
        f"{name:10}", *[" ".join([f"{value:.3f}" for value in item]) for item in found], sep="   ", flush=True
    )


if __name__ == "__main__":
    asyncio.run(main())
