"""Shell completion: the script works in a real shell, and options complete their values."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.forks.process import FORKS, PYTHON


def complete(cli: Cli, line: str) -> list[str]:
    """Return what bash completes at the end of `line`."""
    words = line.split(" ")
    script = (
        'eval "$(treadle completion bash)"\n'
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
        'test -n "${COMP_WORDS[COMP_CWORD]}" || COMP_WORDS+=("")\n'
        "$(complete -p treadle | sed 's/.* -F \\([^ ]*\\) .*/\\1/') treadle\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = cli.env | {"PATH": f"{Path(PYTHON).parent}{os.pathsep}{cli.env['PATH']}"} | FORKS.variables()
    done = subprocess.run(["bash", "-c", script], cwd=cli.folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_shell_completes(cli: Cli) -> None:
    cli("run", "hi", "-m", "mock:echo", "-q", "--run-id", "abc-1")
    cli.write("letters.py", "")
    assert complete(cli, "treadle re") == ["resume", "report", "replay", "rescore"]
    assert complete(cli, "treadle models s") == ["set-key"]
    assert complete(cli, "treadle show a") == ["abc-1"]
    assert complete(cli, "treadle run -t le") == ["letters.py"]
    assert complete(cli, "treadle export --format tr") == ["treadle", "trl", "trl_grpo", "trl_sft"]


def test_scripts_of_all_shells(cli: Cli) -> None:
    for shell in ("bash", "zsh", "fish", "powershell"):
        assert "_TREADLE_COMPLETE" in cli("completion", shell).out
    assert "_treadle_completion()" in cli("completion", env={"SHELL": "/bin/bash"}).out
    wrong = cli("completion", env={"SHELL": "/bin/tcsh"})
    assert (wrong.code, "'tcsh' of $SHELL is not one of bash, zsh" in wrong.err) == (2, True)
