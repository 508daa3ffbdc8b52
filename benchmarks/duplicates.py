"""The search for duplicates in 100,000 requests with planted paraphrases, against MinHashLSH of datasketch.

Both see the same requests in the same order, and ask for each one before they add it. The baseline compares the
lowercase words at the same threshold, as its documentation shows; it keeps its index in memory. It is only measured
if datasketch is installed.
"""

import resource
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from benchmarks.common import Figure
from benchmarks.requests import Request, make_requests
from treadle.core.types import Message, Role
from treadle.datagen.quality.duplicates import DuplicateIndex
from treadle.export.rows import Lineage, Row

COUNT = 100_000
BASELINE_COUNT = 10_000
"""The baseline slows down as its buckets grow, and would take too long with all requests."""
SHARE = 0.05

Find = Callable[[int, str], int | None]
"""A function of a request's number and text that returns the number of an earlier one that it repeats, if any."""


class Outcome(Struct):
    """How well and how fast the paraphrases were found."""

    recall: float
    precision: float
    cpu_seconds: float
    wall_seconds: float


async def measure() -> list[Figure]:
    """Return the figures of the search for duplicates."""
    requests = make_requests(COUNT, SHARE)
    before = _peak_mib()
    ours = _ours(requests)
    peak = _peak_mib() - before
    text = f"{COUNT:,} requests, {ours.cpu_seconds:.1f} s of processor time"
    figures = [
        Figure("duplicates, recall", ours.recall, ">= 0.95", text),
        Figure("duplicates, precision", ours.precision, ">= 0.95", text),
        Figure("duplicates, seconds", ours.wall_seconds, "<= 60", text),
        Figure("duplicates, memory in MiB", peak, "<= 100", "beyond that of the requests"),
    ]
    small = make_requests(BASELINE_COUNT, SHARE)
    for variant in ("shuffled", "longer", "synonym"):
        found = _ours(make_requests(BASELINE_COUNT, SHARE, variant))
        least = ">= 0.95" if variant == "shuffled" else ">= 0.5"
        note = f"precision {found.precision:.3f}; paraphrases that are {_VARIANTS[variant]}"
        figures.append(Figure(f"duplicates, recall of the variant {variant}", found.recall, least, note))
    try:
        theirs = _theirs(small)
    except ModuleNotFoundError:
        return figures
    mine = _ours(small)
    note = (
        f"{BASELINE_COUNT:,} requests; datasketch: recall {theirs.recall:.3f}, precision {theirs.precision:.3f}, "
        f"{theirs.cpu_seconds:.1f} s; ours {mine.recall:.3f}, {mine.precision:.3f}, {mine.cpu_seconds:.1f} s"
    )
    ratio = theirs.cpu_seconds / mine.cpu_seconds
    return [*figures, Figure("duplicates, speed over datasketch", ratio, ">= 0.4", note)]


_VARIANTS = {
    "shuffled": "their words in another order",
    "longer": "longer by a phrase with two or three new words",
    "synonym": "the same with another verb, where there is one",
}


def _ours(requests: Sequence[Request]) -> Outcome:
    lineage = Lineage("run", "model", "completed", "hash")
    with TemporaryDirectory(prefix="treadle-bench-", dir=".") as folder:
        connection = sqlite3.connect(Path(folder) / "ledger.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        index = DuplicateIndex(connection)

        def find(number: int, text: str) -> int | None:
            row = Row((Message(Role.USER, text), Message(Role.ASSISTANT, "Done.")), (), lineage)
            connection.execute("BEGIN IMMEDIATE")
            verdict = index.find(row)
            index.add(str(number), row)
            connection.execute("COMMIT")
            return None if verdict.is_passed else int(verdict.details["of"])

        found = _run(requests, find)
        connection.close()
        return found


def _theirs(requests: Sequence[Request]) -> Outcome:
    from datasketch import MinHash, MinHashLSH

    lsh = MinHashLSH(threshold=0.8, num_perm=128)

    def find(number: int, text: str) -> int | None:
        made = MinHash(num_perm=128)
        made.update_batch([word.encode() for word in set(text.lower().split())])
        near = lsh.query(made)
        lsh.insert(number, made)
        return near[0] if near else None

    return _run(requests, find)


def _run(requests: Sequence[Request], find: Find) -> Outcome:
    right = wrong = 0
    cpu, wall = time.process_time(), time.perf_counter()
    for number, request in enumerate(requests):
        found = find(number, request.text)
        if found is not None:
            is_right = request.is_paraphrase and requests[found].asks == request.asks
            right, wrong = right + is_right, wrong + (not is_right)
    planted = sum(request.is_paraphrase for request in requests)
    return Outcome(
        right / planted,
        right / max(1, right + wrong),
        time.process_time() - cpu,
        time.perf_counter() - wall,
    )


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
