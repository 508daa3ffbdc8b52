"""Settings that cannot work are told before much is sampled in vain."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.testbed.threaded import ThreadedServer

from treadle.core.errors import ConfigError, TransportError
from treadle.export.groups import Group
from treadle.rollout import Rollouts
from treadle.rollout.deliveries import MAX_REFUSED
from treadle.rollout.rollout_config import READER
from treadle.rollout.sinks.protocol import Receipt, SinkCheck, SinkMemory
from treadle.rollout.sinks.registry import make_sinks
from treadle.scoring.protocol import Subject
from treadle.testbed.engines import ENGINES, EngineSettings, export_tokenizer
from treadle.testbed.server import ServerSettings
from treadle.testbed.server.oracle_app import OracleApp


def make(path: Path, **options: Any) -> Rollouts:
    return Rollouts(**{"tasks": ["files:csv_sum-*"], "groups": 2, "group_size": 2, "path": path, **options})


@pytest.mark.parametrize("kind", list(ENGINES))
def test_the_renderer_of_another_model_is_refused(tmp_path: Path, kind: str) -> None:
    """Else the model would see nonsense, and its answers would be read as nonsense."""
    app = ENGINES[kind](EngineSettings())
    export_tokenizer("oracle", tmp_path / "tokenizer")
    with ThreadedServer(app) as server:
        name = {"model": f"{kind}:oracle", "base_url": server.url}
        for renderer in ("chatml", "chatml?thinking=closed"):
            rollouts = make(tmp_path / "wrong", model={**name, "renderer": renderer})
            with pytest.raises(ConfigError, match=r"the renderer 'chatml\S*' is for another model than"):
                asyncio.run(rollouts.run())
        assert not app.sampled
        right = make(tmp_path / "right", model={**name, "renderer": f"hf:{tmp_path}/tokenizer"})
        assert asyncio.run(right.run()).end.reason == "done"


def test_a_sink_that_refuses_every_group_ends_the_work(tmp_path: Path) -> None:
    """A server that returns no ids cannot serve a sink that needs them, however much is sampled."""
    sink = f"verl:{tmp_path}/rows.jsonl"
    with ThreadedServer(OracleApp(ServerSettings())) as server:
        rollouts = make(
            tmp_path / "work",
            model={"model": "vllm:oracle", "base_url": server.url},
            groups=40,
            window=4,
            sinks=[sink],
        )
        with pytest.raises(
            ConfigError, match="has refused all 3 groups so far, the last one because branch 0"
        ):
            asyncio.run(rollouts.run())
    assert rollouts.progress.delivered == MAX_REFUSED
    asyncio.run(make(tmp_path / "few", model="oracle", sinks=[f"verl:{tmp_path}/few.jsonl"]).run())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("orcle", "there is no model 'orcle'; did you mean 'oracle'?"),
        ({"model": "orcale", "renderer": "chatml"}, "there is no model 'orcale'; did you mean 'oracle'?"),
        ({"model": "oracle", "temperature": 1.0}, "the model 'oracle' takes no settings and no renderer"),
    ],
)
def test_a_misspelt_model_is_not_one_of_openai(tmp_path: Path, model: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        READER.load(None, {"model": model, "path": str(tmp_path)})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deliver": "rollout", "advantages": "group"}, "advantages: single rollouts have no advantages"),
        ({"curriculum": {}, "order": "given"}, "order: a curriculum draws the tasks"),
        ({"loss": "last_turn"}, "loss: it is about what sinks train on, and there are none"),
        ({"command": "true", "agent": {"tools": ["files"]}}, "agent.tools: a command has a loop of its own"),
        ({"command": "true", "workers": "local:2"}, "workers: a command has no workers"),
        ({"model": {"model": "openai:m", "temperature": float("inf")}}, "model.temperature: "),
    ],
)
def test_a_key_without_an_effect_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        READER.load(None, {"model": "mock:echo", **options})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("atropos:trainer", "needs the address of the server, such as atropos:http://localhost:8000"),
        (
            "trl:rows",
            "did you mean 'trl_grpo' or 'trl_sft'? the sinks are jsonl, parquet, atropos, tensorboard,",
        ),
    ],
)
def test_wrong_sinks_are_told(sink: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_sinks([sink], group_size=2)
    assert said in str(caught.value)
    assert str(caught.value).count("atropos,") <= 1


@pytest.mark.parametrize(
    ("task", "said"),
    [("files:", "'files:' has no task"), ("files:csv_smu-*", "fits 'csv_smu-*'; did you mean 'csv_sum'?")],
)
def test_wrong_tasks_are_told(tmp_path: Path, task: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, model="oracle", tasks=[task])
    assert said in str(caught.value)


def half(subject: Subject) -> float:
    return 0.5


def test_a_reward_may_be_a_function(tmp_path: Path) -> None:
    rewards = {"half": half, "weighed": {"scorer": half, "weight": 2.0}}
    (group,) = make(tmp_path, model="mock:echo", groups=1, rewards=rewards).groups_sync()
    assert group.rewards_G == (1.5, 1.5)
    for value in (lambda subject: 1.0, {"scorer": lambda subject: 1.0}):
        with pytest.raises(ConfigError, match=r"rewards.mine: \S+ cannot be found again by its name"):
            make(tmp_path, rewards={"mine": value})


def test_a_model_that_is_none_of_the_possible_things_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the model is 3; give a name"):
        asyncio.run(make(tmp_path, model=3).run())


def test_an_error_of_the_trainer_is_all_that_is_told(tmp_path: Path) -> None:
    """Closing the rollouts adds no error of its own, and what was not asked for again is given once more."""
    told: list[dict[str, Any]] = []

    async def train() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        async for _ in make(tmp_path, model="mock:echo", sinks=[f"jsonl:{tmp_path}/rows.jsonl"]):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(train())
    assert not told
    assert (
        len(list(make(tmp_path, model="mock:echo", sinks=[f"jsonl:{tmp_path}/rows.jsonl"]).groups_sync()))
        == 2
    )


class StuckSink:
    """A sink that cannot deliver at the moment."""

    name = "stuck"

    def open(self, memory: SinkMemory) -> None: ...

    def encode(self, group: Group) -> bytes:
        return b""

    async def check(self) -> SinkCheck:
        raise TransportError("no space left on device")

    async def deliver(self, key: str, data: bytes) -> Receipt:
        raise TransportError("no space left on device")

    async def close(self) -> None: ...


def test_a_stop_waits_for_no_sink_that_cannot_deliver(tmp_path: Path) -> None:
    """Complete groups that wait for room in the queue are counted, and stay in it on disk."""

    async def work() -> Rollouts:
        rollouts = make(tmp_path, model="mock:echo", groups=20, ahead=2, window=12, sinks=[StuckSink()])
        working = asyncio.ensure_future(rollouts.run())
        while rollouts.progress.waiting < 3 or not rollouts.progress.troubles:
            await asyncio.sleep(0.01)
            if rollouts._work is not None:
                rollouts._work._refresh()
        rollouts.stop()
        assert (await working).end.reason == "stopped"
        return rollouts

    progress = asyncio.run(work()).progress
    assert progress.undelivered == progress.delivered > 2
    assert len((tmp_path / "groups.jsonl").read_text().splitlines()) == progress.delivered
