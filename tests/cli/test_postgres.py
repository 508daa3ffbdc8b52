"""Commands with a journal in PostgreSQL."""

from tests.cli.command import Cli
from tests.viewer.pages import IS_BUILT

SECRET = "correct-horse-battery"


def test_every_command_takes_the_address_of_a_database(cli: Cli, postgres_url: str) -> None:
    url = postgres_url.replace("treadle@", f"treadle:{SECRET}@")
    missing = cli("runs", "--journal", url)
    assert missing.code == 1
    assert "there is no journal in 'postgres://treadle@" in missing.err
    assert cli("doctor", "--journal", url).code == 1
    outputs = [missing]

    def run(*arguments: str) -> str:
        result = cli(*arguments, "--journal", url)
        outputs.append(result)
        assert result.code == 0, result
        return result.out

    run(
        "run",
        "--model",
        "oracle",
        "--task",
        "files:rename_identifier-0000",
        "--run-id",
        "first",
        "--level",
        "power",
    )
    env = {"TREADLE_JOURNAL": url}
    assert "first" in cli("runs", env=env).out
    assert "first" in run("runs", "--limit", "1")
    assert "run_finished" in run("show", "first", "--events") or run("show", "first")
    run("replay", "first")
    interrupted = cli(
        *("run", "--task", "files:rename_identifier-0001", "--model", "oracle", "--max-steps", "1"),
        *("--run-id", "second", "--journal", url),
    )
    outputs.append(interrupted)
    run("resume", "first")
    run("stats")
    run("check")
    assert "can be opened" in run("doctor")
    refused = cli("backup", "copy.db", "--journal", url)
    assert (refused.code, "pg_dump" in refused.err) == (1, True)
    outputs.append(refused)
    for result in outputs:
        assert SECRET not in result.out + result.err


def test_the_folder_of_rollouts_has_no_password(cli: Cli, postgres_url: str) -> None:
    url = postgres_url.replace("treadle@", f"treadle:{SECRET}@")
    cli.write(
        "rollout.yaml",
        "groups: 1\ngroup_size: 2\nmodel: {model: mock:echo, headers: {authorization: " + SECRET + "}}\n",
    )
    for _ in range(2):
        made = cli("rollout", "rollout.yaml", "--journal", url)
        assert (made.code, SECRET in made.out + made.err) == (0, False), made
    report = cli("rollout", "report", "rollouts", env={"TREADLE_JOURNAL": url})
    assert report.code == (0 if IS_BUILT else 2), report
    for file in (cli.folder / "rollouts").iterdir():
        assert SECRET.encode() not in file.read_bytes()
    assert cli("rollout", "report", env={"TREADLE_JOURNAL": "other.db"}).code == report.code
