"""Tables on terminals of several widths."""

import os
import pty
import re

import pytest
from tests.cli.command import Cli


def _read_terminal(cli: Cli, columns: int, *arguments: str) -> str:
    """Return what a command prints on a terminal of this width."""
    main, other = pty.openpty()
    command = cli.start(*arguments, stdin=other, stdout=other, stderr=other, env={"COLUMNS": str(columns)})
    os.close(other)
    out = b""
    while True:
        try:
            out += os.read(main, 65536)
        except OSError:  # the command has ended
            break
    os.close(main)
    assert command.wait(60) == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.decode()).replace("\r", "\n")


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_narrow_terminal_cuts_no_number_of_a_table(cli: Cli, columns: int) -> None:
    made = cli(
        "eval", "--task", "files:test", "--limit", "2", "--model", "oracle", "--epochs", "2", "--out", "e"
    )
    assert made.code == 0, made
    shown = _read_terminal(cli, columns, "eval", "report", "e")
    table = shown[shown.index("model ") : shown.index("Score by a bootstrap")]
    assert "…" not in table
    assert max(len(line.rstrip()) for line in table.splitlines()) <= columns
    whole = cli("eval", "report", "e").out.partition("Score by")[0].replace("─", "")
    assert set(whole.split()) <= set(table.split())
    assert table.count("oracle") == table.count("model"), "each part says which model a row is of"


def test_the_list_of_runs_is_one_table_on_a_usual_terminal(cli: Cli) -> None:
    assert cli("run", "call list_files {} and a long text", "-m", "mock:echo", "-q").code == 0
    shown = _read_terminal(cli, 80, "runs")
    assert len([line for line in shown.splitlines() if "─" in line]) == 1
    assert "call" in shown
