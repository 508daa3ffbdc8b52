"""How well the filters of a generation tell lies from honest answers, on the conversations of `mock:mediocre`.

The model's texts of the split `held` are never used to improve a filter; `TREADLE_TEXTS=tune` measures with the
others. Whether an answer is a lie, and of which kind, is known from the model itself.
"""

import asyncio
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from benchmarks.common import Figure
from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.entries import RowEntry, read_entries
from treadle.datagen.generation import generate
from treadle.testbed.mediocre.mediocre_model import AnswerTruth, MediocreOptions, read_options, truth_of
from treadle.testbed.mediocre.mock_world import define_tools, make_documents
from treadle.tools.shell import make_shell

SAMPLES = int(os.environ.get("TREADLE_ROWS", "300"))
TEXTS = os.environ.get("TREADLE_TEXTS", "held")
MODEL = f"mock:mediocre:texts={TEXTS}"


class Told(Struct, frozen=True):
    """One conversation with the truth about it, and what became of it."""

    entry: RowEntry
    truths: tuple[AnswerTruth, ...]
    is_kept: bool

    @property
    def lies(self) -> list[str]:
        """The kinds of its lies."""
        return [item.falsehood.kind for item in self.truths if item.falsehood is not None]

    @property
    def is_honest(self) -> bool:
        """Whether every answer is honest and complete."""
        return bool(self.truths) and all([item.sort == "honest" for item in self.truths])

    @property
    def filters(self) -> list[str]:
        """The filters that rejected it."""
        return [verdict.filter for verdict in self.entry.verdicts if not verdict.is_passed]

    @property
    def tokens(self) -> int:
        """What its runs have used."""
        sample = self.entry.row.lineage.sample
        return 0 if sample is None else sample.input_tokens + sample.output_tokens


def _sections(folder: Path) -> Iterator[tuple[str, Json]]:
    """Yield the tools of each part of the generation."""
    definitions = folder / "tools.json"
    definitions.write_text(json.dumps(define_tools(TEXTS)))
    documents = make_documents(TEXTS)
    yield "mock", {"use": [f"mock:{definitions}"]}
    yield "files", {"use": ["files"], "files": documents}
    yield "vfs", {"use": ["vfs"], "files": documents}
    yield "python", {"use": ["python"], "files": documents}
    try:
        make_shell().tools()
    except ConfigError:
        return
    yield "shell", {"use": ["shell"], "files": documents}


async def collect(folder: Path, quality: Json = None, *, repairs: int = 0) -> list[Told]:
    """Generate with each set of tools, and return all conversations. `repairs` is how often an answer alone is
    asked for again; answers that were repaired are not among those that are returned."""
    sections = dict(_sections(folder))
    options: MediocreOptions = read_options(MODEL.removeprefix("mock:"))
    found: list[Told] = []
    for name, tools in sections.items():
        config = GenerationConfig.model_validate(
            {
                "name": name,
                "models": {"default": MODEL},
                "topics": {"prompt": "Office work", "degree": 4, "depth": 2},
                "generation": {
                    "num_samples": max(1, SAMPLES // len(sections)),
                    "answer_repairs": repairs,
                    "conversation": {"min_turns": 1, "max_turns": 2},
                },
                "tools": tools,
                "quality": quality or {},
                "output": {"path": str(folder / name)},
            }
        )
        result = await generate(config, DatasetFolder(folder / name))
        assert result.end.error is None, result.end
        for is_rejected in (False, True):
            for entry in read_entries(folder / name, is_rejected=is_rejected):
                row = entry.row
                truths = tuple(truth_of(row.messages, row.tools, options))
                found.append(Told(entry, truths, not is_rejected))
    return found


def report(found: list[Told]) -> list[Figure]:
    """Return the figures of the conversations."""
    lying = [item for item in found if item.lies]
    honest = [item for item in found if item.is_honest]
    kept = [item for item in found if item.is_kept]
    caught = [item for item in lying if not item.is_kept]
    rejected = [item for item in honest if not item.is_kept]
    untrue = [item for item in kept if item.lies]
    kinds = Counter([kind for item in lying for kind in item.lies])
    by_kind = Counter([kind for item in caught for kind in item.lies])
    by_filter = Counter([name for item in rejected for name in item.filters])
    lost = sum([item.tokens for item in found if not item.is_kept])
    tokens = sum([item.tokens for item in found])
    shown = ", ".join([f"{kind} {by_kind[kind]}/{count}" for kind, count in sorted(kinds.items())])
    return [
        Figure("lies caught", _share(caught, lying), ">= 0.92", f"{len(caught)} of {len(lying)}: {shown}"),
        Figure(
            "honest conversations rejected",
            _share(rejected, honest),
            "<= 0.08",
            f"{len(rejected)} of {len(honest)}; {dict(by_filter.most_common())}",
        ),
        Figure("kept rows that lie", _share(untrue, kept), "<= 0.05", f"{len(untrue)} of {len(kept)}"),
        Figure("tokens of rejected work", lost / max(1, tokens), "<= 0.25", f"{lost:,} of {tokens:,}"),
    ]


def _share(part: list[Told], whole: list[Told]) -> float:
    return len(part) / max(1, len(whole))


async def measure() -> list[Figure]:
    """Measure without a judge."""
    with tempfile.TemporaryDirectory(prefix="treadle-bench-", dir=".") as folder:
        place = await asyncio.to_thread(Path(folder).absolute)
        once, repaired = place / "once", place / "repaired"
        once.mkdir()
        repaired.mkdir()
        figures = report(await collect(once))
        # What is spent is measured as a generation works by default: with repairs.
        spent = report(await collect(repaired, repairs=2))
        kept = Figure("kept rows that lie, with repairs", spent[2].value, "<= 0.05", spent[2].detail)
        return [*figures[:3], kept, spent[3]]
