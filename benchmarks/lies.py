"""How well the filters of a generation tell lies from honest answers, on the conversations of `mock:mediocre`.

The model's texts of the split `held` are never used to improve a filter, but their figures are looked at meanwhile;
those of `fresh` were written by a hand that had not seen the filters, and are for measuring afterwards.
Those of `later` were written by a hand that had not seen the filters either, and are not used for tuning; those of
`fourth`, `fifth` and `sixth`, by another such hand, may be; those of `sixth` measured the filters once before that.
Those of `seventh` to `twentysecond` and of `twentyfourth` to `twentysixth` each measured the filters before these
were improved with them; the hand of `tenth` was asked for unusual layouts and constructions. Those of `UNSEEN` are
by hands that had not seen the filters, nobody read why their answers are rejected, and no filter was improved with
them. The package has the texts of `held` alone, which its default is. `TREADLE_TEXTS` chooses the split: one of
`SPLITS`, or the path of a folder with another. Whether an answer is a lie, and of which kind, is known from the
model itself.
"""

import asyncio
import json
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.common import Figure
from treadle.core.errors import ConfigError
from treadle.core.types import Json, Role
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.entries import RowEntry, read_entries
from treadle.datagen.generation import generate
from treadle.testbed.mediocre.mediocre_model import AnswerTruth, MediocreOptions, read_options, truth_of
from treadle.testbed.mediocre.mock_world import define_tools, make_documents
from treadle.tools.shell import make_shell

FOLDER = Path(__file__).parent / "texts"
"""The texts that the package does not have."""
KNOWN = (
    "tune", "held", "fresh", "later", "fourth", "fifth", "sixth", "seventh", "eighth",
    "ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth",
    "eighteenth", "nineteenth", "twentieth", "twentyfirst", "twentysecond", "twentyfourth", "twentyfifth",
    "twentysixth",
)  # fmt: skip
UNSEEN = ("twentythird", "twentyseventh", "twentyeighth", "twentyninth")
"""The splits that are kept for measuring: no filter is trained or tuned on them."""
SPLITS = (*KNOWN, *UNSEEN)
"""The splits of texts: first those that filters may learn from, each in the order in which they were written."""
SAMPLES = int(os.environ.get("TREADLE_ROWS", "300"))
TEXTS = os.environ.get("TREADLE_TEXTS", "held")
ALONE = (">= 0.92", "<= 0.08", "<= 0.05", "<= 0.25")
JUDGED = (">= 0.98", "<= 0.04", "<= 0.02", "<= 0.25")
"""The conditions on the figures without and with a judge."""


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
        return bool(self.truths) and self.is_known and all([item.sort == "honest" for item in self.truths])

    @property
    def is_known(self) -> bool:
        """Whether the truth about every answer is known."""
        messages = self.entry.row.messages
        answers = [item for item in messages if item.role is Role.ASSISTANT and not item.tool_calls]
        return len(answers) == len(self.truths)

    @property
    def filters(self) -> list[str]:
        """The filters that rejected it."""
        return [verdict.filter for verdict in self.entry.verdicts if not verdict.is_passed]

    @property
    def tokens(self) -> int:
        """What its runs have used."""
        sample = self.entry.row.lineage.sample
        return 0 if sample is None else sample.input_tokens + sample.output_tokens


def find_texts(name: str) -> str:
    """Return what the model's option `texts` must have for a split: its name, or the path of its folder."""
    return str(FOLDER / name) if (FOLDER / name).is_dir() else name


def _sections(folder: Path, texts: str) -> dict[str, Json]:
    """Return the tools of each part of the generation, after making its folder."""
    folder.mkdir()
    definitions = folder / "tools.json"
    definitions.write_text(json.dumps(define_tools(texts)))
    documents = make_documents(texts)
    found: dict[str, Json] = {"mock": {"use": [f"mock:{definitions}"]}}
    for name in ("files", "vfs", "python", "shell"):
        found[name] = {"use": [name], "files": documents}
    try:
        make_shell().tools()
    except ConfigError:
        del found["shell"]
    return found


async def collect(
    folder: Path,
    texts: str = TEXTS,
    *,
    samples: int = SAMPLES,
    has_judge: bool = False,
    has_grounding: bool = True,
    repairs: int = 0,
) -> list[Told]:
    """Generate with each set of tools, and return all conversations.

    The judge of statements is right in 95 %. Without `has_grounding`, no answer is rejected for what it states.
    `repairs` is how often an answer alone is asked for again; answers that were repaired are not among those that
    are returned.
    """
    texts = find_texts(texts)
    sections = await asyncio.to_thread(_sections, folder, texts)
    options: MediocreOptions = read_options(f"mediocre:texts={texts}")
    found: list[Told] = []
    for name, tools in sections.items():
        config = GenerationConfig.model_validate(
            {
                "name": name,
                "models": {"default": f"mock:mediocre:texts={texts}"},
                "topics": {"prompt": "Office work", "degree": 4, "depth": 2},
                "generation": {
                    "num_samples": max(1, samples // len(sections)),
                    "conversation": {"min_turns": 1, "max_turns": 2},
                    "answer_repairs": repairs,
                },
                "tools": tools,
                "quality": {"filters": {"statements": True} if has_judge else {"grounding": has_grounding}},
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


def report(found: list[Told], wanted: Sequence[str], where: str = "") -> list[Figure]:
    """Return the figures of the conversations, with the conditions that are `wanted` of them."""
    lying = [item for item in found if item.lies]
    honest = [item for item in found if item.is_honest]
    kept = [item for item in found if item.is_kept]
    caught = [item for item in lying if not item.is_kept]
    rejected = [item for item in honest if not item.is_kept]
    untrue = [item for item in kept if item.lies]
    unknown = sum([not item.is_known for item in kept])
    kinds = Counter([kind for item in lying for kind in item.lies])
    by_kind = Counter([kind for item in caught for kind in item.lies])
    by_filter = Counter([name for item in rejected for name in item.filters])
    lost = sum([item.tokens for item in found if not item.is_kept])
    tokens = sum([item.tokens for item in found])
    shown = ", ".join([f"{kind} {by_kind[kind]}/{count}" for kind, count in sorted(kinds.items())])
    return [
        Figure(name + where, value, condition, detail)
        for (name, value, detail), condition in zip(
            (
                ("lies caught", _share(caught, lying), f"{len(caught)} of {len(lying)}: {shown}"),
                (
                    "honest conversations rejected",
                    _share(rejected, honest),
                    f"{len(rejected)} of {len(honest)}; {dict(by_filter.most_common())}",
                ),
                (
                    "kept rows that lie",
                    _share(untrue, kept),
                    f"{len(untrue)} of {len(kept)}; {unknown} unknown",
                ),
                ("tokens of rejected work", lost / max(1, tokens), f"{lost:,} of {tokens:,}"),
            ),
            wanted,
            strict=True,
        )
    ]


def _share(part: list[Told], whole: list[Told]) -> float:
    return len(part) / max(1, len(whole))


async def measure() -> list[Figure]:
    """Measure without and with a judge.

    What is spent is measured as a generation works by default: with repairs.
    """
    with tempfile.TemporaryDirectory(prefix="treadle-bench-", dir=".") as folder:
        place = await asyncio.to_thread(Path(folder).absolute)
        figures = report(await collect(place / "once"), ALONE)[:3]
        spent = report(await collect(place / "repaired", repairs=2), ALONE, " with repairs")[2:]
        judged = report(await collect(place / "judged", has_judge=True), JUDGED, " with a judge")[:3]
    return [*figures, *spent, *judged]
