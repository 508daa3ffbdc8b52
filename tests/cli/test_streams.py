"""Every command with a standard output that is closed, full, or cannot hold its characters, and with Ctrl-C.

Commands that would not end by themselves are interrupted.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import FORKS, Cli, RealCli, Started
from tests.cli.scripted import Scripted, say
from tests.cli.test_help import ALL
from tests.conftest import IS_FULL
from tests.datagen.dataset import made

from treadle.datagen.dataset.splits import SplitPlan, split_rows
from treadle.viewer.bundle import is_built

IS_BUILT = is_built()
PAGES = {
    "report": ["report", "t"],
    "view": ["view", "--no-open"],
    "dataset report": ["dataset", "report", "data"],
    "rollout report": ["rollout", "report", "rollouts"],
}

COMMANDS: dict[str, list[str]] = {
    "run": ["run", "hi", "MODEL"],
    "run --json": ["run", "hi", "MODEL", "--json"],
    "run -q": ["run", "hi", "MODEL", "-q"],
    "chat": ["chat", "MODEL"],
    "resume": ["resume", "r"],
    "approve": ["approve", "w"],
    "fork": ["fork", "r", "--text", "x"],
    "runs": ["runs"],
    "runs --json": ["runs", "--json"],
    "sessions": ["sessions"],
    "sessions --json": ["sessions", "--json"],
    "show": ["show", "t"],
    "show --events": ["show", "t", "--events"],
    "show --json": ["show", "t", "--json"],
    "files": ["files", "t"],
    "check": ["check"],
    "replay": ["replay", "t"],
    "verify": ["verify", "t"],
    "rescore": ["rescore", "t"],
    "export": ["export", "t"],
    "import": ["import", "t.jsonl", "-j", "memory:"],
    "dataset show": ["dataset", "show", "data", "2"],
    "dataset stats": ["dataset", "stats", "data"],
    "dataset verify": ["dataset", "verify", "made"],
    "dataset stats --json": ["dataset", "stats", "data", "--json"],
    "dataset split": ["dataset", "split", "data", "--splits", "one=1", "--out", "one"],
    "dataset merge": ["dataset", "merge", "data", "--out", "merged", "--force"],
    "publish": ["publish", "data", "--to", "kaggle:me/shop-tools", "--license", "MIT", "--dry-run"],
    "models list": ["models", "list"],
    "schema config": ["schema", "config"],
    "stats": ["stats"],
    "answer": ["answer", "q"],
    "follow": ["follow", "t"],
    "memory list": ["memory", "list"],
    "memory search": ["memory", "search", "tea"],
    "skills list": ["skills", "list"],
    "skills show": ["skills", "show", "skill-writing"],
    "persona show": ["persona", "show", "persona.yaml"],
    "schema persona": ["schema", "persona"],
    "models tiers": ["models", "tiers"],
    "models route": ["models", "route", "Thanks!"],
    "models check": ["models", "check", "m", "--base-url", "URL"],
    "tools list": ["tools", "list"],
    "tools call": ["tools", "call", "list_files", "--mount", "folder"],
    "tools import": ["tools", "import", "files"],
    "tools serve": ["tools", "serve", "--port", "0"],
    "tasks": ["tasks", "files:csv_sum-0001"],
    "doctor": ["doctor"],
    "demo": ["demo", "--rows", "1", "--kill-after", "0"],
    "mock": ["mock", "--port", "0"],
    "completion": ["completion", "bash"],
    "generate": ["generate", "dataset.yaml", "--out", "made", "--num-samples", "1"],
    "rollout": ["rollout", "--task", "files:csv_sum-0001", "-m", "oracle", "-n", "1", "--group-size", "1"],
    "eval": ["eval", "--task", "files:csv_sum-0001", "-m", "oracle"],
    "eval report": ["eval", "report", "evaluation"],
    "test": ["test"],
    "test record": ["test", "record", "r", "--force"],
    "schema rollout": ["schema", "rollout"],
    "generate --dry-run": ["generate", "dataset.yaml", "--dry-run"],
    "schema generate json": ["schema", "generate"],
    "topics show": ["topics", "show", "made/topics.json"],
    **(PAGES if IS_BUILT else {}),
    "dataset convert": ["dataset", "convert", "rows.jsonl", "--format", "openai"],
    "dataset pairs": ["dataset", "pairs", "forks.db"],
    "--help": ["--help"],
    "run --help": ["run", "--help"],
    "--version": ["--version"],
}
SERVERS = ("tools serve", "mock", "view")
SILENT = {
    ("init",),
    ("backup",),
    ("journal", "slim"),
    ("images",),
    ("serve",),
    ("worker",),
    ("cancel",),
    ("label",),
    # The page must have been built, which takes Node.js.
    *([] if IS_BUILT else [tuple(name.split()) for name in PAGES]),
    *[("models", name) for name in ("set-key", "trust")],
    ("topics", "build"),
    *[("memory", name) for name in ("add", "forget")],
    *[("skills", name) for name in ("check", "trust")],
    *[("persona", name) for name in ("check", "trust")],
}
"""The commands that print nothing on standard output."""

LETTER = '''
from treadle import tool

@tool(effect="once")
def send() -> str:
    """Send a letter."""
    return "sent"
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, str]]:
    """A folder with a journal of a finished run, a run of a task, and a run that waits for approval."""
    cli = Cli(tmp_path_factory.mktemp("streams"))
    call = {"id": "c", "type": "function", "function": {"name": "send", "arguments": "{}"}}
    server = Scripted(lambda body: {"content": None, "tool_calls": [call]} if "tools" in body else say("é …"))
    model = ["-m", "m", "--base-url", server.url]
    cli.write("letter.py", LETTER)
    cli("chat", *model, text="hi\n")
    cli.write("folder/a.txt", "a")
    cli("run", "--task", "files:csv_sum-0001", "-m", "oracle", "--run-id", "t")
    cli("run", "hi", *model, "--run-id", "r")
    cli("run", "hi", *model, "--run-id", "w", "-t", "letter.py", "--approve", "ask")
    made.plain_folder(cli.folder / "data", 4)
    split_rows(cli.folder / "data", cli.folder / "data", SplitPlan(shares={"train": 1.0}))
    cli.write("t.jsonl", cli("export", "t", "--format", "journal").out)
    cli.write("rows.jsonl", cli("export", "t", "--format", "treadle").out)
    cli.write("dataset.yaml", cli("generate", "--init").out)
    cli("generate", "dataset.yaml", "--out", "made", "--num-samples", "1")
    cli(*COMMANDS["rollout"])
    cli(*COMMANDS["eval"])
    cli(*COMMANDS["test record"])
    forks = ["-j", "forks.db", "-q"]
    cli.write("treadle.toml", '[tiers]\nfrontier = "mock:echo"\nsmall = "mock:echo"\n')
    cli.write("persona.yaml", "name: Ada\nrole: an assistant\n")
    cli.write("skills/tea/SKILL.md", "---\nname: tea\ndescription: Make tea.\n---\nBoil water.\n")
    cli("memory", "add", "Kim drinks tea.")
    asked = {**call, "function": {"name": "ask_user", "arguments": '{"question": "Tea?"}'}}
    asking = Scripted(lambda body: {"content": None, "tool_calls": [asked]})
    cli("run", "hi", "-m", "m", "--base-url", asking.url, "--run-id", "q", "-t", "ask")
    asking.stop()
    cli("run", "--task", "files:csv_sum-0001", "-m", "oracle", "--run-id", "good", *forks)
    cli("fork", "good", "--at", "8", "-m", "mock:echo", "--run-id", "bad", *forks)
    yield cli, server.url
    server.stop()


def arguments(name: str, url: str) -> list[str]:
    given = {"MODEL": ["-m", "m", "--base-url", url], "URL": [url]}
    return [word for item in COMMANDS[name] for word in given.get(item, [item])]


def collect(started: dict[str, Started]) -> dict[str, tuple[int | None, str, str]]:
    """End the processes, and return their exit codes and outputs."""
    found = {}
    for name, process in sorted(started.items(), key=lambda item: item[0] in SERVERS):
        if name in SERVERS and process.stdout is not None:
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
        out, err = process.communicate("hi\n", timeout=120)
        assert "Traceback" not in err, (name, err)
        found[name] = (process.returncode, out or "", err or "")
    return found


NEEDED = ("show", "run --json")
CHOSEN = [name for number, name in enumerate(COMMANDS) if IS_FULL or number % 8 == 0 or name in NEEDED]
"""The commands that are started: all of them in the long form."""


def test_every_command_is_here() -> None:
    named = {tuple(words[: len(command)]) for words in COMMANDS.values() for command in ALL}
    assert ALL.keys() - named == SILENT


CLOSED = (
    "import os, sys; os.close(1); sys.stdout = sys.__stdout__ = None\n"
    "from treadle.cli import main; sys.argv = ['treadle', *sys.argv[1:]]; main()"
)


@pytest.mark.sets(0)
def test_standard_output_is_closed(place: tuple[Cli, str]) -> None:
    cli, url = place
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    started = {
        name: FORKS.start("-c", CLOSED, *arguments(name, url), cwd=cli.folder, env=cli.env, **streams)
        for name in CHOSEN
    }
    for name, (code, _, err) in collect(started).items():
        assert (code, err.splitlines()[-1].endswith("Bad file descriptor")) == (1, True), (name, err)


def test_standard_output_is_full(place: tuple[Cli, str]) -> None:
    cli, url = place
    full = os.open("/dev/full", os.O_WRONLY)
    started = {name: cli.start(*arguments(name, url), stdin=subprocess.PIPE, stdout=full) for name in CHOSEN}
    os.close(full)
    for name, (code, _, err) in collect(started).items():
        assert (code, err.splitlines()[-1].endswith("No space left on device")) == (1, True), (name, err)


def test_the_reader_has_gone(place: tuple[Cli, str]) -> None:
    cli, url = place
    started = {}
    for name in CHOSEN:
        reading, writing = os.pipe()
        os.close(reading)
        started[name] = cli.start(*arguments(name, url), stdin=subprocess.PIPE, stdout=writing)
        os.close(writing)
    for name, (code, _, err) in collect(started).items():
        assert (code, "error" in err) == (141, False), (name, err)


def test_standard_error_is_full(place: tuple[Cli, str]) -> None:
    cli, url = place
    full = os.open("/dev/full", os.O_WRONLY)
    for name in ("run", "resume", "approve", "runs"):
        process = cli.start(*arguments(name, url), stderr=full)
        process.communicate(timeout=120)
        assert process.returncode == 0, name
    os.close(full)


def test_a_terminal_that_has_only_ascii(place: tuple[Cli, str]) -> None:
    cli, url = place
    started = {
        name: cli.start(*arguments(name, url), stdin=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
        for name in CHOSEN
    }
    found = collect(started)
    for name, (code, out, err) in found.items():
        assert code == (130 if name in SERVERS and name != "view" else 0), (name, err)
        # What programs read stays UTF-8.
        assert "json" in name or name in ("export", "report") or (out + err).isascii(), (name, out, err)
    assert "* list_files()" in found["show"][1]
    assert "é …" in found["run --json"][1]


def test_the_c_locale_without_a_home(real_cli: RealCli) -> None:
    """Another Python start decodes arguments and names of files in ASCII."""
    real_cli.write("notes/é.txt", "é")
    real_cli.env = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    called = real_cli("tools", "call", "list_files", "--mount", "notes")
    assert (called.code, called.out) == (0, "[]\n"), called
    assert "cannot be mounted: ??.txt (a sandbox cannot hold such a name)" in called.err
    refused = real_cli("show", "é")
    assert (refused.code, "Traceback" in refused.err) == (1, False), refused


def test_arguments_that_are_not_text(cli: Cli) -> None:
    refused = cli("run", "a\udcff", "-m", "m")
    assert (refused.code, refused.err) == (2, "error: the argument 'a\\udcff' is not valid UTF-8\n")


MODULES = [
    "typing",
    "treadle.cli.app",
    "typer",
    "treadle.cli.options.option_groups",
    "treadle.cli.commands.drive_runs",
    "treadle.agent.agent",
]
MODULES += [
    "msgspec",
    "treadle.models.config.recipe",
    "pyreqwest",
    "treadle.journal.sqlite.sqlite_journal",
    "asyncio",
]
INTERRUPTED = """
import os, signal, sys
WANTED = WANTED_NAMES
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in WANTED:
            WANTED.remove(name)
            os.kill(os.getpid(), signal.SIGINT)
            if IS_TWICE:
                os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv = ["treadle", *GIVEN.split()]
from treadle.cli import main
main()
"""


RUN = "run hi -m m --base-url http://127.0.0.1:9/v1 -t files"


@pytest.mark.sets(2)
@pytest.mark.parametrize(
    ("given", "modules"),
    [
        ("show nothere -j nothere.db", "rich.text"),
        ("rollout --task files", "treadle.cli.jobs.rolling rich.console"),
        *[(RUN, module) for module in MODULES],
    ],
)
def test_an_interrupt_during_an_import_is_one_line(given: str, modules: str, tmp_path: Path) -> None:
    """What prints an error or `interrupted` is the last that a command imports."""
    twice = len(modules) % 2
    program = INTERRUPTED.replace("WANTED_NAMES", repr(modules.split())).replace("IS_TWICE", str(twice))
    program = program.replace("GIVEN", repr(given))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1].partition(";")[0]) == (130, "interrupted"), done
    assert "Traceback" not in done.stderr
