"""What the API tells pages about datasets, rollouts, tokens and exports, and who may know it."""

import base64
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace
from openai import APIStatusError, AsyncOpenAI
from tests.datagen.dataset import made
from tests.server.test_access import KEYS, client_of
from tests.server.test_responses import journal, serving

from treadle import Agent, load_task
from treadle.core.errors import ConfigError
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.journal.protocol import Journal
from treadle.server.api_server import load_served
from treadle.testbed import oracle_for
from treadle.viewer.viewed_data import ViewedData

__all__ = ["journal"]


@pytest.fixture
async def url(tmp_path: Path, journal: Journal) -> AsyncIterator[str]:
    path = tmp_path / "treadle.toml"
    path.write_text(KEYS)
    dataset = made.plain_folder(tmp_path / "d", 40)
    served = replace(load_served(path, None), viewed=ViewedData([dataset, DatasetFolder(dataset).rows]))
    async with serving(served, journal) as address:
        yield address


async def ask(client: AsyncOpenAI, path: str) -> Any:
    return await client.get(path, cast_to=object)


async def refused(client: AsyncOpenAI, path: str) -> int:
    with pytest.raises(APIStatusError) as caught:
        await ask(client, path)
    return caught.value.status_code


async def test_a_page_asks_for_the_rows_of_a_dataset(url: str, tmp_path: Path) -> None:
    client = client_of(url, "roots-key")
    shown = await ask(client, "/view/pages")
    assert shown == {"pages": ["runs", "dataset", "datasets"], "start": "#/datasets"}
    assert (await ask(client, "/view/datasets/0"))["stats"]["rows"] == 40
    found = await ask(client, "/view/datasets/0/rows?words=EUR+7%3F&status=kept&limit=2")
    assert (found["total"], found["found"], len(found["heads"])) == (42, 4, 2)
    body = await ask(client, f"/view/datasets/0/rows/{found['heads'][0]['number']}")
    assert body["messages"][0]["text"] == "What is in file 7?"
    assert not (await ask(client, "/view/datasets/0/rows/1?is_rejected=true"))["verdicts"][1]["is_passed"]
    compared = await ask(client, "/view/comparison")
    assert (compared["equal"], compared["only"]) == (40, [[], []])
    with DatasetFolder(tmp_path / "d").rows.open("ab") as file:
        file.write(made.encode(made.plain_row(50)))
    assert (await ask(client, "/view/datasets/0"))["stats"]["rows"] == 41
    assert await refused(client, "/view/datasets/0/rows/99") == 404
    assert await refused(client, f"/view/datasets/0/rows/{10**20}") == 404
    assert await refused(client, f"/view/datasets/0/rows/{10**20}?is_rejected=true") == 404
    for number in (-1, -3, -(10**20), 10**20):
        assert await refused(client, f"/view/datasets/{number}") == 400
    for path in ("datasets/2", "rollouts", "topics", "datasets/0/rows?limit=0", "datasets/..%2Fd/rows"):
        assert await refused(client, f"/view/{path}") in (400, 404, 422), path


async def test_a_page_asks_for_the_tokens_and_the_exports_of_a_run(
    url: str, journal: Journal, tmp_path: Path
) -> None:
    task = load_task("files:csv_sum-0001")
    oracle = oracle_for(task)
    assert oracle is not None
    runs = [
        await Agent(oracle, journal=journal).run(task, metadata={"group": "g1"}, run_id=f"r{number}")
        for number in (1, 2)
    ]
    client = client_of(url, "roots-key")
    tokens = await ask(client, "/view/runs/r1/tokens?mask=last_turn")
    assert "every token once" in tokens["conservation"]
    for branch in tokens["branches"]:
        assert len(array("i", base64.b64decode(branch["ids"]))) == branch["tokens"]
    formats = await ask(client, "/view/formats")
    for name in [item["name"] for item in formats["rows"]] + formats["tokens"]:
        exported = await ask(client, f"/view/runs/r1/exported?format={name}")
        assert bool(exported["lines"]) is not bool(exported["refused"]), name
    assert (await ask(client, "/view/runs/r1/exported?format=treadle"))["losses"] == []
    group = (await ask(client, "/view/groups/g1"))["groups"][0]
    assert [item["run_id"] for item in group["rollouts"]] == [run.run_id for run in runs]
    assert all(item["is_solved"] for item in group["rollouts"])
    said = await ask(client, "/view/rollouts/g1/r2")
    assert said["messages"][-1]["role"] == "assistant"
    code = tmp_path / "code.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef weigh(message):\n    return 1.0\n")
    for path in ("exported?format=nothing", f"tokens?mask={quote(str(code), '')}:weigh", "tokens?mask=no"):
        assert await refused(client, f"/view/runs/r1/{path}") == 400, path
    assert not (tmp_path / "ran").exists()
    assert await refused(client, "/view/runs/r9/tokens") == 404
    assert await refused(client, "/view/rollouts/g1/r9") == 404


async def test_a_key_for_its_own_runs_sees_no_data(url: str, journal: Journal) -> None:
    await Agent("mock:echo", journal=journal).run("say a", run_id="r1")
    client = client_of(url, "readers-key")
    for path in ("pages", "datasets/0", "datasets/0/rows", "comparison", "groups/g1", "rollouts/g1/r1"):
        assert await refused(client, f"/view/{path}") == 403, path
    assert await refused(client, "/view/runs/r1/tokens") == 404
    assert await refused(client, "/view/runs/r1/exported") == 404
    assert await refused(client_of(url, "nobodys-key"), "/view/pages") == 401


def test_paths_that_cannot_be_shown_together_are_refused(tmp_path: Path) -> None:
    one = made.plain_folder(tmp_path / "one", 1)
    (tmp_path / "topics.json").write_text("{}")
    for paths in ([tmp_path / "none"], [one, tmp_path / "topics.json"], [one, one, one]):
        with pytest.raises(ConfigError, match="give one or two journals, datasets"):
            ViewedData(paths)
    with pytest.raises(ConfigError, match=r"there is no '.*topcs\.json'; did you mean 'topics\.json'"):
        ViewedData([one, tmp_path / "topcs.json"])
