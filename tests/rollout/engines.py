"""Mock engines for tests of rollouts, and the comparison of what they sampled with what arrives."""

from array import array
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from treadle import model
from treadle.models.protocol import Model
from treadle.teacher.engine import (
    ENGINES,
    Answer,
    EngineApp,
    EngineKind,
    EngineSettings,
    export_tokenizer,
    logprobs_of,
)
from treadle.teacher.server import OracleServer, serve
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
    """Return a model at an endpoint. `folder` is for the tokenizer."""
    kind, given = ENDPOINTS[endpoint]
    if "engine" in given and "renderer" not in options:
        export_tokenizer(name, folder)
        options["renderer"] = f"hf:{folder}"
    return model(f"{kind}:{name}", base_url=url, **{**given, **options})


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


def check(app: EngineApp, graph: TokenGraph, *, lost: int = 0) -> None:
    """Check that `graph` delivers what the engine sampled, once and with its logprobs, and nothing else.

    `lost` is how many answers may have been sampled for requests whose clients failed or went away.
    """
    assert not graph.conservation.faults
    log: dict[tuple[int, ...], list[Answer]] = defaultdict(list)
    for answer in app.sampled:
        log[answer.prompt_ids].append(answer)
    for row in graph.trajectories:
        assert row.grade is TokenGrade.TOKEN_EXACT
        trained = bytearray(len(row.token_ids_T))
        for span in row.spans:
            if span.is_trained:
                trained[span.start : span.end] = b"\1" * (span.end - span.start)
                take(log, row, span.start, span.end)
        assert row.sampled_T == bytes(trained)
        known = bytes([value == value for value in row.logprobs_T])
        answered = bytearray(trained)
        for span in row.spans:
            answered[span.start : span.end] = b"\1" * (span.end - span.start)
        assert all(trained[at] <= known[at] <= answered[at] for at in range(len(known)))
    left = [answer for answers in log.values() for answer in answers if answer.token_ids]
    assert len(left) <= lost, left


def take(log: dict[tuple[int, ...], list[Answer]], row: Trajectory, start: int, end: int) -> None:
    """Take the answers out of an engine's log that together are one answer of a trajectory, and compare them."""
    ids = tuple(row.token_ids_T)
    while True:
        fitting = [
            answer
            for answer in log[ids[:start]]
            if ids[start:end][: len(answer.token_ids)] == answer.token_ids
            and array("f", answer.logprobs) == row.logprobs_T[start : start + len(answer.token_ids)]
        ]
        # Of an aborted answer and a whole one with the same beginning, the whole one was delivered.
        found = max(
            fitting, key=lambda answer: (len(answer.token_ids), answer.finish != "abort"), default=None
        )
        assert found is not None, f"nobody sampled {list(ids[start:end])} after these {start} ids"
        log[ids[:start]].remove(found)
        start += len(found.token_ids)
        if start == end and found.finish != "abort":
            return


def recompute(app: EngineApp, graph: TokenGraph, model: str) -> None:
    """Compute the logprobs of every trajectory again by the engine's distribution."""
    for row in graph.trajectories:
        ids = list(row.token_ids_T)
        for span in row.spans:
            if span.is_trained:
                again = logprobs_of(model, ids[: span.start], ids[span.start : span.end], app.version)
                assert again == pytest.approx(row.logprobs_T[span.start : span.end].tolist(), abs=1e-5)
