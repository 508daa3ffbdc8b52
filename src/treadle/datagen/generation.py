"""The generation of a dataset, from its configuration to its files.

A call with the same folder continues what was interrupted.
"""

import asyncio
import contextlib
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, JournalError, MistakesError, ProviderError
from treadle.datagen.config.estimate import is_free
from treadle.datagen.config.fingerprint import explain_changes, find_changes, fingerprint
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import write_config
from treadle.datagen.config.roles import make_models
from treadle.datagen.conversations.dialogue import bill_of
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.dataset.card import write_card
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.report.write import read_contents, write_report
from treadle.datagen.dataset.splits import write_splits
from treadle.datagen.generation_progress import (
    GenerationNotice,
    GenerationProgress,
    Listener,
    SampleBegun,
    SampleEnded,
    SampleStep,
    TopicsReady,
)
from treadle.datagen.quality.duplicates import DuplicateIndex, DuplicateSettings
from treadle.datagen.quality.pipeline import Pipeline
from treadle.datagen.sample_plan import SamplePlan
from treadle.datagen.sample_work import REJECTED, ROWS, Judged, SampleWork
from treadle.datagen.scenarios.environment import open_environments
from treadle.datagen.scenarios.kinds import possible_kinds
from treadle.datagen.scenarios.scenario import sample_id_of
from treadle.datagen.topics.building import BuildStoppedError, build_topics
from treadle.datagen.topics.topic_files import load_topics, save_topics
from treadle.datagen.topics.topic_graph import TopicGraph
from treadle.datagen.topics.topic_writer import RUN_PREFIX
from treadle.jobs.job import End, Job, JobSettings
from treadle.jobs.ledger import ItemOutcome, ItemStatus, JobCounts, Ledger, PlannedItem
from treadle.jobs.meter import JobLimits, JobMeter, LimitReachedError
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.models.protocol import Model
from treadle.workers.protocol import WorkerOptions, Workers
from treadle.workers.queued import QueueWorkers
from treadle.workers.registry import make_workers


class Continuation(Struct, frozen=True, kw_only=True):
    """How an existing dataset is continued."""

    retry_failed: bool = False
    """True to try the rejected samples again, with the reasons as feedback."""
    accept_changes: bool = False
    """True to continue even if the configuration has changed in a way that changes the rows."""


class GenerationResult(Struct, frozen=True):
    """The outcome of a generation."""

    end: End
    progress: GenerationProgress
    folder: DatasetFolder


async def generate(
    config: GenerationConfig,
    folder: DatasetFolder,
    *,
    listener: Listener = lambda notice, progress: None,
    stop: asyncio.Event | None = None,
    options: Continuation | None = None,
) -> GenerationResult:
    """Generate the dataset in `folder`, or continue it, and return the outcome.

    A cancellation stops at once; nothing that was counted is lost, and samples in flight are continued by the next
    call. Raises: `ConfigError` if another process works in the folder, or if the configuration would now make other
    rows; `ProviderError` for a fault of the user, such as a wrong key; `JournalError` if the journal or the ledger
    cannot be written.
    """
    options = options or Continuation()
    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(Ledger(folder.ledger, {ROWS: folder.rows, REJECTED: folder.rejected}))
        if ledger.last_number and not folder.journal.exists():
            raise ConfigError(
                f"the journal {str(folder.journal)!r} is missing, which has the runs of the rows; put it back, or "
                "name another folder with output.path"
            )
        journal = stack.enter_context(contextlib.closing(open_journal(folder.journal)))
        _prepare_ledger(ledger, config, options)
        write_config(folder.path, config)
        generation = _Generation(config, folder, ledger, journal, listener, stop or asyncio.Event())
        try:
            end = await generation.run()
        finally:
            await generation.close()
        await asyncio.to_thread(_write_files, folder, config)
        return GenerationResult(end, generation.progress, folder)


def _prepare_ledger(ledger: Ledger, config: GenerationConfig, options: Continuation) -> None:
    """Compare the configuration with the one that the dataset was begun with, and reopen the samples to try again.

    Raises: `ConfigError` that names the changed keys.
    """
    known = ledger.get("config")
    changes = [] if known is None else find_changes(msgspec.json.decode(known), config)
    if changes and not options.accept_changes:
        raise MistakesError(
            explain_changes(changes, "continue with --accept-changes, which keeps the existing rows")
        )
    ledger.set("config", msgspec.json.encode(fingerprint(config)).decode())
    # Samples that failed through the infrastructure are always tried again.
    ledger.reopen(
        *((ItemStatus.FAILED, ItemStatus.REJECTED) if options.retry_failed else (ItemStatus.FAILED,))
    )


def _write_files(folder: DatasetFolder, config: GenerationConfig) -> None:
    write_splits(folder.path, config)
    contents = read_contents(folder.path)
    write_card(folder.path, config, contents.stats)
    write_report(folder.path, contents=contents)


class _Generation:
    """One process's work on a dataset."""

    def __init__(
        self,
        config: GenerationConfig,
        folder: DatasetFolder,
        ledger: Ledger,
        journal: Journal,
        listener: Listener,
        stop: asyncio.Event,
    ) -> None:
        limits = config.limits
        self._config = config
        self._folder = folder
        self._ledger = ledger
        self._journal = journal
        self._listener = listener
        self._stop = stop
        self._meter = JobMeter(
            JobLimits(
                max_cost_usd=limits.max_cost_usd, max_tokens=limits.max_tokens, max_seconds=limits.max_seconds
            )
        )
        counts = ledger.counts()
        add_spent(self._meter, counts, ledger, journal)
        self._meter.seconds_before = float(ledger.get("worked_seconds") or 0.0)
        self._models: Mapping[str, Model] = {
            role: self._meter.measure(model, is_free=is_free(model))
            for role, model in make_models(config).items()
        }
        self._studio: Studio | None = None
        self.progress = GenerationProgress(
            kept=counts.kept, resumed=counts.kept, rejected=counts.rejected, reasons=counts.reasons
        )
        self.progress.kinds = dict(counts.labels)

    async def run(self) -> End:
        # The tools come first, because a server that does not start must not cost the topics.
        environments = open_environments(self._config.tools, self._config.seed)
        studio = self._studio = Studio(
            self._config, self._models, self._journal, environments, self._tell_step, self._make_workers()
        )
        try:
            async with asyncio.timeout(self._meter.seconds_left):
                topics = await self._find_topics()
        except BuildStoppedError:
            return End("stopped")
        except (ProviderError, TimeoutError):
            if (limit := self._meter.find_limit()) is None:
                raise
            return End(limit)
        leaves = list(topics.leaves())
        failed = sum(topic.error is not None for topic in topics.topics.values())
        self._tell(TopicsReady(leaves=len(leaves), failed=failed))
        kinds = possible_kinds(
            self._config.generation.kinds,
            has_tools=bool(studio.tools),
            max_calls=self._config.tools.max_calls,
            max_steps=self._config.tools.max_steps,
        )
        plan = SamplePlan(self._config, leaves, kinds)
        self.progress.wanted = plan.wanted
        pipeline = Pipeline(self._config, judge=self._models.get("judge"), tools=studio.shared_tools)
        duplicates = None
        if isinstance(pipeline.duplicates, DuplicateSettings):
            duplicates = DuplicateIndex(self._ledger.connection, pipeline.duplicates)
        work = SampleWork(studio, pipeline, duplicates, self._config.generation.sample_attempts)
        engine = Job(
            self._ledger,
            work,
            plan.make_item,
            self._settings(plan),
            self._meter,
            on_begin=self._begin,
            on_outcome=lambda item, outcome: self._count(plan, engine, item, outcome),
        )
        stopping = asyncio.ensure_future(self._stop.wait())
        stopping.add_done_callback(lambda _: engine.stop() if self._stop.is_set() else None)
        try:
            return await engine.run()
        finally:
            stopping.cancel()

    def _make_workers(self) -> Workers:
        """Return where the runs are driven. What workers use is counted when a turn has ended."""
        generation = self._config.generation
        workers = make_workers(generation.workers, self._journal, WorkerOptions(window=generation.window))
        if isinstance(workers, QueueWorkers):
            workers.on_used = lambda usage, cost_usd: self._meter.add(
                usage.input_tokens, usage.output_tokens, cost_usd
            )
        return workers

    async def close(self) -> None:
        """Close the workers, tools and models."""
        with contextlib.suppress(JournalError):
            self._ledger.set("worked_seconds", repr(self._meter.worked_seconds))
        if self._studio is not None:
            await self._studio.close()

    def _settings(self, plan: SamplePlan) -> JobSettings:
        generation = self._config.generation
        return JobSettings(
            wanted=plan.wanted,
            window=generation.window,
            max_items=plan.wanted * generation.max_attempts,
            max_failures=2 * generation.window + 20,
        )

    async def _find_topics(self) -> TopicGraph:
        """Return the topics: those of this dataset, those of a file, or new ones."""
        config = self._config.topics
        if self._ledger.get("topics") is not None:
            return load_topics(self._folder.topics)
        if config.load is not None:
            graph = load_topics(config.load)
        else:
            graph = await build_topics(
                config,
                model=self._models["topics"],
                journal=self._journal,
                seed=self._config.seed,
                dataset=self._config.name,
                on_notice=self._tell,
                stop=self._stop,
            )
            if (limit := self._meter.reached) is not None:
                # Topics that did not fit in the limit would be left out for ever.
                raise LimitReachedError(limit)
        save_topics(graph, self._folder.topics)
        self._ledger.set("topics", "done")
        return graph

    def _begin(self, item: PlannedItem, attempt: int) -> None:
        spec = item.spec
        self.progress.in_flight += 1
        self._tell(
            SampleBegun(
                sample_id=sample_id_of(item.number), topic=tuple(spec["topic"]), kind=spec.get("kind")
            )
        )

    def _count(self, plan: SamplePlan, engine: Job[Judged], item: PlannedItem, outcome: ItemOutcome) -> None:
        progress, counts = self.progress, engine.counts
        progress.in_flight -= 1
        progress.kept, progress.rejected, progress.failed = counts.kept, counts.rejected, counts.failed
        progress.reasons, progress.kinds = counts.reasons, counts.labels
        if outcome.status is ItemStatus.REJECTED and outcome.is_final:
            plan.give_back(item.share, counts)
        self._tell(
            SampleEnded(
                sample_id=sample_id_of(item.number), status=outcome.status.value, reasons=outcome.reasons
            )
        )
        if self._stop.is_set():
            engine.stop()

    def _tell_step(self, sample_id: str, text: str) -> None:
        self._tell(SampleStep(sample_id=sample_id, text=text))

    def _tell(self, notice: GenerationNotice) -> None:
        progress, meter = self.progress, self._meter
        progress.input_tokens, progress.output_tokens = meter.input_tokens, meter.output_tokens
        progress.cost_usd, progress.seconds = meter.cost_usd, meter.seconds
        progress.is_stopping = self._stop.is_set()
        self._listener(notice, progress)


def add_spent(meter: JobMeter, counts: JobCounts, ledger: Ledger, journal: Journal) -> None:
    """Add to `meter` what was spent before this process: on topics, on samples that were counted, and on samples
    that were interrupted. `counts` are those of the ledger."""
    meter.add(counts.input_tokens, counts.output_tokens, counts.cost_usd)
    topics = bill_of(journal, RUN_PREFIX)
    meter.add(topics.usage.input_tokens, topics.usage.output_tokens, topics.cost_usd)
    for item in ledger.open_items():
        runs = bill_of(journal, f"{sample_id_of(item.number)}-")
        known = ledger.spent(item.number)
        cost = None if runs.cost_usd is None else runs.cost_usd - known.cost_usd
        meter.add(
            runs.usage.input_tokens - known.input_tokens, runs.usage.output_tokens - known.output_tokens, cost
        )
