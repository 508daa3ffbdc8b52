"""Settings for all tests: the profiles of hypothesis, and the table of CPU times (`--cpu N`)."""

import contextlib
import faulthandler
import fcntl
import gc
import math
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests.forks import process
from tests.postgres.server import Server, Shared
from xdist.scheduler import LoadGroupScheduling

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
LONG_SECONDS = 7200
"""How long a test may take in its long form, unless a mark `timeout` says otherwise."""
CHOSEN_SETS = 1
"""How many sets of parameters the gate runs of a test; with the mark `sets(N)` they are N, and with `sets(0)` the
test is left out, with or without parameters. They are spread evenly, and each test with the same sets begins one
further, so that all tests together run each kind of set. The long form runs all sets, and so does a command line
that names files or tests."""
ALL_SETS = "TREADLE_ALL_SETS"
"""The variable that tells the workers of pytest-xdist to run all sets."""

LONG_FILES = (
    "training",  # a group, which imports trainers
    "vendors",  # a group, which imports the packages of vendors of models
    "tests/viewer/",  # a folder, whose tests share a browser
    "tests/crash/test_kill.py",
    "tests/rollout/test_exactness.py",
    "tests/crash/test_generate.py",
    "tests/crash/test_atropos_kill.py",
    "tests/cli/test_demo.py",
    "tests/docs/test_examples.py",
    "tests/sandbox/test_images.py",
    "tests/cli/test_wrong_usage.py",
    "tests/crash/test_forks.py",
    "tests/cli/commands/test_completion.py",
    "tests/cli/test_interrupt.py",
)
"""The files whose tests take longest. They are started first, the others by the number of their tests."""
LONG_FOLDERS = ("tests/crash/", "tests/workers/")
"""The folders whose tests take ten times as long as others, because they start processes. Their files come next, so
that none of them begins when the others are done."""
WHOLE_FOLDER = "tests/viewer/"
"""The folder whose tests are all given to one worker: they share a browser and a served journal."""

# The gate uses the same examples each time, so that a failure comes from the change under test; the long form draws
# new ones. Neither has a deadline, because a busy machine is not a defect.
hypothesis.settings.register_profile(
    "gate", max_examples=25, deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.register_profile("full", deadline=None, max_examples=500, print_blob=True)
hypothesis.settings.load_profile("full" if IS_FULL else "gate")

# Most tests write small files and wait until they are stored, which costs less in memory than on a disk.
MEMORY = "/dev/shm"
if os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK | os.X_OK):
    _found = os.statvfs(MEMORY)
    if _found.f_bavail * _found.f_frsize > 4 * 1024**3 and not _found.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the secret that signs journals out of the user's own state folder."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The PostgreSQL server of the test session, which must not be stopped."""
    place = tmp_path_factory.getbasetemp()
    shared = Shared(place.parent if "PYTEST_XDIST_WORKER" in os.environ else place)
    yield shared.server
    shared.close()


@pytest.fixture(scope="session")
def _postgres_database(postgres_server: Server) -> str:
    return postgres_server.make_database()


@pytest.fixture
def postgres_url(postgres_server: Server, _postgres_database: str) -> Iterator[str]:
    """The URL of an empty database in PostgreSQL."""
    yield _postgres_database
    postgres_server.empty_database(_postgres_database)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu", type=int, default=0, metavar="N", help="show the N tests with the most CPU time"
    )


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of the processes that it has started and waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime + process.spent_seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEFORE] = _cpu_seconds()
    return (yield)


_BEFORE = pytest.StashKey[float]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Do not end the process after the time that is enough for most tests if a mark gives this one more."""
    if (mark := item.get_closest_marker("timeout")) and mark.args[0] > float(item.config.getini("timeout")):
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    now = _cpu_seconds()
    report.user_properties.append(("cpu_seconds", now - item.stash[_BEFORE]))
    item.stash[_BEFORE] = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.getoption("--cpu")
    if not count:
        return
    tests: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent = [value for name, value in report.user_properties if name == "cpu_seconds"]
                tests[report.nodeid] = tests.get(report.nodeid, 0.0) + spent[-1]
    files: dict[str, float] = {}
    for name, seconds in tests.items():
        file = name.partition("::")[0]
        files[file] = files.get(file, 0.0) + seconds
    for title, table in (("files", files), ("tests", tests)):
        terminalreporter.section(f"CPU seconds of {title}, of {sum(table.values()):.1f} in all")
        for name, seconds in sorted(table.items(), key=lambda item: -item[1])[:count]:
            terminalreporter.write_line(f"{seconds:8.2f}  {name}")


def pytest_configure(config: pytest.Config) -> None:
    is_chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.getoption("keyword")
    if not hasattr(config, "workerinput") and is_chosen:
        os.environ[ALL_SETS] = "1"


_begun = Counter[tuple[str, ...]]()
"""How many tests have chosen among the same sets."""


def _chosen_sets(item: pytest.Item) -> float:
    """Return how many sets of parameters of a test are run."""
    if IS_FULL or os.environ.get(ALL_SETS):
        return math.inf
    mark = item.get_closest_marker("sets")
    return CHOSEN_SETS if mark is None else mark.args[0]


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Leave sets out before tests are made of them, which would take longer than to choose."""
    yield
    most, sets = _chosen_sets(metafunc.definition), metafunc._calls
    if 0 < most < len(sets):
        kinds = tuple([one.id for one in sets])
        first = _begun[kinds]
        _begun[kinds] += 1
        spread = [(first + number * len(sets) // most) % len(sets) for number in range(most)]
        left = [*spread, *[number for number in range(len(sets)) if number not in spread]]
        chosen, seen = list[int](), set[tuple[str, int]]()
        while len(chosen) < most:
            # A value of a parameter that no chosen set has comes before an even distance.
            best = max(left, key=lambda number: len(sets[number].indices.items() - seen))
            seen |= sets[best].indices.items()
            chosen.append(best)
            left.remove(best)
        metafunc._calls = [sets[number] for number in sorted(chosen)]


@contextlib.contextmanager
def _compiling_once(config: pytest.Config) -> Iterator[None]:
    """In a new copy of the repository, let one worker compile the tests, and the others wait for what it writes."""
    if hasattr(config, "workerinput") and not sys.dont_write_bytecode:
        folder = Path(__file__).parent
        last = max(folder.glob("*/test_*.py"))
        compiled = f"{last.stem}.{sys.implementation.cache_tag}-pytest-*.pyc"
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not any((last.parent / "__pycache__").glob(compiled)):
                yield
                return
        finally:
            os.close(lock)
    yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Do not look for garbage in what is imported and collected: it stays until the end, and the searches take as
    long as the rest of the collection."""
    gc.disable()
    try:
        with _compiling_once(session.config):
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests with the mark `sets(0)` out of the gate. Skip those with the mark `full`, except in the long
    form, in which tests have more time. Name the tests of an `xdist_group` as pytest-xdist does: what its version
    3.8 sets is ignored by pytest from 9.2 on."""
    left_out = [item for item in items if not _chosen_sets(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _chosen_sets(item)]
    for item in items:
        if IS_FULL and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))
        if not IS_FULL and item.get_closest_marker("full") is not None:
            item.add_marker(pytest.mark.skip(reason="the long form; set TREADLE_FULL=1"))
        named = vars(item).get("_nodeid", item.nodeid)
        if named != item.nodeid:
            item._id = type(item._id).parse(named)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two more than the number of cores: during half of a test's time, all its processes only wait. Each
    worker collects all tests, which takes 8 seconds of CPU, and eight on two cores were no faster than five."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 2


class FileScheduling(LoadGroupScheduling):
    """Gives a worker all tests of a file, an `xdist_group` or the folder of the viewer, so that what they share is
    made once."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(WHOLE_FOLDER):
            return WHOLE_FOLDER
        scope = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if scope == nodeid else scope

    def _assign_work_unit(self, node: Any) -> None:
        if not any(self.assigned_work.values()):
            others = [file for file in self.workqueue if file.startswith(LONG_FOLDERS)]
            for file in [*reversed(others), *reversed(LONG_FILES)]:
                if file in self.workqueue:
                    self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling:
    return FileScheduling(config, log)
