"""What is typed wrongly, with the message and the exit code that it must have. No message is a traceback."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import FORKS, WITHOUT, Cli, Result
from tests.cli.scripted import Scripted, call_once
from tests.conftest import IS_FULL

ROWS = """
# Misspelt commands and options
rnu hi                                     | did you mean 'run'?                                | 2
tools cal x                                | did you mean 'call'?                               | 2
models lst                                 | did you mean 'list'?                               | 2
run hi --modle m                           | no such option: --modle; did you mean '--model'?   | 2
tools import files --output x              | did you mean '--out'?                              | 2
schema                                     | missing argument 'what'. choose from: config,      | 2
schema persnoa                             | 'persnoa' is not one of 'config', 'generate'       | 2
models schema                              | was removed; write: treadle schema config          | 2
persona schema -x                          | was removed; write: treadle schema persona         | 2
generate --topic x                         | no such option: --topic; did you mean --set topics.  | 2
generate --max-cost 3                      | did you mean --set limits.max_cost_usd=VALUE?      | 2
rollout --max-tokens 3                     | mean --set agent.max_tokens=VALUE or --set limits. | 2
rollout --limits 3                         | max_cost_usd=VALUE or --set limits.max_tokens=VALUE or | 2
eval --set limits.max_sample=3             | no such key; known are max_cost_usd, max_tokens, max_seco | 2
eval --set max_step=3                      | there is no such key; did you mean 'agent.max_steps'? | 2
rollout --set max_tokn=3                   | did you mean 'agent.max_tokens' or 'limits.max_tokens'? | 2
generate --count 3                         | no such option: --count; keys of the configuration | 2
import cut.db                              | invalid character (byte 0)); give a file that      | 1
topics show .                              | cannot read the topics of 'topics.json': No such   | 2
run hi $M --tools zzz                      | python, mcp:, mock:, openapi:, spin:, memory. Wri  | 2
eval --max-steps 3                         | did you mean --set agent.max_steps=VALUE?          | 2
generate --zzz x                           | no such option: --zzz; keys of the configuration ar | 2
generate --schema                          | no such option: --schema; write: treadle schema gen | 2
rollout --schema                           | no such option: --schema; write: treadle schema rol | 2
completion bsh                             | 'bsh' is not one of 'bash', 'zsh'                  | 2
--nothere                                  | no such option: --nothere                          | 2
--model m run hi                           | --model; options of a command stand after its name | 2
memory --user u list                       | --user; options of a command stand after its name  | 2
eval job.toml                              | cannot read 'job.toml': write YAML or JSON, not TOML | 2
memory --hlp                               | no such option: --hlp; did you mean '--help'?       | 2
# Missing, surplus and conflicting words
run                                        | there is nothing to do: write `treadle run TEXT`   | 2
run ''                                     | there is nothing to do                             | 2
run hi there $M                            | got unexpected extra argument (there). See         | 2
run hi --model                             | option '--model' requires an argument              | 2
run hi $M --json --quiet                   | give --json or --quiet, not both                   | 2
run hi $M --mount-all                      | --mount-all goes with --mount dir                  | 2
run --task files:csv_sum-0001 hi -m oracle | give a text or --task, not both                    | 2
resume                                     | give a run or --all                                | 2
resume abc1 --all                          | give a run or --all, not both                      | 2
resume abc1 --failed                       | --failed goes with --all                           | 2
approve                                    | missing argument 'run'                             | 2
answer                                     | missing argument 'run'                             | 2
fork                                       | missing argument 'run'                             | 2
replay                                     | give the runs, or --all                            | 2
verify abc1 --all                          | give the runs or --all, not both                   | 2
export                                     | give the runs, or --all                            | 2
chat --session abc1 --continue             | give --session or --continue, not both             | 2
tools list --format openai                 | name the tools with --tools                        | 2
tools serve --spin --mcp http              | leave out both to serve both                       | 2
# Wrong types and values out of range
run hi --max-steps x                       | '--max-steps': 'x' should be a valid integer       | 2
run hi --max-steps -1                      | greater than or equal to 0                         | 2
run hi --out -                             | does not write to standard output; name a DIR      | 2
files abc1 -o -                            | does not write to standard output; name a DIR      | 2
demo -o -                                  | does not write to standard output; name a DIR      | 2
generate d.yaml -o -                       | does not write to standard output; name a DIR      | 2
rollout report -o -                        | does not write to standard output; name a FILE     | 2
dataset report d -o -                      | does not write to standard output; name a FILE     | 2
dataset merge d -o -                       | does not write to standard output; name a DIR      | 2
dataset split d -o -                       | does not write to standard output; name a DIR      | 2
topics build --prompt x -o -               | does not write to standard output; name a FILE     | 2
generate d.yaml --set X                    | --set 'X' is not KEY=VALUE; write for example      | 2
rollout --set =1                           | --set '=1' is not KEY=VALUE; write for example     | 2
demo --rows 0                              | greater than or equal to 1                         | 2
run hi --temperature hot                   | '--temperature': 'hot' should be a valid number    | 2
run hi --in-doubt perhaps                  | 'perhaps' is not one of 'tell', 'ask'              | 2
run hi $M --extra [                        | --extra '['                                        | 2
run hi $M --extra 3                        | --extra '3'                                        | 2
run hi $M --tool-limit x                   | --tool-limit 'x': write tool:calls=3               | 2
run hi $M --approve perhaps                | 'perhaps' is not one of ask, never and always      | 2
run hi $M --run-id last                    | --run-id is 'last'; give a str without blanks      | 2
run hi $M --run-id=-x                      | --run-id is '-x'; give a str without blanks       | 2
run hi $M --run-id ''                      | --run-id is ''; give                               | 2
run hi $M --level strong                   | 'strong' is not one of 'process', 'power'          | 2
runs --limit -1                            | greater than or equal to 0                         | 2
runs --status complete                     | did you mean 'completed'?                         | 2
resume --all --parallel-runs 0             | greater than or equal to 1                         | 2
fork abc1 --at 0                           | greater than or equal to 1                         | 2
tools serve --port 99999                   | less than or equal to 65535                        | 2
mock --mistake-rate 2                      | less than or equal to 1                            | 2
# Models and keys
run hi                                     | no model is given; pass --model                    | 2
run hi -m opnai:gpt-5                      | did you mean 'openai:gpt-5'?                       | 2
run hi -m openai/gpt-5                     | did you mean 'openai:gpt-5'?                       | 2
run hi -m openai:anthropic/claude          | did you mean 'anthropic:claude'?                   | 2
run hi -m openai:                          | names no model                                     | 2
run hi -m openai:gpt-5                     | set the environment variable openai_api_key        | 2
run hi -m openai:gpt-5 -t fils             | did you mean 'files'?                               | 2
run hi -m oracle                           | pass --task files:csv_sum-0001                     | 2
run hi -m orcale                           | did you mean 'oracle'?                             | 2
run --task files:csv_sum-0001 -m oracle:x  | 'x' is not a rate of mistakes                      | 2
run hi -m m --base-url localhost:8000      | --base-url 'localhost:8000' is not a url           | 2
run hi -m m --base-url http://             | --base-url 'http://' is not a url                  | 2
run hi $M --max-cost 1                     | no price of the model 'openai:m' is known          | 2
models check opnai:x                       | did you mean 'openai:x'?                           | 2
models set-key nobody                      | there is no provider 'nobody'                          | 2
TREADLE_CONFIG=bad.toml run hi -m fast     | 'bad.toml' is not valid toml                       | 2
TREADLE_CONFIG=odd.toml run hi -m fast     | fast.sed: there is no such key; did you mean 'seed'?| 2
TREADLE_CONFIG=nothere.toml run hi -m fast | which is not a file                                | 2
# Tools
run hi $M -t fils                          | unknown toolset 'fils'; did you mean 'files'?       | 2
run hi $M -t onec.py                       | there is no file 'onec.py'; did you mean 'once.py' | 2
run hi $M -t bad.py                        | cannot load the file 'bad.py': syntaxerror         | 2
run hi $M -t raises.py                     | zerodivisionerror: division by zero                | 2
run hi $M -t empty.py                      | defines no tools                                   | 2
run hi $M -t once.py:sned                  | did you mean 'send'?                               | 2
run hi $M -t folder                        | unknown toolset 'folder'                           | 2
run hi $M -t mcp:nothere-server            | was not found; install it                          | 2
run hi $M -t openapi:bad.json              | 'bad.json' is not valid json                       | 2
run hi $M -t mock:folder                   | cannot read the tools of 'folder': is a directory  | 2
run hi $M -t files -t files                | two tools are called 'read_file'                   | 2
tools call read_fil                        | did you mean 'read_file'                           | 2
tools call read_file {                     | not valid json                                     | 2
tools call read_file {}                    | missing parameter 'file_path'; accepted            | 2
tools call read_file '{"file_path": "x"}'  | there is no file 'x'                               | 1
tools import nothere.json                  | cannot read the tools of 'nothere.json'            | 2
tools import bad.json                      | 'bad.json' is not valid json                       | 2
tools import files -o bad.json             | 'bad.json' exists; --force replaces it             | 2
tools import files -o folder --force       | 'folder' is a folder; name a file in it            | 2
verify waits -t files                      | no run has a tool 'delete_file'                    | 2
# Files and folders
run hi $M --mount nothere                  | there is no such file or folder                    | 2
run hi $M --mount .treadle/runs.db         | cannot mount '.treadle/runs.db'                    | 2
run hi $M --out folder                     | 'folder' exists and is not empty                   | 2
run hi $M --out bad.json                   | 'bad.json' is a file; give a new folder            | 2
run hi $M --attach nothere.png             | cannot attach 'nothere.png': no such file          | 2
run hi $M --attach folder                  | cannot attach 'folder': is a directory             | 2
run hi $M --attach empty.png               | cannot attach 'empty.png': the file is empty       | 2
run hi $M --schema nothere.json            | cannot read the schema 'nothere.json'              | 2
run hi $M --schema list.json               | is not a json schema: it must be an object         | 2
run hi $M --schema {                       | --schema is not valid json                         | 2
run hi -m mock:ech                         | did you mean 'mock:echo'                           | 2
files abc1 --out bad.json                  | 'bad.json' is a file; give a folder                | 2
export abc1 --out folder                   | cannot write 'folder': it is a folder              | 2
export abc1 --out nothere/x                | cannot write 'nothere/x': there is no folder       | 2
export abc1 --format trll                  | did you mean 'trl'?                                 | 2
demo --out bad.json                        | cannot write to --out 'bad.json': file exists      | 2
init folder                                | 'folder' exists                                    | 2
init treadle.json                          | must end with .toml                                | 2
# Runs, events, calls and tasks that do not exist
show nothere                               | there is no run 'nothere'; the newest is           | 2
show abc                                   | ('abc1', 'abc2'); write more of it                 | 2
show abc1 --artifact ffff                  | run 'abc1' has no artifacts                        | 2
files abc1 --at 999                        | --at 999: run 'abc1' has the events 1 to           | 2
fork abc1                                  | give --text text for the next turn                 | 2
fork abc1 --at 3 --text x                  | the turn is still open at event 3                  | 2
fork abc1 --text x --run-id abc2           | run 'abc2' exists already                          | 1
run hi $M --run-id abc1                    | run 'abc1' exists already                          | 1
answer abc1 x                              | no question of run 'abc1' is open                  | 2
approve abc1 call_1 yes                    | no call of run 'abc1' waits for approval           | 2
approve waits call_9 yes                   | did you mean 'call_1'? the waiting calls are: call_1 | 2
approve waits call_1                       | say yes, no or edit: treadle approve waits         | 2
approve waits call_1 perhaps               | 'perhaps' is not a decision                        | 2
approve waits call_1 edit                  | edit needs the arguments                           | 2
approve waits call_1 edit {                | not valid json                                     | 2
approve waits call_1 edit '{"from": "b"}'  | missing parameter 'to'; unknown parameter 'from'   | 2
approve waits call_1 yes --reason x        | --reason comes with no                             | 2
chat --session abc1                        | run 'abc1' is not a session                        | 2
chat --continue                            | there is no session; begin one with: treadle chat  | 2
run --task files:csv_sm-0001 -m oracle     | near ids are csv_sum-0001                          | 2
run --task files:test -m oracle            | stands for several tasks, and here one is needed      | 2
run --task fles:csv_sum-0001 -m oracle     | did you mean 'files'?                              | 2
eval --task shop:tset -m mock:echo         | 'shop' has no split 'tset'; did you mean 'test'?    | 2
eval --task shop:valid -m mock:echo        | its splits are train, test                         | 2
eval --task shop:test -m openai:vllm/x     | base_url of the model in treadle.toml              | 2
tasks fles                                 | did you mean 'files'?                              | 2
tasks files:                               | write set:id                                       | 2
# Journals
runs --journal nothere.db                  | there is no journal at 'nothere.db'                | 1
runs --journal no/where.db                 | no folder 'no'; give another path, or run something first | 1
runs --journal lst.json                    | did you mean 'list.json'                           | 1
runs --journal folder                      | 'folder' is a folder; give the path of a file      | 1
runs --journal list.json                   | 'list.json' is not a treadle journal               | 1
runs --journal cut.db                      | 'cut.db' is not a treadle journal, or is damaged   | 1
runs --journal nothere://x                 | unknown store 'nothere'                            | 2
show last --journal zero.db                | the journal is empty                               | 2
import nothere.jsonl                       | cannot read 'nothere.jsonl': no such file          | 2
import folder                              | cannot read 'folder': is a directory               | 2
import bad.json                            | line 1: not a line of a treadle journal            | 1
# Paths
eval report foldr                          | 'foldr' has no evaluations; did you mean 'folder'  | 2
eval report foldr/x                        | no folder 'foldr'; did you mean 'folder'           | 2
rollout report foldr                       | 'foldr' has no rollouts; did you mean 'folder'     | 2
dataset show foldr                         | there is no file 'foldr'; did you mean 'folder'    | 2
dataset verify foldr                       | there is no file 'foldr'; did you mean 'folder'    | 2
dataset merge foldr b --out q              | there is no file 'foldr'; did you mean 'folder'    | 2
dataset convert bad.jsnl --format openai   | did you mean 'bad.json                             | 2
publish foldr                              | 'foldr' is not the folder of a dataset; did you mean 'folder' | 2
topics show lst.json                       | no such file or directory; did you mean 'list.json' | 2
view foldr                                 | did you mean 'folder'                              | 1
report foldr                               | did you mean 'folder'                              | 2
generate lst.json                          | no such file or directory; did you mean 'list.json' | 2
rollout lst.json                           | no such file or directory; did you mean 'list.json' | 2
eval lst.json                              | no such file or directory; did you mean 'list.json' | 2
eval -m mock:echo --rows lst.json          | did you mean 'list.json'                           | 2
eval -m mock:echo --task conversations:lst.json | did you mean 'list.json'                      | 2
persona show lst.json                      | no such file or directory; did you mean 'list.json' | 2
skills list foldr                          | got unexpected extra argument (foldr)              | 2
skills list --skills foldr                 | with skills; did you mean 'folder'                 | 2
import bad.jsnl                            | did you mean 'bad.json                             | 2
run hi $M --mount foldr                    | did you mean 'folder'                              | 2
run hi $M --attach emty.png                | did you mean 'empty.png'                           | 2
run hi $M --document lst.json              | did you mean 'list.json'                           | 2
run hi $M --schema lst.json                | did you mean 'list.json'                           | 2
run hi $M -t openapi:lst.json              | did you mean 'list.json'                           | 2
TREADLE_CONFIG=odd.tml run hi -m fast      | which is not a file; did you mean 'odd.toml'       | 2
verify bad.jsonl                           | line 1: not a line of a treadle journal            | 1
"""

ONCE = '''
from treadle import tool

@tool(effect="once")
def send(to: str) -> str:
    """Send a letter."""
    return "sent"
'''
FILES = {
    "once.py": ONCE,
    "bad.py": "def f(:\n",
    "raises.py": "1/0\n",
    "empty.py": "x = 1\n",
    "bad.json": "{",
    "empty.png": "",
    "bad.jsonl": "{\n",
    "list.json": "[1]",
    "bad.toml": "model = \n",
    "odd.toml": '[models.fast]\nmodel = "vllm:x"\nsed = 1\n',
    "folder/x": "x",
    "zero.db": "",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, str]]:
    """A folder with two finished runs, one that waits for approval, and files that are not what is asked for."""
    cli = Cli(tmp_path_factory.mktemp("wrong"))
    server = Scripted(call_once("send", to="a"))
    for name, text in FILES.items():
        cli.write(name, text)
    task = ["run", "--task", "files:csv_sum-0001", "-m", "oracle", "--run-id"]
    cli(*task, "abc1")
    cli(*task, "abc2")
    model = ["-m", "m", "--base-url", server.url]
    cli("run", "go", *model, "-t", "once.py", "--approve", "ask", "--run-id", "waits")
    journal = (cli.folder / ".treadle" / "runs.db").read_bytes()
    (cli.folder / "cut.db").write_bytes(journal[:5000])
    (cli.folder / "job.toml").write_text("[limits]\nmax_samples = 3\n")
    yield cli, server.url
    server.stop()


def read_rows(url: str) -> list[tuple[dict[str, str], list[str], str, int]]:
    """The rows as environment, arguments, a part of the message, and exit code."""
    rows = []
    for row in ROWS.splitlines():
        if row and not row.startswith("#"):
            line, message, code = row.rsplit("|", 2)
            words = shlex.split(line.replace("$M", f"-m m --base-url {url}").replace("$URL", url))
            env = dict([words.pop(0).split("=")]) if words[0].isupper() or "TREADLE_" in words[0] else {}
            rows.append((env, words, message.strip(), int(code)))
    return rows


def find_fault(result: Result, message: str, code: int) -> str | None:
    """Return what is wrong with the end of a command."""
    lines = result.err.strip().splitlines()
    if "Traceback" in result.err + result.out:
        return "a traceback"
    if result.code != code:
        return f"exit code {result.code}"
    if message.lower() not in result.err.lower().replace(" in this journal;", ";"):
        return "another message"
    return None if len(lines) == 1 else "several lines"


def test_every_wrong_usage_is_one_clear_line(place: tuple[Cli, str]) -> None:
    cli, url = place
    rows = read_rows(url)
    assert len(rows) >= 80
    rows = rows if IS_FULL else rows[::4]
    faults = []
    for begin in range(0, len(rows), 12):
        batch = rows[begin : begin + 12]
        started = []
        for env, words, _, _ in batch:
            started.append(cli.start(*words, env=env))
            if words[0] == "approve":  # it holds the run while it looks at the arguments
                started[-1].wait(60)
        for process, (_, words, message, code) in zip(started, batch, strict=True):
            out, err = process.communicate(timeout=120)
            if fault := find_fault(Result(process.wait(), out, err), message, code):
                faults.append((fault, shlex.join(words), err))
    assert faults == []


MISSING = [
    ("mcp", "run hi $M -t mcp:npx", "this needs mcp, which is not installed: pip install 'treadle[mcp]'"),
    ("uvicorn", "tools serve --port 0", "which is not installed: pip install 'treadle[serve]'"),
    ("pydantic_monty", "run hi $M -t python", "which is not installed: pip install 'treadle[python]'"),
    (
        "genai_prices",
        "run hi -m openai:gpt-5 --api-key k --max-cost 1",
        "pip install 'treadle[cost]', or give its",
    ),
]


@pytest.mark.parametrize(("module", "line", "message"), MISSING)
def test_a_missing_extra_is_named(place: tuple[Cli, str], module: str, line: str, message: str) -> None:
    cli, url = place
    cli.write("x.yaml", "type: object\n")
    words = shlex.split(line.replace("$M", f"-m m --base-url {url}"))
    done = FORKS.run("-c", WITHOUT, module, *words, cwd=cli.folder, env=cli.env)
    assert (done.returncode, message in done.stderr, len(done.stderr.splitlines())) == (2, True, 1), done


@pytest.mark.parametrize("line", ["serve --model mock:echo --port 0", "view --no-open"])
def test_a_server_without_its_extra_says_so(tmp_path: Path, line: str) -> None:
    assert Cli(tmp_path)("run", "hi", "-m", "mock:echo").code == 0
    # A new process, because those of `FORKS` have imported the server.
    command = [sys.executable, "-c", WITHOUT, "starlette", *line.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
    assert "which is not installed: pip install 'treadle[serve]'" in done.stderr


def test_what_does_not_exist_is_told_before_a_missing_extra(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, "starlette", "view", "nothere"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "there is no journal at 'nothere'" in done.stderr) == (1, True), done


def test_a_file_that_only_another_user_may_read(tmp_path: Path) -> None:
    """Nothing at all can be opened, so each command has only its errors left."""
    Cli(tmp_path)("run", "--task", "files:csv_sum-0001", "-m", "oracle", "--run-id", "r")
    program = (
        "import os, sys; fd = os.open('.', os.O_RDONLY); os.setgid(65534) if os.geteuid() == 0 else None\n"
        "os.setuid(65534) if os.geteuid() == 0 else None; sys.argv[:1] = ['treadle']\n"
        "from treadle.cli import main; main()"
    )
    for words in (
        ["runs"],
        ["show", "r"],
        ["export", "--all"],
        ["run", "hi", "-m", "m", "--base-url", "http://x/v1"],
    ):
        process = FORKS.start(
            "-c", program, *words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        _, err = process.communicate(timeout=60)
        assert (process.returncode, len(err.splitlines()), "Traceback" in err) == (1, 1, False), err
