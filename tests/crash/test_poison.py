"""A run that ends its process at every start keeps no other run of its job from its end."""

import json
from pathlib import Path

from tests.cli.command import Cli
from tests.forks.process import FORKS

TASKS = """
import os
from treadle import tool
from treadle.runs.task import Grade

@tool(effect="idempotent")
def drink(name: str) -> str:
    "End the process if the name is that of the poison."
    if name == "poison":
        os._exit(17)
    return name

class Drink:
    task_set, seed, instructions, files = "drinks.py:DRINKS", None, None, {}
    tools = ["drinks.py:drink"]
    def __init__(self, task_id):
        self.task_id = task_id
        self.input = f'call drink {{"name": "{task_id}"}}\\nsay done'
    def check(self, output, files):
        return Grade(float(output == "done"), "")

class Drinks:
    names = ["water", "poison", "tea", "milk"]
    def ids(self):
        return self.names
    def get(self, task_id):
        return Drink(task_id)
    def __iter__(self):
        return iter(map(Drink, self.names))
    def __len__(self):
        return len(self.names)

DRINKS = Drinks()
"""
CONFIG = """\
model: 'mock:echo'
tasks: ['drinks.py:DRINKS']
groups: 4
group_size: 1
window: 4
"""
_STARTS = 8


def test_a_run_that_ends_its_process_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "drinks.py").write_text(TASKS)
    (tmp_path / "rollout.yaml").write_text(CONFIG)
    env, codes, lines = Cli(tmp_path).env, [], []
    while len(codes) < _STARTS and codes[-1:] != [0]:
        with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
            process = FORKS.start(
                "-m", "treadle", "rollout", "rollout.yaml", "--json",
                cwd=tmp_path, env=env, stdout=out.fileno(), stderr=err.fileno(),
            )  # fmt: skip
        codes.append(process.wait(120))
        lines += [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert codes == [*[17] * 5, 0], (tmp_path / "err").read_text()
    ended = [line for line in lines if "group_id" in line]
    delivered = {line["task"].rpartition(":")[2] for line in ended if line["status"] == "delivered"}
    assert delivered == {"water", "tea", "milk"}
    (failed,) = [line for line in ended if line["status"] != "delivered"]
    assert (failed["task"], failed["status"]) == ("drinks.py:DRINKS:poison", "failed")
    assert failed["reason"].startswith("infrastructure: 5 processes in a row ended while they drove run ")
    assert "treadle resume" in failed["reason"]
