"""`treadle mock --engine`: an engine to run agents on, with token ids."""

import json

import pytest
from tests.cli.command import Cli, Oracle

from treadle import open_journal
from treadle.trajectory.tokens import TokenGrade, load_tokens


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_agent_runs_on_the_mock_of_an_engine(tmp_path, engine):
    options = ("--served-model", "oracle+strip_thinking", "--tokenizer-folder", "tokenizer")
    server = Oracle(tmp_path, "--engine", engine, *options, "--abort-rate", "0.2")
    cli = Cli(tmp_path)
    done = cli(
        "run",
        "--task",
        "files:csv_sum-0001",
        "--model",
        f"{engine}:oracle+strip_thinking",
        "--json",
        "--base-url",
        server.url,
        "--renderer",
        "hf:tokenizer",
        "--journal",
        "runs.db",
    )
    assert done.code == 0, done.err
    assert server.stop() in (0, 130)
    run_id = json.loads(done.out.splitlines()[-1])["run_id"]
    with open_journal(tmp_path / "runs.db") as journal:
        (row,) = load_tokens(journal, run_id).trajectories
    assert row.grade is TokenGrade.TOKEN_EXACT
    assert row.spans[0].engine is not None
    assert row.spans[0].engine.startswith(engine)


def test_a_wrong_variant_is_refused(tmp_path):
    done = Cli(tmp_path)("mock", "--engine", "vllm", "--served-model", "oracle+fast", "--port", "0")
    assert done.code == 2
    assert "strip_thinking" in done.err
