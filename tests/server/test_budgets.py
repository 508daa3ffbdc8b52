"""What the runs of a key may cost: the same at every door, after a restart, and for each period by itself."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.contract.test_journal import start, write
from tests.server.test_access import KEYS
from tests.server.test_responses import CONFIG, journal, serving

from treadle.core import events as e
from treadle.core.types import Completion, FinishReason, Message, Role, Usage
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.models.config.tables import KeyTable
from treadle.server.admission.access import RequestRefused
from treadle.server.admission.budgets import OWNER, Budgets

__all__ = ["journal"]
MESSAGES = [{"role": "user", "content": "hello"}]
A2A = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "SendMessage",
    "params": {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}},
}
AG_UI = {
    "threadId": "t",
    "runId": "r",
    "state": {},
    "messages": [{"id": "1", "role": "user", "content": "hello"}],
    "tools": [],
    "context": [],
    "forwardedProps": {},
}
MCP = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "echo", "arguments": {"message": "hello"}},
}
DOORS: dict[str, Any] = {
    "responses": {"model": "echo", "input": "hello"},
    "runs": {"model": "echo", "input": "hello", "wait": True},
    "chat/completions": {"model": "echo", "messages": MESSAGES},
    "messages": {"model": "echo", "messages": MESSAGES, "max_tokens": 50},
    "ag-ui/echo": AG_UI,
    "a2a/echo": A2A,
    "../mcp": MCP,
}


async def ask(url: str, door: str, body: Any = None, key: str = "kims-key") -> httpx.Response:
    headers = {
        "authorization": f"Bearer {key}",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2025-11-25",
        "a2a-version": "1.0",
    }
    async with httpx.AsyncClient(timeout=30) as http:
        return await http.post(
            f"{url}/v1/{door}", json=DOORS[door] if body is None else body, headers=headers
        )


def config(tmp_path: Path, limit: str, text: str = KEYS) -> Path:
    path = tmp_path / "treadle.toml"
    path.write_text(text.replace("[serve.keys.kim]\n", f"[serve.keys.kim]\n{limit}\n"))
    return path


def is_refused(answer: httpx.Response) -> bool:
    return "this key has spent" in answer.text


@pytest.mark.parametrize("door", DOORS)
async def test_a_spent_budget_is_refused_at_every_door(tmp_path: Path, journal: Journal, door: str) -> None:
    path = config(tmp_path, "max_tokens = 5")
    async with serving(path, journal) as url:
        first = await ask(url, door)
        assert first.status_code < 300, first.text
        assert not is_refused(first)
        asked = journal.runs()
        assert asked[0].steps == 1
        refused = await ask(url, door)
        assert is_refused(refused)
        if door not in ("a2a/echo", "../mcp"):  # their errors are answers
            error = refused.json()["error"]
            said = error["type"] if door == "messages" else error["code"]
            expected = "rate_limit_error" if door == "messages" else "budget_exceeded"
            assert (refused.status_code, said) == (429, expected)
            assert int(refused.headers["retry-after"]) > 0
            assert refused.headers["x-should-retry"] == "false"
        other = await ask(url, "runs", key="roots-key")
        assert other.status_code == 201
    async with serving(path, journal) as url:
        assert is_refused(await ask(url, "responses"))
    assert len(journal.runs()) == len(asked) + 1
    assert journal.runs()[0].steps == 1


async def test_a_run_does_not_go_on_when_the_budget_is_spent(tmp_path: Path, journal: Journal) -> None:
    async with serving(config(tmp_path, "max_tokens = 5"), journal) as url:
        run = (await ask(url, "runs")).json()["id"]
        for place, body in (
            ("turns", {"input": "more"}),
            ("resume", {}),
            ("fork", {"input": "more"}),
            ("inbox", {"type": "queue", "message": {"role": "user", "content": "more"}}),
        ):
            assert is_refused(await ask(url, f"runs/{run}/{place}", body)), place
        note = await ask(url, f"runs/{run}/inbox", {"type": "note", "labels": {"team": "a"}})
        assert note.status_code == 202
    assert [info.steps for info in journal.runs()] == [1]


@pytest.mark.parametrize(
    ("price", "said"),
    [
        ("price = { input_usd_per_million = 100, output_usd_per_million = 100 }", "US dollars this month"),
        ("", "is not known"),
    ],
)
async def test_what_runs_cost_is_limited(tmp_path: Path, journal: Journal, price: str, said: str) -> None:
    (tmp_path / "other.toml").write_text(CONFIG)
    async with serving(tmp_path / "other.toml", MemoryJournal()) as model:
        paid = f'[models.paid]\nmodel = "echo"\nbase_url = "{model}/v1"\n{price}\n'
        async with serving(config(tmp_path, "max_cost_usd = 0.0001", KEYS + paid), journal) as url:
            body = {"model": "paid", "input": "hello", "wait": True}
            assert (await ask(url, "runs", body)).json()["output"] == "You said: hello"
            refused = await ask(url, "runs", body)
            assert (refused.status_code, said in refused.text) == (429, True), refused.text


async def spent_by(journal: Journal, **limits: Any) -> int:
    """Return how many tokens a new process counts for kim."""
    budgets = Budgets(journal, {"kim": KeyTable(sha256="0" * 64, max_tokens=1, **limits)})
    with pytest.raises(RequestRefused, match="has spent") as refused:
        await budgets.check("kim")
    return int(refused.value.detail.split("spent ")[1].split()[0].replace(",", ""))


async def test_a_fork_costs_only_what_it_asks_itself(tmp_path: Path, journal: Journal) -> None:
    async with serving(config(tmp_path, ""), journal) as url:
        run = (await ask(url, "runs")).json()
        first = await spent_by(journal)
        assert first == run["input_tokens"] + run["output_tokens"]
        made = await ask(url, f"runs/{run['id']}/fork", {"input": "more", "wait": True})
    fork = made.json()
    assert await spent_by(journal) == fork["input_tokens"] + fork["output_tokens"]


def asked(step: int, tokens: int, at: float) -> e.InferenceCompleted:
    completion = Completion(Message(Role.ASSISTANT, "a"), FinishReason.STOP, Usage(tokens - 1, 1), 0.0)
    return e.InferenceCompleted(at=at, step=step, completion=completion)


async def test_a_period_counts_what_was_asked_in_it(journal: Journal) -> None:
    now = time.time()
    old = now - 40 * 24 * 3600
    bodies = [replace(body, at=old) for body in start(1, is_session=True, metadata={OWNER: "kim"})]
    await write(journal, "r", *bodies, asked(1, 70, old), asked(2, 11, now))
    assert await spent_by(journal, budget_period="total") == 81
    assert await spent_by(journal, budget_period="month") == 11
