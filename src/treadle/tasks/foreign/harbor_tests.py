"""The tests of a task of Harbor or terminal-bench: what they need, their run on a run's files, and their rewards.

A task of several steps has tests for each. Their rewards are joined as Harbor's `MultiStepTrial` does: to the mean
for each name of a reward, over the steps that have rewards, or to those of the last step.
"""

import json
import math
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.runs.task import Grade
from treadle.sandbox.commands.bubblewrap import ImageRoot
from treadle.sandbox.commands.run_folder import open_for_check
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.protocol import CommandOutcome, Limits, Stop
from treadle.tasks.foreign.harbor_dockerfile import ImageBuild, read_image
from treadle.tasks.foreign.harbor_folder import HarborTurn
from treadle.tasks.foreign.harbor_image import Image, make_commands
from treadle.tasks.foreign.installers import find_obstacle, read_functions

BASH = "$(command -v bash || echo sh)"
_HIDDEN = ".grading"
"""The folder of the tests and of their logs, while a task is graded."""
OTHER_PROGRAM = re.compile(rb"#!(?!.*\b(?:ba|da|k|z)?sh\b)")
"""The beginning of a script that is not for a shell."""
_BUILDS = ("Dockerfile", "docker-compose.yaml")
"""The files that say that separate tests have an image of their own."""
_SUMMARY = re.compile(r"=+\s*short test summary info\s*=+", re.IGNORECASE)
_RESULT = re.compile(r"^(PASSED|SKIPPED|XFAIL|FAILED|XPASS|ERROR):?\s+(\S.*?)(?: - .*)?$", re.MULTILINE)
_PASSING = ("PASSED", "SKIPPED", "XFAIL")


class TurnOutcome(Struct, frozen=True):
    """What the tests of a turn found."""

    rewards: dict[str, float]
    """The rewards by name; empty if the tests left no valid one."""
    detail: str = ""

    @property
    def reward(self) -> float:
        """The reward by this name, else the mean of all; 0 without any."""
        mean = sum(self.rewards.values()) / max(1, len(self.rewards))
        return min(1.0, max(0.0, self.rewards.get("reward", mean)))


class TurnTests:
    """The tests of a turn."""

    def __init__(self, turn: HarborTurn, image: Image) -> None:
        """Prepare the tests for runs that work in `image`. Raises: `ConfigError` if they cannot be run here."""
        self._turn, self._image = turn, image
        self._seconds = turn.seconds("verifier", "max_test_timeout_sec", 600.0 if turn.is_harbor else 60.0)
        self._tested = self._find_tested() if turn.is_separate else image
        self._artifacts = self._find_artifacts() if turn.is_separate else []
        self._variables = {**self._tested.variables, **turn.variables("verifier")}
        self._script = _read_script(turn, image.root)

    def _find_tested(self) -> Image:
        """Return the image of separate tests: their own, or that of the agent. Raises: `ConfigError`."""
        settings = self._turn.section("verifier").get("environment")
        given = settings if isinstance(settings, dict) else {}
        own = [
            path for path in reversed(self._turn.tests) if any((path / name).is_file() for name in _BUILDS)
        ]
        if given.get("docker_image"):
            own = [self._turn.script.parent]
        where = "its tests run in a container of their own"
        if self._image.root is not None:
            raise ConfigError(f"{where}, which Treadle can give only tasks without an image")
        try:
            return read_image(ImageBuild(own[0], own[0] / "Dockerfile"), given) if own else self._image
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error

    def _find_artifacts(self) -> list[str]:
        """Return the absolute paths of what separate tests get from the run. Raises: `ConfigError`."""
        given = self._turn.artifacts()
        found = [posixpath.normpath(posixpath.join(self._image.folder, source)) for source in given]
        for path in found:
            self._image.place(path)  # its error names what only the sandbox has
        return found

    def _hand_over(self, files: Mapping[str, bytes]) -> tuple[Image, Mapping[str, bytes]]:
        """Return the image in which the tests run, and the files that they find: those of the run or, for separate
        tests, of their image and of the run's artifacts."""
        if not self._turn.is_separate:
            return self._image, self._image.restore(files)
        made = dict(self._tested.files)
        left = {self._image.find(name): content for name, content in files.items()}
        for source in self._artifacts:
            found = {path: content for path, content in left.items() if f"{path}/".startswith(f"{source}/")}
            if found:
                made = {path: content for path, content in made.items() if not path.startswith(f"{source}/")}
            made |= found
        image = replace(self._tested, files=made)
        return image, {image.place(path): content for path, content in made.items()}

    async def run(self, files: Mapping[str, bytes]) -> TurnOutcome:
        """Run the tests on a copy of a run's files. Raises: `SandboxError` if they cannot be run."""
        image, files = self._hand_over(files)
        # The files of a run in an image begin at the root, so the tests lie where they do in a container.
        base = "" if image.root else f"{_HIDDEN}/"
        variables = {**self._variables, "TEST_DIR": "/tests", "BASH_ENV": "/tests/.installers.sh"}
        places = {"/tests": f"{_HIDDEN}/tests", "/logs/verifier": f"{_HIDDEN}/logs/verifier"}
        # A file of the run in place of these folders would keep the tests from being started.
        hidden = ["tests", "logs"] if image.root else [_HIDDEN, *map(image.place, places)]
        name = self._turn.script.name
        runner = "" if OTHER_PROGRAM.match(self._script) else f"{BASH} "
        command = f"cd {shlex.quote(image.folder)} && {runner}/tests/{name}"
        # Nothing that the run has left in these folders may take part in its grading, besides its artifacts.
        kept = {path: content for path, content in files.items() if path.startswith("logs/artifacts/")}
        held = {**self._read_tests(base), f"{base}tests/{name}": self._script, **(kept if image.root else {})}
        box = open_for_check(files, held, hidden)
        async with make_commands(image, variables, places).open() as place:
            outcome = await place.run(command, box, Limits(seconds=self._seconds))
        if self._turn.is_harbor:
            return _read_rewards(box, f"{base}logs/verifier", outcome)
        return _read_summary(outcome)

    def _read_tests(self, base: str) -> dict[str, bytes]:
        """Return the files that grading adds to those of the run, in the folder `base`."""
        found = {
            f"{base}tests/{path.relative_to(tests).as_posix()}": path.read_bytes()
            for tests in self._turn.tests
            for path in sorted(tests.rglob("*"))
            if path.is_file()
        }
        return {**found, f"{base}tests/.installers.sh": read_functions(), f"{base}logs/verifier/.keep": b""}


def join_outcomes(made: Sequence[TurnOutcome], missing: int, *, is_final: bool) -> Grade:
    """Return the grade of a run whose turns have these outcomes. `missing` turns did not begin, because of a
    limit of the run, and have rewards of 0. With `is_final`, only the last turn counts."""
    if len(made) + missing == 1:
        return Grade(made[0].reward, made[0].detail)
    told = f"its steps gave {', '.join([f'{item.reward:g}' for item in made])}"
    told += f", and {missing} did not begin; " if missing else "; "
    told += made[-1].detail
    if is_final:
        return Grade(0.0 if missing else made[-1].reward, told)
    valid = [item.rewards for item in made if item.rewards]
    names = {name for rewards in valid for name in rewards}
    count = max(1, len(valid) + missing)
    means = {name: sum(rewards.get(name, 0.0) for rewards in valid) / count for name in names}
    return Grade(TurnOutcome(means).reward, told)


def _read_rewards(box: MemorySandbox, logs: str, outcome: CommandOutcome) -> TurnOutcome:
    """Return the rewards that the tests wrote; none without any, or if one is no number, or the time was over."""
    fault = "wrote no reward"
    for name in () if outcome.stop is Stop.TIME else ("reward.json", "reward.txt"):
        if f"{logs}/{name}" not in box.paths():
            continue
        text = box.read(f"{logs}/{name}").decode("utf-8", "replace").strip()
        try:
            given = json.loads(text) if name == "reward.json" else {"reward": float(text)}
            is_valid = isinstance(given, dict) and all(
                isinstance(item, int | float) for item in given.values()
            )
            rewards = {str(key): float(value) for key, value in given.items()} if is_valid else {}
        except (ValueError, OverflowError, RecursionError):
            rewards = {}
        if rewards and all(map(math.isfinite, rewards.values())):
            made = TurnOutcome(rewards)
            return replace(made, detail=f"its tests gave {made.reward:g}{_last(outcome)}")
        fault = f"wrote a reward that is no number, {text!r:.80}"
        break
    return TurnOutcome({}, f"its tests {fault}{_last(outcome)}")


def _last(outcome: CommandOutcome) -> str:
    """Return why a command was stopped and the end of its output, or nothing if there is neither.

    It is a part of its own of the reason, since output varies and would make each failure a kind of its own.
    """
    stopped = "" if outcome.stop is None else f"[stopped: {outcome.reason or outcome.stop}]"
    said = f"{stopped} {outcome.text.strip()[-200:]}".strip()
    return said and f"; the end of their output: {said}"


def _read_summary(outcome: CommandOutcome) -> TurnOutcome:
    """Return 1 if pytest's summary has results and none of them failed, as terminal-bench does."""
    parts = [] if outcome.stop is Stop.TIME else _SUMMARY.split(outcome.text, maxsplit=1)
    results = {name: status for status, name in _RESULT.findall(parts[1])} if len(parts) > 1 else {}
    if not results:
        return TurnOutcome({}, f"its tests printed no summary{_last(outcome)}")
    failed = [status for status in results.values() if status not in _PASSING]
    detail = f"{len(results) - len(failed)} of {len(results)} tests pass"
    told = f"{detail}{_last(outcome)}" if failed else detail
    return TurnOutcome({"reward": float(not failed)}, told)


def _read_script(turn: HarborTurn, root: ImageRoot | None) -> bytes:
    """Return the script of the tests. Raises: `ConfigError` if there is none, or it installs what is not here."""
    if not turn.script.is_file():
        what = f"its step {turn.name!r}" if turn.name else "it"
        raise ConfigError(f"{what} has no script of tests: there is no file {str(turn.script)!r}")
    content = turn.script.read_bytes()
    if (obstacle := find_obstacle(content.decode("utf-8", "replace"), root)) is not None:
        raise ConfigError(obstacle)
    return content
