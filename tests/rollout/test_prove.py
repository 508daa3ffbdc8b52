"""The example `examples/prove`: its whole chain in a tiny form, and the parts that its figures stand on."""

import sys
from pathlib import Path

import pytest
from tests.environments import LateModule

from treadle import open_journal
from treadle.core.types import Role
from treadle.evals.evaluation_results import name_failure
from treadle.export.rows import load_row
from treadle.rollout import Rollouts
from treadle.runs.task import TASK_SETS, SimpleTask
from treadle.testbed.server import serve

sys.path.append(str(Path(__file__).parents[2] / "examples" / "prove"))
LateModule("torch")  # or the tests are skipped
LateModule("tokenizers")
pytestmark = pytest.mark.xdist_group("training")
TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def errands(monkeypatch):
    from errands import ErrandSet

    found = ErrandSet()
    monkeypatch.setattr(TASK_SETS, "_loaded", {})
    TASK_SETS.add("errands", found)
    return found


async def play(folder: Path, *ids: str, **options):
    """Let the oracle do errands, and return a row of each."""
    tasks = [f"errands:{item}" for item in ids]
    given = {"model": "oracle", "group_size": 1, "order": "given", "advantages": "none"} | options
    await Rollouts(tasks=tasks, groups=len(tasks), path=folder, **given).run()
    with open_journal(folder / "runs.db") as journal:
        return [load_row(journal, f"rollout-{number}-0") for number in range(1, len(ids) + 1)]


async def test_the_oracle_solves_all_templates_and_another_outcome_is_wrong(tmp_path, errands):
    from errands import TEMPLATES

    rows = await play(tmp_path, *[f"{name}-9001" for name in TEMPLATES])
    assert [row.lineage.reward for row in rows] == [1.0] * len(TEMPLATES)
    for name in TEMPLATES:
        task = errands.get(f"{name}-9001")
        answer, cards = task.outcome
        assert task.check(answer, cards).reward == 1.0
        assert task.check("wrong", cards).reward == 0.0
        assert task.check(answer, {**cards, "more": b""}).reward == 0.0
        wrong = task.check(answer, dict.fromkeys(cards, b"wrong"))
        assert wrong.reward == 0.0
        # The names of cards are all different, and failures of one kind are one line of a report.
        assert name_failure(wrong.detail) == "the card … is wrong"


def test_no_held_out_errand_is_one_to_train_on(errands):
    splits = {name: set(ids) for name, ids in errands.splits.items()}
    prompts = {name: {errands.get(item).input for item in sorted(ids)[:500]} for name, ids in splits.items()}
    shapes = {name: {item.partition("-")[0] for item in ids} for name, ids in splits.items()}
    assert not splits["train"] & splits["instances"]
    assert not prompts["train"] & prompts["instances"]
    assert shapes["train"] == shapes["instances"]
    assert not shapes["train"] & shapes["templates"]


async def test_simulated_rows_have_the_results_of_a_mock_and_lose_what_is_called_twice(tmp_path):
    from rows import simulate

    (row,) = await play(tmp_path, "change-0001")
    assert [len(message.tool_calls) for message in row.messages if message.role is Role.ASSISTANT] == [
        1,
        1,
        1,
        0,
    ]
    for is_mock in (True, False):
        made = simulate(row, is_mock=is_mock)
        calls = [call.name for message in made.messages for call in message.tool_calls]
        assert calls == ["get", "put"]  # The second `get` has the arguments of the first.
        assert made.messages[-1].content == row.messages[-1].content
        results = [message.content for message in made.messages if message.role is Role.TOOL]
        assert all(["Successfully executed" in text for text in results]) is is_mock


async def test_the_mask_is_on_the_answers_and_the_ids_say_what_the_row_says(tmp_path):
    from rows import make_vocabulary, tokenize

    from treadle.renderers.registry import load_renderer

    rows = await play(tmp_path / "runs", *[f"swap-{number:04d}" for number in range(30)])
    words = make_vocabulary(rows, tmp_path / "words")
    renderer = load_renderer(words.renderer)
    ids, mask = tokenize(rows[0], words.renderer)
    assert renderer.decode(ids).rstrip() in renderer.decode(renderer.render(rows[0].messages, rows[0].tools))
    parts = [renderer.decode([number for number, is_own in zip(ids, mask, strict=True) if is_own])]
    said = [message for message in rows[0].messages if message.role is Role.ASSISTANT]
    assert "".join(parts).count("<|im_end|>") == len(said)
    assert "".join(parts).endswith("done<|im_end|>")
    assert "tool_response" not in parts[0]
    for call in said[0].tool_calls:
        assert call.arguments in parts[0]


async def test_rollouts_have_the_logprobs_of_a_forward_pass(tmp_path):
    import torch
    from network import Network
    from rows import make_vocabulary
    from serving import NetworkApp, describe

    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = await play(tmp_path / "runs", "tell-0000", "change-0000", "swap-0000", "write-0000")
    words = make_vocabulary(rows, tmp_path / "words")
    network = Network(words.size, 32, 2, 2)
    server = await serve(app=NetworkApp({"tiny": network}, words.renderer, ""))
    compared = 0
    lengths = set()
    rollouts = Rollouts(
        model=describe(server.url, "tiny", words.renderer, 12),
        tasks=["errands:train"],
        groups=4,
        group_size=4,
        path=tmp_path / "rollouts",
        agent={"max_steps": 3},
    )
    async for group in rollouts:
        for row in [row for rollout in group.rollouts for row in rollout.trajectories]:
            with torch.no_grad():
                again = network.logprobs(torch.tensor([row.token_ids_T.tolist()]))[0].tolist()
            lengths.add(len(row.token_ids_T))
            for at in range(1, len(row.token_ids_T)):
                if row.sampled_T[at]:
                    assert again[at - 1] == pytest.approx(row.logprobs_T[at], abs=TOLERANCE)
                    compared += 1
    await server.close()
    assert compared > 50
    assert len(lengths) > 1


@pytest.mark.sets(0)
def test_the_whole_chain(tmp_path, capsys):
    from prove import MOCK, OURS, RECORDED, main

    sizes = "--rows 24 --tokens 3000 --width 32 --layers 1 --rl-steps 2 --rl-groups 2 --rl-group-size 2"
    main(["--out", str(tmp_path / "out"), *sizes.split(), "--eval-tasks", "4", "--max-output-tokens", "8"])
    report = (tmp_path / "out" / "report.md").read_text()
    assert report in capsys.readouterr().out
    for split in ("instances", "templates"):
        assert f"held-out {split}" in report
        assert (tmp_path / "out" / f"{split}.html").exists()
    for name in (OURS, MOCK, RECORDED):
        assert f"- {name} solves " in report
    assert f"{OURS} minus {RECORDED}: " in report
    assert "20 of 20 samples" in report
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "out")])


async def test_a_model_of_hugging_face_takes_the_place_of_the_network(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import argparse

    from hub import HubNetwork, find_renderer
    from prove import reinforce
    from serving import NetworkApp, describe
    from tests.rollout.torch_policy import make_tiny

    from treadle.testbed.engines import export_tokenizer

    folder = tmp_path / "model"
    make_tiny().network.save_pretrained(folder)
    export_tokenizer("oracle", folder)
    network, renderer = HubNetwork(str(folder), "cpu"), find_renderer(str(folder))
    app = NetworkApp({"hub": network}, renderer, "say something")
    server = await serve(app=app)
    letters = [
        SimpleTask(task_id="one", input="Write.", grader=lambda task, output, files: len(output) % 7 / 7)
    ]
    TASK_SETS.add("letters", letters)
    before = [item.clone() for item in network.parameters()]
    options = argparse.Namespace(
        device="cpu", train="letters", rl_steps=2, rl_groups=1, rl_group_size=4, rl_rate=1e-3, seed=0
    )
    options.max_steps, options.rl_batch_tokens, options.out = 2, 4096, tmp_path
    model = describe(server.url, "hub", renderer, 8)
    first, last = await reinforce(network, app, model, options)
    await server.close()
    assert 0 < first < 1
    assert 0 < last < 1
    assert app.version == "2"
    assert not all(map(torch.equal, before, network.parameters()))


@pytest.mark.parametrize("option", ["--rl-steps", "--eval-tasks", "--rows"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_size_that_is_nothing_is_refused_before_the_work(option, value, capsys):
    from prove import main

    with pytest.raises(SystemExit):
        main([f"{option}={value}"])
    assert f"argument {option}: {value!r} is not a whole number from 1" in capsys.readouterr().err
