"""The generation of a dataset, from its configuration to its files.

A call with the same folder continues what was interrupted.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial

import msgspec
from msgspec import Struct

from treadle.core.errors import MistakesError, ProviderError, UserCodeError
from treadle.core.types import StopReason
from treadle.datagen.config.fingerprint import explain_changes, fingerprint
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import write_config
from treadle.datagen.config.roles import make_models
from treadle.datagen.conversations.make import MadeSample
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.dataset.card import write_card
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_view import DatasetView, make_dataset_view, read_contents
from treadle.datagen.dataset.splits import write_splits
from treadle.datagen.generation_progress import GenerationProgress, Listener, SampleStep, TopicsReady
from treadle.datagen.quality.duplicates import DuplicateIndex, DuplicateSettings
from treadle.datagen.quality.pipeline import Pipeline
from treadle.datagen.samples import REJECTED, ROWS, SamplePlan, SampleWork
from treadle.datagen.scenarios.environment import open_environments
from treadle.datagen.scenarios.kinds import possible_kinds
from treadle.datagen.scenarios.scenario import sample_id_of
from treadle.datagen.topics.building import BuildStoppedError, build_topics
from treadle.datagen.topics.topic_files import load_topics, save_topics
from treadle.datagen.topics.topic_graph import TopicGraph
from treadle.datagen.topics.topic_writer import RUN_PREFIX as TOPIC_RUN_PREFIX
from treadle.jobs.config_changes import Change, find_changes
from treadle.jobs.job import LOSSES, Job, JobEnd, JobOptions, JobSettings, open_job
from treadle.jobs.ledger import ItemStatus, Ledger, PlannedItem
from treadle.jobs.meter import explain_limit
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.models.protocol import Model
from treadle.runs.ensure import collecting_less

MAX_REJECTIONS = 20
"""After how many attempts a generation ends if all were rejected for one reason, and none was kept; for several
reasons, after three times as many."""
_MISTAKE = "mistake"
"""The ledger's key that is set if a mistake in the user's code ended the work."""


class Continuation(Struct, frozen=True, kw_only=True):
    """The settings for continuing an existing dataset."""

    retry_failed: bool = False
    """True to try the rejected samples again, with the reasons as feedback."""
    accept_changes: bool = False
    """True to continue even if the configuration has changed in a way that changes the rows."""


class GenerationResult(Struct, frozen=True):
    end: JobEnd
    progress: GenerationProgress
    folder: DatasetFolder
    view: DatasetView
    """What pages show of the dataset; `treadle.viewer.write_page` writes it as one file."""


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
    progress = GenerationProgress()
    job_options = JobOptions(
        ledger=folder.ledger,
        files={ROWS: folder.rows, REJECTED: folder.rejected},
        journal=folder.journal,
        limits=config.limits,
        window=config.generation.window,
        workers=config.generation.workers,
        stop=stop,
        listener=listener,
    )
    check = partial(_check_continued, config, options or Continuation())
    topics = RunFilter(id_prefix=TOPIC_RUN_PREFIX)
    async with AsyncExitStack() as stack:
        # The files of the dataset are written within it too: they are made of all rows.
        stack.enter_context(collecting_less(config.generation.window))
        job = open_job(stack, job_options, progress, _runs_of, others=topics, check=check)
        write_config(folder.path, config)
        try:
            async with job.beating():
                end = await _make_samples(config, folder, job)
        except UserCodeError:
            job.ledger.set(_MISTAKE, "1")
            raise
        view = await asyncio.to_thread(_write_files, folder, config)
        return GenerationResult(end, progress, folder, view)


def _check_continued(
    config: GenerationConfig, options: Continuation, ledger: Ledger, journal: Journal
) -> list[Change]:
    """Return what has changed since the configuration that the dataset was begun with, and reopen the samples to
    try again. Before there is a topic or a sample, any configuration may follow another, so that a mistake in the
    first one can be mended. Raises: `ConfigError` that names the changed keys."""
    known = ledger.get("config")
    changes = [] if known is None else list(find_changes(msgspec.json.decode(known), fingerprint(config)))
    if ledger.get(_MISTAKE):
        # The same command was promised to go on once the code is mended.
        changes = [change for change in changes if not change.is_of_code]
    done = RunFilter(id_prefix=TOPIC_RUN_PREFIX, stop_reason=StopReason.COMPLETED)
    is_begun = ledger.last_number > 0 or any(journal.runs(done, limit=1))
    if changes and is_begun and not options.accept_changes:
        raise MistakesError(
            explain_changes(changes, "continue with --accept-changes, which keeps the existing rows")
        )
    ledger.set("config", msgspec.json.encode(fingerprint(config)).decode())
    ledger.set(_MISTAKE, "")
    if options.retry_failed:
        ledger.set(LOSSES, "{}")
    # Samples that failed through the infrastructure are always tried again.
    ledger.reopen(
        *((ItemStatus.FAILED, ItemStatus.REJECTED) if options.retry_failed else (ItemStatus.FAILED,))
    )
    return changes


def _write_files(folder: DatasetFolder, config: GenerationConfig) -> DatasetView:
    """Write the splits and the card, and return what pages show."""
    write_splits(folder.path, config)
    contents = read_contents(folder.path)
    write_card(folder.path, config, contents.stats)
    return make_dataset_view(folder.path, contents)


async def _make_samples(
    config: GenerationConfig, folder: DatasetFolder, job: Job[MadeSample, GenerationProgress]
) -> JobEnd:
    """Make the topics and the samples of a dataset that it lacks, and return why the work ended."""
    models: Mapping[str, Model] = {
        role: job.meter.measure(model) for role, model in make_models(config).items()
    }
    job.progress.kinds = job.counts.labels
    # The tools come first, because a server that does not start must not cost the topics.
    environments = open_environments(config.tools, config.seed)

    def tell_step(sample_id: str, text: str) -> None:
        job.tell(SampleStep(sample_id=sample_id, text=text), has_news=False)

    studio = Studio(config, models, job.journal, environments, tell_step, job.workers)
    try:
        try:
            async with asyncio.timeout(job.meter.seconds_left):
                topics = await _find_topics(config, folder, job, models)
        except BuildStoppedError:
            return JobEnd("stopped")
        except (ProviderError, TimeoutError):
            if (limit := job.meter.find_limit()) is None:
                raise
            return JobEnd(limit)
        leaves = list(topics.leaves())
        failed = sum(topic.error is not None for topic in topics.topics.values())
        job.tell(TopicsReady(leaves=len(leaves), failed=failed))
        kinds = possible_kinds(
            config.generation.kinds,
            has_tools=bool(studio.tools),
            max_calls=config.tools.max_calls,
            max_steps=config.tools.max_steps,
        )
        plan = SamplePlan(config, leaves, kinds)
        job.progress.wanted = plan.wanted
        pipeline = Pipeline(config, judge=models.get("judge"), tools=studio.shared_tools)
        duplicates = None
        if isinstance(pipeline.duplicates, DuplicateSettings):
            duplicates = DuplicateIndex(job.ledger.connection, pipeline.duplicates)
        settings = JobSettings(
            wanted=plan.wanted,
            max_items=plan.wanted * config.generation.max_attempts,
            max_failures=2 * config.generation.window + 20,
            max_rejections=MAX_REJECTIONS,
        )
        return await job.run(SampleWork(studio, plan, pipeline, duplicates, job), settings)
    finally:
        await studio.close()


async def _find_topics(
    config: GenerationConfig,
    folder: DatasetFolder,
    job: Job[MadeSample, GenerationProgress],
    models: Mapping[str, Model],
) -> TopicGraph:
    """Return the topics: those of this dataset, those of a file, or new ones."""
    if job.ledger.get("topics") is not None:
        return load_topics(folder.topics)
    if config.topics.load is not None:
        graph = load_topics(config.topics.load)
    else:
        graph = await build_topics(
            config.topics,
            model=models["topics"],
            journal=job.journal,
            seed=config.seed,
            dataset=config.name,
            on_notice=job.tell,
            stop=job.stop,
        )
        if (limit := job.meter.reached) is not None:
            # Topics that did not fit in the limit would be left out for ever.
            raise explain_limit(limit)
    save_topics(graph, folder.topics)
    job.ledger.set("topics", "done")
    return graph


def _runs_of(item: PlannedItem) -> RunFilter:
    return RunFilter(id_prefix=f"{sample_id_of(item.number)}-")
