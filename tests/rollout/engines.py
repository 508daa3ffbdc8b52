"""Mock engines for tests of rollouts, and the comparison of what they sampled with what arrives."""

from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from treadle import model
from treadle.models.protocol import Model
from treadle.models.wrappers.retry import RetryModel
from treadle.testbed.engines import (
    ENGINES,
    EngineApp,
    EngineKind,
    EngineSettings,
    SampledAnswer,
    export_tokenizer,
    logprobs_of,
)
from treadle.testbed.server import OracleServer, serve
from treadle.trajectory.tokens import TokenGrade, TokenGraph, Trajectory

_CHAT = {"logprobs": True, "return_token_ids": True}
_SGLANG_CHAT = {"logprobs": True, "extra": {"return_prompt_token_ids": True, "return_meta_info": True}}
ENDPOINTS: dict[str, tuple[EngineKind, dict[str, Any]]] = {
    "vllm_chat": (EngineKind.VLLM, _CHAT),
    "vllm_completions": (EngineKind.VLLM, {"engine": "vllm_completions"}),
    "vllm_generate": (EngineKind.VLLM, {"engine": "vllm_generate"}),
    "sglang_chat": (EngineKind.SGLANG, _SGLANG_CHAT),
    "sglang_generate": (EngineKind.SGLANG, {"engine": "sglang_generate"}),
}
"""The engine of each endpoint, and the options of a model that uses it."""


def connect(endpoint: str, name: str, url: str, folder: Path, **options: Any) -> Model:
    """Return a model at an endpoint that tries again at once. `folder` is for the tokenizer."""
    kind, given = ENDPOINTS[endpoint]
    if "engine" in given and "renderer" not in options:
        export_tokenizer(name, folder)
        options["renderer"] = f"hf:{folder}"
    made = model(f"{kind}:{name}", base_url=url, **{**given, **options})
    assert isinstance(made, RetryModel)
    retrying = RetryModel(made.inner, max_attempts=options.get("max_attempts", 6), min_delay_seconds=0.001)
    retrying.part = made.part
    return retrying


@asynccontextmanager
async def engine(endpoint: str, name: str, **settings: Any) -> AsyncIterator[tuple[EngineApp, OracleServer]]:
    """Serve the mock engine with an endpoint."""
    kind, _ = ENDPOINTS[endpoint]
    app = ENGINES[kind](EngineSettings(model=name, **settings))
    server = await serve(app=app)
    try:
        yield app, server
    finally:
        await server.close()


def check(app: EngineApp, graph: TokenGraph, *, lost: int = 0, has_versions: bool = False) -> None:
    """Check that `graph` delivers what the engine sampled, once and with its logprobs, and nothing else.

    `lost` is how many answers may have been sampled for requests whose clients failed or went away. With
    `has_versions`, each token must have the version of the weights that sampled it.
    """
    assert not graph.conservation.faults
    check_rows(app, graph.trajectories, lost=lost, has_versions=has_versions)


def check_rows(
    app: EngineApp, rows: Iterable[Trajectory], *, lost: int = 0, has_versions: bool = False
) -> None:
    """Compare trajectories with what the engine sampled; see `check`."""
    log: dict[tuple[int, ...], list[SampledAnswer]] = defaultdict(list)
    for answer in app.sampled:
        log[answer.prompt_ids].append(answer)
    for row in rows:
        assert row.grade is TokenGrade.TOKEN_EXACT
        trained = bytearray(len(row.token_ids_T))
        for span in row.spans:
            if span.is_trained:
                trained[span.start : span.end] = b"\1" * (span.end - span.start)
                answers = take(log, row, span.start, span.end)
                if has_versions:
                    wanted = [item for answer in answers for item in spread(answer.versions)]
                    assert spread(span.weight_versions) == wanted
        assert row.sampled_T == bytes(trained)
        known = bytes([value == value for value in row.logprobs_T])
        answered = bytearray(trained)
        for span in row.spans:
            answered[span.start : span.end] = b"\1" * (span.end - span.start)
        assert all(trained[at] <= known[at] <= answered[at] for at in range(len(known)))
    left = [answer for answers in log.values() for answer in answers if answer.token_ids]
    assert len(left) <= lost, left


def spread(versions: Iterable[tuple[int, str]]) -> list[str]:
    """Return the version of each token."""
    return [version for count, version in versions for _ in range(count)]


def take(
    log: dict[tuple[int, ...], list[SampledAnswer]], row: Trajectory, start: int, end: int
) -> list[SampledAnswer]:
    """Take the answers out of an engine's log that together are one answer of a trajectory, and return them."""
    ids = tuple(row.token_ids_T)
    found = find_pieces(log, row, ids, start, end)
    assert found is not None, f"nobody sampled {list(ids[start:end])} after these {start} ids"
    return found


def find_pieces(
    log: dict[tuple[int, ...], list[SampledAnswer]],
    row: Trajectory,
    ids: tuple[int, ...],
    start: int,
    end: int,
) -> list[SampledAnswer] | None:
    """Take answers as `take` does; `None` if there are none, and the log is as it was.

    Several answers may begin in the same way, so that the longest one is tried first, and then the others.
    """
    sizes = [(count_equal(answer, row, start, end), answer) for answer in log[ids[:start]]]
    whole = [(size, answer) for size, answer in sizes if size == len(answer.token_ids)]
    # Of an aborted answer and a whole one with the same beginning, the whole one was delivered.
    whole.sort(key=lambda item: (item[0], item[1].finish != "abort"), reverse=True)
    # The rest of a stream may be lost on the way, and another answer goes on where it broke off.
    cut = [
        (size, answer)
        for most, answer in sizes
        for size in range(min(most, len(answer.token_ids) - 1), 0, -1)
        if log.get(ids[: start + size])
    ]
    for size, answer in [*whole, *sorted(cut, key=lambda item: item[0], reverse=True)]:
        log[ids[:start]].remove(answer)
        # An answer that is aborted after its last id is whole, and is not asked to go on.
        if start + size == end and (answer.finish != "abort" or not log[ids[:end]]):
            return [answer]
        if (rest := find_pieces(log, row, ids, start + size, end)) is not None:
            return [answer, *rest]
        log[ids[:start]].append(answer)
    return None


def count_equal(answer: SampledAnswer, row: Trajectory, start: int, end: int) -> int:
    """Return how many ids of an answer, from the first, a trajectory has from `start` on, with their logprobs."""
    size = min(len(answer.token_ids), end - start)
    logprobs = array("f", answer.logprobs)
    for at in range(size):
        if (answer.token_ids[at], logprobs[at]) != (row.token_ids_T[start + at], row.logprobs_T[start + at]):
            return at
    return size


def recompute(app: EngineApp, graph: TokenGraph, model: str) -> None:
    """Compute the logprobs of every trajectory again by the engine's distribution."""
    for row in graph.trajectories:
        ids = list(row.token_ids_T)
        for span in row.spans:
            if span.is_trained:
                versions = spread(span.weight_versions) or [app.version] * (span.end - span.start)
                again = logprobs_of(model, ids[: span.start], ids[span.start : span.end], versions)
                assert again == pytest.approx(row.logprobs_T[span.start : span.end].tolist(), abs=1e-5)
