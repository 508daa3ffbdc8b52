"""Help texts, output into pipes, and the modules that a command loads."""

import subprocess
import sys

import pytest
from tests.cli.command import RealCli

from treadle.cli.app import COMMANDS


def test_help_has_two_examples(real_cli: RealCli) -> None:
    results = real_cli.run_all((name, "--help") for name in COMMANDS)
    for name, result in zip(COMMANDS, results, strict=True):
        assert result.code == 0, (name, result)
        _, examples = result.out.split("Examples:")
        commands = [line for line in examples.splitlines() if line.strip()]
        assert len(commands) == 2, name
        assert all(f"treadle {name}" in line for line in commands), name


def test_help_names_every_command(real_cli: RealCli) -> None:
    out = real_cli("--help").out
    assert all(f"│ {name} " in out for name in COMMANDS)
    assert real_cli().code == 2
    assert real_cli("nope").code == 2
    assert real_cli("--version").out.startswith("treadle ")


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['treadle', '--help']\n"
        "from treadle.cli.app import app\n"
        "try: app(prog_name='treadle')\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(eval(run.stderr))
    assert "treadle.cli.run" in loaded
    heavy = ("treadle.agent.agent", "treadle.core", "treadle.models", "treadle.journal", "treadle.tasks")
    assert not [
        name for name in loaded if name.startswith((*heavy, "msgspec", "pydantic", "asyncio", "sqlite3"))
    ]


@pytest.mark.parametrize(
    "arguments", [["tasks", "files", "--limit", "0"], ["run", "--task", "files:csv_sum-0001", "-m", "oracle"]]
)
def test_reader_that_has_seen_enough(real_cli: RealCli, arguments: list[str]) -> None:
    process = real_cli.start(*arguments)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.wait(60)
    assert "Traceback" not in err
    assert "Broken" not in err
