"""Durable steps per second on PostgreSQL, relative to a bare client that writes the same rows in equal groups."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import psycopg
from tests.postgres.server import Server

from benchmarks.common import Figure, make_agent, server, timed
from benchmarks.steps import STEPS, runner
from treadle import open_journal

IN_FLIGHT, RUNS, ROUNDS = 64, 600, 9
_HEADS = (
    "frame, events, updated_at, steps, input_tokens, cached_input_tokens, output_tokens, cost_usd, "
    "context_chars"
)
_FRAME = "run, seq, count, at, body, checksum"
_TABLES = """
    DROP SCHEMA IF EXISTS bare CASCADE;
    CREATE SCHEMA bare;
    CREATE TABLE bare.frames(LIKE treadle.frames INCLUDING ALL);
    CREATE TABLE bare.heads(LIKE treadle.heads INCLUDING ALL) WITH (fillfactor = 50);
"""
_KEEP_FRAME = f"INSERT INTO bare.frames({_FRAME}, xact) VALUES(%s,%s,%s,%s,%s,%s,%s)"
_KEEP_HEAD = (
    f"INSERT INTO bare.heads(run, token, {_HEADS}) VALUES(%s,0,{','.join(['%s'] * 9)}) ON CONFLICT(run) DO UPDATE "
    f"SET {', '.join([f'{name} = excluded.{name}' for name in _HEADS.split(', ')])}"
)


async def measure() -> list[Figure]:
    """Measure runs of five steps against the rows that they wrote, by turns."""
    ratios: list[tuple[float, float, float, float]] = []
    with server(STEPS) as base_url, _postgres() as found:
        url = found.make_database()
        with open_journal(url) as journal, psycopg.connect(url) as db:
            one = runner(make_agent(base_url, journal))
            seen = 0
            for round_ in range(ROUNDS + 1):
                ours = await timed(one, RUNS, IN_FLIGHT)
                groups = _read_groups(db, seen)
                seen = groups[-1][0][-1]
                steps_us = ours.wall_us
                bare_us = _write(db, groups) / (RUNS * STEPS) * 1e6
                size = sum(map(len, groups)) / len(groups)
                if round_:  # the first one warms up
                    ratios.append((bare_us / steps_us, 1e6 / steps_us, 1e6 / bare_us, size))
    ratio, steps, bare, size = sorted(ratios)[len(ratios) // 2]
    detail = (
        f"{steps:,.0f} steps/s against {bare:,.0f} as rows of a bare pipelined client, {size:.0f} runs a commit; "
        f"median of {len(ratios)} rounds"
    )
    return [Figure("durable steps/s on PostgreSQL, 64 in flight", median([ratio]), ">= 0.5", detail)]


@contextmanager
def _postgres() -> Iterator[Server]:
    """Start a server on the cores that this process does not use."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    others = set(range(os.cpu_count() or 1)) - cores
    if others:
        os.sched_setaffinity(0, others)
    found = Server.make()
    found.start()
    if others:
        os.sched_setaffinity(0, cores)
    try:
        yield found
    finally:
        found.remove()


def _read_groups(db: "psycopg.Connection[Any]", after: int) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each commit after a transaction."""
    sql = (
        f"SELECT {', '.join([f'frames.{name}' for name in _FRAME.split(', ')])}, "
        f"{', '.join([f'heads.{name}' for name in _HEADS.split(', ')])}, xact "
        "FROM treadle.frames JOIN treadle.heads USING(run) WHERE xact > %s ORDER BY xact"
    )
    groups: dict[int, list[tuple[Any, ...]]] = {}
    for row in db.execute(sql.encode(), (after,), binary=True):
        groups.setdefault(row[-1], []).append(row)
    db.commit()
    return list(groups.values())


def _write(db: "psycopg.Connection[Any]", groups: list[list[tuple[Any, ...]]]) -> float:
    """Write the rows, a commit for each group, and return the seconds that it took."""
    db.execute(_TABLES)
    db.execute("SET synchronous_commit = local")
    db.commit()
    frames = [[(*row[:6], row[-1]) for row in group] for group in groups]
    heads = [[(row[0], *row[6:-1]) for row in group] for group in groups]
    start = time.perf_counter()
    for frame_rows, head_rows in zip(frames, heads, strict=True):
        with db.pipeline():
            cursor = db.cursor()
            cursor.executemany(_KEEP_FRAME, frame_rows)
            cursor.executemany(_KEEP_HEAD, head_rows)
            db.commit()
    return time.perf_counter() - start
