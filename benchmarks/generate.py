"""The generation of datasets: its window, its own work for each row, its memory, and how fast it is resumed."""

import asyncio
import heapq
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace
from pyreqwest.client import Client, ClientBuilder

from benchmarks.bare import HEADERS
from benchmarks.common import Figure, serving
from benchmarks.generate_server import draw_latencies, latency
from treadle.core.events import InferenceCompleted
from treadle.core.types import Completion, Request, Role
from treadle.datagen.config.config_schema import dump
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.verification import Totals, verify_rows
from treadle.datagen.generation import generate
from treadle.datagen.generation_progress import GenerationProgress, SampleEnded
from treadle.datagen.quality.duplicates import DuplicateIndex
from treadle.datagen.samples import REJECTED, ROWS
from treadle.datagen.topics.topic_files import save_topics
from treadle.datagen.topics.topic_graph import Topic, TopicGraph, topic_id
from treadle.export.row_formats.treadle_rows import TREADLE
from treadle.export.rows import Row
from treadle.jobs.ledger import ItemOutcome, ItemStatus, Ledger, LedgerEntry, PlannedItem
from treadle.jobs.progress import JobNotice
from treadle.journal.registry import open_journal
from treadle.models.protocol import Watch
from treadle.testbed.teacher import TeacherModel

SAMPLES, WINDOW = 1000, 64
LEAVES = (40, 25)
ROUNDS = 3


@contextmanager
def open_folder() -> Iterator[Path]:
    """Yield a temporary folder, on a disk rather than in memory."""
    with tempfile.TemporaryDirectory(prefix="treadle-bench-", dir=".") as folder:
        yield Path(folder)


def _write_topics(path: Path) -> Path:
    """Write a tree of 1,000 topics, so that only samples are measured."""
    graph = TopicGraph(root_id=topic_id(("Office work",)), topics={})

    def add(path: tuple[str, ...], widths: Sequence[int]) -> str:
        made = Topic(topic_id=topic_id(path), text=path[-1], path=path, parents=[])
        if len(path) > 1:
            made.parents.append(topic_id(path[:-1]))
        graph.topics[made.topic_id] = made
        if widths:
            made.children = [add((*path, f"{path[-1]} {number}"), widths[1:]) for number in range(widths[0])]
        return made.topic_id

    add(("Office work",), LEAVES)
    save_topics(graph, path)
    return path


def _config(folder: Path, samples: int, model: object, **generation: object) -> GenerationConfig:
    return GenerationConfig.model_validate(
        {
            "name": "bench",
            "models": {"default": model},
            "topics": {"load": str(_write_topics(folder / "given.json"))},
            "generation": {"num_samples": samples, "window": WINDOW, **generation},
            "tools": {"use": ["files"], "files": "tasks:files"},
            "output": {"path": str(folder / "dataset")},
        }
    )


async def measure_window() -> list[Figure]:
    """Compare a generation with a window that does nothing but the same number of calls for each sample."""
    os.environ["OPENAI_API_KEY"] = "none"
    ratios, details = [], []
    with serving("benchmarks.generate_server") as url:
        calls: list[int] = []
        for number in range(ROUNDS + 1):
            with open_folder() as folder:
                await reset(url)
                config = _config(folder, SAMPLES, {"model": "openai:teacher", "base_url": url})
                counted: list[float] = []
                begin, cpu = time.perf_counter(), time.process_time()

                def note(
                    notice: JobNotice, progress: GenerationProgress, counted: list[float] = counted
                ) -> None:
                    if isinstance(notice, SampleEnded) and notice.status == "kept":
                        counted.append(time.perf_counter())

                result = await generate(config, DatasetFolder(folder / "dataset"), listener=note)
                assert result.progress.kept == SAMPLES, result.end
                whole, ours = time.perf_counter() - begin, counted[-1] - begin
                cpu = time.process_time() - cpu
                calls = await asyncio.to_thread(_count_calls, folder / "dataset")
            await reset(url)
            bare = await ask_bare(url, calls)
            if number:  # the first round fills the server's memory
                ratios.append(bare / ours)
                ideal = simulate(calls)
                details.append(
                    f"{ours:.2f} s to the last row, {whole:.2f} s with all files (of processor time {cpu:.2f} s), "
                    f"against {bare:.2f} s "
                    f"(computed {ideal:.2f} s); {len(calls)} samples, {sum(calls) / len(calls):.1f} calls each"
                )
    best = sorted(zip(ratios, details, strict=True))[len(ratios) // 2]
    name = f"a perfect window's time over that of a generation of {SAMPLES:,} samples"
    return [
        Figure(
            name, best[0], ">= 0.9", f"{best[1]}; {ROUNDS} rounds: {', '.join(f'{r:.2f}' for r in ratios)}"
        )
    ]


async def reset(url: str) -> None:
    async with ClientBuilder().build() as client:
        await client.get(f"{url}/reset").build().send()


def _count_calls(path: Path) -> list[int]:
    """Return how many answers of models each sample needed, in order of the samples."""
    found: Counter[str] = Counter()
    with open_journal(DatasetFolder(path).journal, must_exist=True) as journal:
        for info in journal.runs():
            answers = sum(isinstance(event.body, InferenceCompleted) for event in journal.read(info.run_id))
            found[info.run_id.partition("-")[0]] += answers
    return [found[name] for name in sorted(found)]


async def ask_bare(url: str, calls: Sequence[int]) -> float:
    """Return how long it takes to make the calls of each sample one after another, in a window over the samples."""
    body = msgspec.json.encode({"model": "teacher", "messages": [{"role": "user", "content": "Hello."}]})
    todo = iter(calls)

    async def work(client: Client) -> None:
        for count in todo:
            for _ in range(count):
                request = client.post(f"{url}/chat/completions").headers(HEADERS).body_bytes(body)
                await (await request.build().send()).bytes()

    async with ClientBuilder().build() as client:
        begin = time.perf_counter()
        await asyncio.gather(*[work(client) for _ in range(WINDOW)])
        return time.perf_counter() - begin


def simulate(calls: Sequence[int]) -> float:
    """Return the time of a window that costs nothing, with the latencies drawn in the order of the samples."""
    draw = draw_latencies()
    places = [0.0] * WINDOW
    for count in calls:
        seconds = sum([latency(draw.random()) for _ in range(count)])
        heapq.heapreplace(places, places[0] + seconds)
    return max(places)


class _Timed:
    """The processor time that the built-in teacher takes in this process."""

    seconds = 0.0

    @classmethod
    def install(cls) -> None:
        """Measure all teachers from now on."""
        infer = TeacherModel.infer

        async def timed(self: TeacherModel, request: Request, watch: Watch) -> Completion:
            await asyncio.sleep(0)  # as a server would, let the other samples go on
            begin = time.thread_time()
            try:
                return await infer(self, request, watch)
            finally:
                cls.seconds += time.thread_time() - begin

        TeacherModel.infer = timed  # type: ignore[method-assign]


async def measure_work() -> list[Figure]:
    """Measure the processor time of a generation in this process, without that of the model.

    Counted are the plan, the scenario, the loop with its tools and journal, the filters with the verification, the
    search for duplicates, the ledger, and the writing of all files.
    """
    _Timed.install()
    own, details = [], []
    for number in range(ROUNDS + 1):
        with open_folder() as folder:
            config = _config(folder, SAMPLES if number else 50, "mock:teacher", kinds={"chained": 1})
            _Timed.seconds, begin = 0.0, time.process_time()
            result = await generate(config, DatasetFolder(folder / "dataset"))
            spent = time.process_time() - begin - _Timed.seconds
            progress = result.progress
            calls = await asyncio.to_thread(_count_calls, folder / "dataset")
            if number:  # the first round loads everything
                own.append(spent / progress.kept * 1e3)
                details.append(
                    f"{spent / len(calls) * 1e3:.2f} ms a sample, of which {progress.rejected} were rejected; "
                    f"{sum(calls) / len(calls) - 1:.1f} steps a sample, and one for its scenario"
                )
    value, detail = sorted(zip(own, details, strict=True))[len(own) // 2]
    rounds = ", ".join([f"{item:.2f}" for item in own])
    return [
        Figure("own work for each row, ms of processor time", value, "<= 3", f"{detail}; rounds: {rounds}")
    ]


async def measure_memory() -> list[Figure]:
    """Measure the largest resident set of a generation; `TREADLE_ROWS` sets how many rows it makes."""
    rows = int(os.environ.get("TREADLE_ROWS", "10000"))
    with open_folder() as folder:
        config = _config(folder, rows, "mock:teacher")
        marks: list[str] = []

        def note(notice: JobNotice, progress: GenerationProgress) -> None:
            if isinstance(notice, SampleEnded) and progress.kept in (100, rows // 10, rows // 3, rows):
                marks.append(f"{_resident_mb():.0f} MB at {progress.kept:,}")

        result = await generate(config, DatasetFolder(folder / "dataset"), listener=note)
        detail = ", ".join(dict.fromkeys(marks)) + f"; {result.progress.rejected:,} samples rejected"
        assert result.progress.kept == rows, result.end
        found = await _verify(folder / "dataset") if rows <= 10_000 else None
    figures = [Figure(f"memory of a generation of {rows:,} rows, MB", _resident_mb(), "<= 300", detail)]
    if found is not None:
        share = found.confirmed / max(1, found.claimed)
        figures.append(
            Figure("rows marked as verified that `dataset verify` confirms", share, ">= 1", str(found))
        )
    return figures


async def measure_resume() -> list[Figure]:
    """Measure a generation of which 50,000 rows are there, from the start of the process to its first new sample.

    The rows are copies of real ones with other ids and other words of the user. The ledger and the index of
    duplicates are filled by the functions that count real rows, the journal by copies of real runs.
    """
    rows = int(os.environ.get("TREADLE_ROWS", "50000"))
    with open_folder() as folder:
        folder = folder.absolute()
        config = _config(folder, rows + 1000, "mock:teacher")
        (folder / "config.yaml").write_text(dump(config))
        stop = asyncio.Event()

        def note(notice: JobNotice, progress: GenerationProgress) -> None:
            if progress.kept >= 20:
                stop.set()

        await generate(config, DatasetFolder(folder / "dataset"), listener=note, stop=stop)
        await _multiply(DatasetFolder(folder / "dataset"), rows)
        seconds = [_start_and_kill(folder) for _ in range(2 * ROUNDS)]
    size = ", ".join([f"{item:.2f}" for item in seconds])
    name = f"seconds to the first new sample after {rows:,} rows"
    return [
        Figure(name, sorted(seconds)[len(seconds) // 2], "<= 3", f"starts of the process included: {size}")
    ]


async def _multiply(folder: DatasetFolder, rows: int) -> None:
    """Fill a dataset with copies of its rows until it has `rows`."""
    models = msgspec.json.Decoder()
    given = [models.decode(line) for line in folder.rows.read_bytes().splitlines()]
    templates = [TREADLE.read(raw) for raw in given]
    with (
        Ledger(folder.ledger, {ROWS: folder.rows, REJECTED: folder.rejected}) as ledger,
        closing(open_journal(folder.journal)) as journal,
    ):
        index = DuplicateIndex(ledger.connection)
        specs = {item.number: item for item in ledger.entries(ItemStatus.KEPT)}
        runs = {row.lineage.run_id: journal.read(row.lineage.run_id) for row in templates}
        first = ledger.last_number + 1
        for number in range(first, first + rows - len(templates)):
            row = templates[number % len(templates)]
            entry = list(specs.values())[number % len(specs)]
            sample_id, run_id = f"s{number:06d}", f"s{number:06d}-1"
            copy = _copy(row, sample_id, run_id, number)
            ledger.plan(PlannedItem(number, entry.label, entry.spec["topic_id"], entry.spec))
            ledger.count(number, 1, partial(_settle, index, sample_id, copy, entry))
            writer = journal.create(run_id)
            writer.append([event.body for event in runs[row.lineage.run_id]])
            if number % 256 == 0:
                await writer.sync()
            await writer.release()


def _copy(row: Row, sample_id: str, run_id: str, number: int) -> Row:
    words = " ".join([f"word{number * 7919 % 100_003 * factor % 99_991}" for factor in range(3, 12)])
    messages = [
        replace(item, content=f"{item.content} {words}") if item.role is Role.USER else item
        for item in row.messages
    ]
    assert row.lineage.sample is not None
    lineage = replace(row.lineage, run_id=run_id, sample=replace(row.lineage.sample, sample_id=sample_id))
    return Row(tuple(messages), row.tools, lineage)


def _settle(
    index: DuplicateIndex, sample_id: str, row: Row, entry: LedgerEntry, _: sqlite3.Connection
) -> ItemOutcome:
    index.find(row)
    index.add(sample_id, row)
    line = msgspec.json.encode(TREADLE.write(row, with_reasoning=True)) + b"\n"
    return ItemOutcome(
        status=ItemStatus.KEPT, label=entry.label, details=entry.details, input_tokens=1, output_tokens=1,
        file=ROWS, line=line,
    )  # fmt: skip


def _start_and_kill(folder: Path) -> float:
    """Return the seconds until the command begins a sample. The process is killed then."""
    command = [sys.executable, "-m", "treadle", "generate", "config.yaml", "--json"]
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if b'"sample_begun"' in line:
                seconds = time.perf_counter() - begin
                process.kill()
                return seconds
    raise AssertionError("no sample was begun")


async def _verify(path: Path) -> Totals:
    totals = Totals()
    with open_journal(DatasetFolder(path).journal, must_exist=True) as journal:
        async for checked in verify_rows(path, journal):
            totals.add(checked)
    return totals


def _resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
