"""A stand-in for a generation: it shows a view while it makes samples that cost nothing.

`python -m tests.cli.generating SAMPLES SECONDS [--json|--quiet] [--held]` makes SAMPLES samples that take SECONDS
each. With `--held` no sample ends before the signal SIGUSR1.
"""

import asyncio
import random
import signal
import sys
import time

from treadle.cli.exit import allow_interrupts
from treadle.cli.jobs.execute import execute_until_stopped
from treadle.cli.jobs.generating import SampleFeed
from treadle.cli.terminal.job_view import make_job_view
from treadle.cli.terminal.output import print_interrupted
from treadle.datagen.generation_progress import (
    GenerationProgress,
    SampleBegun,
    SampleEnded,
    SampleStep,
    TopicExpanded,
    TopicsReady,
)

TOPIC = ("Logistics", "Customs", "Zölle und Gebühren 关税 und noch viel mehr")
IN_FLIGHT = 4


def main(samples: int, seconds: float, *options: str) -> int:
    """Show the view, and return the exit code."""
    progress, begin = GenerationProgress(), time.monotonic()
    released = asyncio.Event()
    chance = random.Random(0)  # Without a period, which the view's own could keep in step with.
    view = make_job_view(
        "parcels", progress, SampleFeed(), is_json="--json" in options, is_quiet="--quiet" in options
    )

    async def make(number: int) -> None:
        sample_id = f"s{number:06d}"
        progress.in_flight += 1
        view.on_notice(SampleBegun(sample_id=sample_id, topic=TOPIC, kind="chained"), progress)
        for text in ("› How many\n\x1b[31mparcels?", "● list_files() → a.txt", "word " * 80):
            await asyncio.sleep(seconds / 3)
            progress.input_tokens += 100
            progress.seconds = time.monotonic() - begin
            view.on_notice(SampleStep(sample_id=sample_id, text=text), progress)
        await released.wait()
        progress.in_flight -= 1
        if chance.random() < 0.3:
            progress.rejected += 1
            progress.reasons["grounding"] = progress.reasons.get("grounding", 0) + 1
            view.on_notice(
                SampleEnded(
                    sample_id=sample_id, status="rejected", reasons=("grounding: 12 is not in a result",)
                ),
                progress,
            )
            return
        progress.kept += 1
        progress.kinds["chained"] = progress.kept
        view.on_notice(SampleEnded(sample_id=sample_id, status="kept"), progress)

    async def generate(stop: asyncio.Event) -> None:
        numbers = iter(range(1, sys.maxsize))
        if "--held" in options:
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, released.set)
        else:
            released.set()

        async def work() -> None:
            while progress.kept + progress.in_flight < samples and not stop.is_set():
                await make(next(numbers))

        for done in (1, 2, 3):
            view.on_notice(TopicExpanded(path=("Logistics",), count=3, done=done, expected=3), progress)
        view.on_notice(TopicsReady(leaves=9, failed=1), progress)
        progress.wanted = samples
        await asyncio.gather(*[work() for _ in range(IN_FLIGHT)])

    def on_stop() -> None:
        progress.is_stopping = True
        view.on_stop(progress)

    try:
        execute_until_stopped(generate, on_stop)
        view.finish(progress, {"path": "dataset"})
    except KeyboardInterrupt:
        view.close()
        print_interrupted("")
        return 131
    finally:
        view.close()
    return 130 if progress.is_stopping else 0


if __name__ == "__main__":
    allow_interrupts()
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:]))
