"""Harbor's tasks of several steps: turns of one run over the same files, each with tests of its own."""

from pathlib import Path

import pytest
from tests.conftest import IS_FULL
from tests.tasks.test_foreign import solve
from tests.tasks.test_harbor_folder import HARBOR, write

from treadle import model
from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, SandboxError
from treadle.core.events import RunFinished, SnapshotTaken, TurnStarted
from treadle.core.policy import Policy
from treadle.core.replay import replay
from treadle.journal.memory import MemoryJournal
from treadle.runs.run import Run
from treadle.runs.task import Task, load_task
from treadle.scoring.grade import grade
from treadle.scoring.scorers import CheckScorer
from treadle.tasks.foreign.harbor_folder import read_folder
from treadle.testbed import oracle_for
from treadle.trajectory.run_verification import verify_run

REWARD = "/logs/verifier/reward"
STEPPED: dict[str, str | bytes] = {
    "task.toml": """
[verifier.env]
GRADE = "general"
OTHER = "general"
[environment.env]
MODE = "fast"
[[steps]]
name = "first"
[[steps]]
name = "second"
min_reward = {style = 0.5}
[steps.agent]
timeout_sec = 30
[steps.verifier]
env = {GRADE = "own"}
[[steps]]
name = "third"
""",
    "steps/first/instruction.md": "Write one.\n",
    "steps/first/workdir/data/given.txt": "given",
    "steps/first/solution/solve.sh": "cp data/given.txt one\n",
    "steps/first/tests/test.sh": f"[ -f one ] && . /tests/helper.sh; echo ${{found:-0}} > {REWARD}.txt\n",
    "steps/second/instruction.md": "Write two.\n",
    "steps/second/workdir/setup.sh": 'echo "$MODE $PWD" > setting; ./tool; rm one setup.sh\n',
    "steps/second/workdir/tool": "#!/bin/sh\necho made > made\n",
    "steps/second/solution/solve.sh": """[ ! -e one ] && [ "$(cat setting made)" = "fast /app
made" ] && touch two
""",
    "steps/second/tests/test.sh": f"""[ -f two ] && [ "$GRADE$OTHER" = owngeneral ] && [ ! -e /tests/first.txt ] &&
echo '{{"reward": 1, "style": 0.5}}' > {REWARD}.json || echo '{{"style": 0}}' > {REWARD}.json\n""",
    "steps/third/instruction.md": "Write three.\n",
    "steps/third/solution/solve.sh": "cp two three\n",
    "tests/helper.sh": "found=0.5\n",
    "tests/test.sh": f'[ -f three ] && echo 0.9 > {REWARD}.txt || echo 0.1 > {REWARD}.txt\n',
    "steps/first/tests/first.txt": "",
}  # fmt: skip


def write_steps(place: Path, changes: dict[str, str | bytes] | None = None) -> Task:
    """Write a task of three steps, and return it. A value that begins with a plus is added to that of the task."""
    kept = {name: text for name, text in HARBOR.items() if name.startswith("environment")}
    made = {**STEPPED}
    for name, text in (changes or {}).items():
        whole = isinstance(text, str) and text[:1] == "+"
        made[name] = str(made[name]) + str(text)[1:] if whole else text
    reference = write(place, kept, made)
    (place / "odd" / "steps" / "second" / "workdir" / "tool").chmod(0o755)
    return load_task(reference)


async def play(task: Task, journal: MemoryJournal | None = None, **settings: Policy) -> Run[str]:
    return await Agent(oracle_for(task), journal=journal or MemoryJournal(), **settings).run(task)


def told(run: Run[str]) -> str:
    (graded,) = [event.body for event in run.events if type(event.body).__name__ == "Rewarded"]
    return str(graded.detail)


async def test_steps_are_turns_over_the_same_files(tmp_path: Path) -> None:
    task, journal = write_steps(tmp_path), MemoryJournal()
    run = await play(task, journal)
    said = [event.body.message.content for event in run.events if isinstance(event.body, TurnStarted)]
    assert said == ["Write one.", "Write two.", "Write three."]
    # The mean is taken for each name: `reward` of 0.5, 1 and 0.9.
    assert run.reward == pytest.approx(0.8)
    assert told(run).startswith("its steps gave 0.5, 1, 0.9; its tests gave 0.9")
    assert set(run.files) == {"data/given.txt", "made", "setting", "three", "tool", "two"}
    assert replay(run.events, lambda output, text: None).is_exact
    verified = await verify_run(journal, run.run_id)
    assert verified.is_verified, verified.differences
    await grade(journal, run.run_id, [CheckScorer("again")])
    assert set(Run.load(run.run_id, journal).state.turn.rewards.values()) == {run.reward}


async def test_a_run_goes_on_after_any_event(tmp_path: Path) -> None:
    task, journal = write_steps(tmp_path), MemoryJournal()
    agent = Agent(oracle_for(task), journal=journal)
    run = await agent.run(task)
    began = next(event.seq for event in run.events if isinstance(event.body, TurnStarted))
    ended = next(event.seq for event in run.events if isinstance(event.body, RunFinished))
    for at in range(began, ended, 1 if IS_FULL else 4):
        fork = await agent.fork(run.run_id, at)
        assert (fork.reward, fork.files) == (run.reward, run.files), at


async def test_a_model_that_does_nothing(tmp_path: Path) -> None:
    task = write_steps(tmp_path, {"steps/second/workdir/setup.sh": "touch prepared\n"})
    run = await Agent(model("mock:echo"), journal=MemoryJournal()).run(task)
    assert run.reward == 0.0
    assert told(run).startswith(
        "its step 'second' has too little style; its steps gave 0, 0; its tests gave 0"
    )


@pytest.mark.parametrize(
    ("changes", "reward", "why"),
    [
        ({"task.toml": '+[metadata]\nx = 1\n'}, 0.8, "its steps gave 0.5, 1, 0.9; "),
        ({"steps/second/solution/solve.sh": "true\n"}, 0.25, "its step 'second' has too little style; its steps"),
        ({"steps/second/workdir/setup.sh": "echo no; false\n"}, 0.5, "its step 'second' could not be prepared: no"),
        ({"steps/first/tests/test.sh": "true\n"}, 0.0, "its step 'first' has no reward; its tests wrote no reward"),
        ({"tests/test.sh": "true\n"}, 0.75, "its steps gave 0.5, 1, 0; its tests wrote no reward"),
    ],
)  # fmt: skip
async def test_rewards_are_joined_as_harbor_does(
    tmp_path: Path, changes: dict[str, str | bytes], reward: float, why: str
) -> None:
    run = await play(write_steps(tmp_path, changes))
    assert run.reward == pytest.approx(reward)
    assert told(run).startswith(why)


def test_the_tests_of_a_step_have_its_time_limit_and_not_that_of_the_task(tmp_path: Path) -> None:
    limits = "[agent]\ntimeout_sec = 7\n[verifier]\ntimeout_sec = 8\n"
    steps = "".join([f"[[steps]]\nname = '{name}'\n" for name in ("first", "second", "third")])
    write_steps(tmp_path, {"task.toml": f"{limits}{steps}verifier.timeout_sec = 9\n"})
    turns = read_folder(tmp_path / "odd")
    assert [turn.seconds("verifier", "", 600.0) for turn in turns] == [600.0, 600.0, 9.0]
    assert [turn.seconds("agent", "", 600.0) for turn in turns] == [7.0, 7.0, 7.0]


@pytest.mark.parametrize(("line", "reward"), [("", 0.9), ("exit 1\n", 0.5)])
async def test_only_the_last_step_may_count(tmp_path: Path, line: str, reward: float) -> None:
    final = f'multi_step_reward_strategy = "final"\n{STEPPED["task.toml"]}'
    setup = f"{line}{STEPPED['steps/second/workdir/setup.sh']}"
    run = await play(write_steps(tmp_path, {"task.toml": final, "steps/second/workdir/setup.sh": setup}))
    assert run.reward == pytest.approx(reward)


async def test_steps_that_a_limit_kept_from_beginning_count_as_zero(tmp_path: Path) -> None:
    """Else a model that stops after an easy step would be the best."""
    run = await play(write_steps(tmp_path), policy=Policy(max_steps=1))
    assert run.stop_reason == "max_steps"
    assert run.reward == pytest.approx(0.5 / 3)
    assert told(run).startswith("its steps gave 0.5, and 2 did not begin; ")


@pytest.mark.parametrize(
    ("setup", "reward", "fault"),
    [
        # It fails only because the agent has removed what it needs, and would work without the agent.
        ("cat data/given.txt\n", 0.5 / 3, "; it can be prepared with the task's own files, so this is the agent's"),
        # It needs what the agent makes, or is wrong itself: nothing shows that this is the agent's fault.
        ("cat data/given.txt one\n", 0.5, "data/given.txt: No such file or directory"),
        # A folder is in place of the script itself.
        ("true\n", 0.5 / 3, "'setup.sh' is a folder, so no file can have its name; it can be"),
    ],
)  # fmt: skip
async def test_a_step_that_the_agent_keeps_from_being_prepared(
    tmp_path: Path, setup: str, reward: float, fault: str
) -> None:
    solved = "+rm -r data\n" if setup.startswith("cat") else "+mkdir setup.sh; touch setup.sh/x\n"
    changes = {
        "steps/first/solution/solve.sh": solved,
        "steps/second/workdir/setup.sh": setup,
    }
    run = await play(write_steps(tmp_path, changes))
    assert run.reward == pytest.approx(reward)
    assert told(run).startswith("its step 'second' could not be prepared: ")
    assert fault in told(run)
    assert ("agent's fault" in told(run)) is (reward < 0.5)


async def test_a_check_of_the_environment_comes_before_the_turn(tmp_path: Path) -> None:
    ready = '+[steps.healthcheck]\ncommand = "test -e two && echo seen > ready"\n'
    run = await play(write_steps(tmp_path / "a", {"task.toml": ready}))
    assert (run.reward, run.files["ready"]) == (pytest.approx(0.8), b"seen\n")
    ready = ready.replace("test -e two", "test -e four")
    run = await play(write_steps(tmp_path / "b", {"task.toml": ready}))
    assert told(run).startswith("its step 'third' could not be prepared: ")
    begun = write(
        tmp_path / "c", HARBOR, {"task.toml": '[environment.healthcheck]\ncommand = "test -d /app # there"\n'}
    )
    assert (await solve(begun)).reward == 1.0
    missing = write(
        tmp_path / "d", HARBOR, {"task.toml": '[environment.healthcheck]\ncommand = "test -e x"\n'}
    )
    with pytest.raises(SandboxError, match="its environment could not be prepared: exit code 1"):
        await solve(missing)


async def test_a_step_without_a_reference_solution(tmp_path: Path) -> None:
    task = write_steps(tmp_path, {"steps/second/workdir/setup.sh": 'echo "fast $PWD" > setting; ./tool\n'})
    (tmp_path / "odd" / "steps" / "first" / "solution" / "solve.sh").unlink()
    run = await play(task)
    assert told(run).startswith("its steps gave 0, 1, 0.9; ")
    assert run.messages[1].content == "This step has no reference solution."


async def test_changes_for_a_turn_are_one_event_with_it(tmp_path: Path) -> None:
    run = await play(write_steps(tmp_path))
    bodies = [event.body for event in run.events]
    places = [place for place, body in enumerate(bodies) if isinstance(body, TurnStarted)]
    before = [bodies[place - 1] for place in places]
    assert all(isinstance(body, SnapshotTaken) for body in before)
    assert "setting" in before[1].delta.changed
    assert "one" in before[1].delta.deleted


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"task.toml": "[verifer]\ntimeout_sec = 9\n"}, "key 'verifer', .*; did you mean 'verifier'"),
        ({"task.toml": "[agent]\ntimout_sec = 9\n"}, "its agent has .*; did you mean 'timeout_sec'"),
        ({"task.toml": '[[steps]]\nname = "first"\nmin_rewards = 1\n'}, "; did you mean 'min_reward'"),
        ({"task.toml": "steps = 3\n"}, "its steps are 3; write tables"),
        ({"task.toml": 'multi_step_reward_strategy = "maen"\n'}, "strategy is 'maen'; write 'mean' or 'final'"),
        ({"task.toml": '[[steps]]\nname = "../first"\n'}, r"name '../first'; give the name of a folder in steps/"),
        ({"task.toml": '[[steps]]\nname = "none"\n'}, "'none' has no instruction: there is no file '.*/none/instr"),
        ({"steps/third/instruction.md": b"\xff"}, "its step 'third' has an instruction that is not UTF-8"),
        ({"task.toml": '[[steps]]\nname = "first"\nmin_reward = "all"\n'}, "min_reward 'all'; give a number"),
        ({"steps/third/trajectory.json": "{}"}, "its agent has earlier answers"),
        ({"steps/third/tests/test.sh": "curl https://example.org\n"}, "its tests use the network"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_steps(tmp_path: Path, changes: dict[str, str | bytes], why: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be run here: .*{why}"):
        write_steps(tmp_path, changes)
