"""Projects with bugs, the tests that decide, and solvers that know the bugs."""

import ast
from collections.abc import Mapping, Sequence
from functools import partial
from string import Template
from typing import Any

from msgspec import Struct

from treadle.core.errors import ConfigError, SandboxError
from treadle.core.texts.documents import decode_or, read_data
from treadle.runs.task import Grade
from treadle.sandbox.commands.host import HostCommands
from treadle.sandbox.commands.run_folder import open_for_check
from treadle.sandbox.protocol import Limits
from treadle.tasks.draws import Draw, split
from treadle.tasks.files.file_calls import edit_file, final, find_paths, read_files
from treadle.tasks.generated import GeneratedCase, Milestone
from treadle.tasks.solver import Habit, Solver, Step, WantedCall

DATA = read_data(__package__, "snippets")
TESTS = "tests.py"
_HIDDEN = "hidden_calls.py"
_LIMITS = Limits(seconds=20, memory_bytes=512 * 1024**2, disk_bytes=16 * 1024**2)
REPAIRED_SHARE = 0.6
"""The share of the reward for tests that the repair made pass, while others fail."""
TAMPERING_COST = 0.5
"""What is lost if the tests of the project were changed or deleted."""
_KINDS = ("boundary", "operator", "ordering", "forgotten", "memory")
_NAMES, _VERBS = split(DATA["names"]), split(DATA["verbs"])


class Snippet(Struct, frozen=True):
    """A function with drawn numbers, right and wrong."""

    kind: str
    module: str
    function: str
    right: str
    wrong: str
    code: str
    calls: tuple[str, ...]

    @property
    def bad_code(self) -> str:
        """The code with the bug."""
        return self.code.replace(self.right, self.wrong)


def _draw_snippet(draw: Draw, entry: Mapping[str, Any], kind: str, module: str) -> Snippet:
    function = f"{draw.pick(_VERBS)}_{module}"
    numbers = {"n": draw.between(2, 9), "m": draw.between(11, 60)}

    def fill(text: str) -> str:
        return Template(text).substitute(f=function, **numbers)

    calls = tuple([fill(call).replace(function, f"{module}.{function}") for call in entry["calls"]])
    return Snippet(
        kind,
        module,
        function,
        fill(entry["right"]),
        fill(entry["wrong"]),
        fill(entry["code"]).lstrip(),
        calls,
    )


def _evaluate(snippet: Snippet, code: str) -> list[str]:
    """Return the result of each call as text, or the name of its exception."""

    class Module:
        pass

    names: dict[str, Any] = {}
    exec(code, names)
    setattr(Module, snippet.function, staticmethod(names[snippet.function]))
    results = []
    for call in snippet.calls:
        try:
            results.append(repr(eval(call, {snippet.module: Module})))
        except Exception as error:
            results.append(type(error).__name__)
    return results


class RepairGoal(Struct, frozen=True):
    """The results of calls that the repaired project must give."""

    calls: tuple[tuple[str, str], ...]
    """Each call with its module."""
    wanted: tuple[str, ...]
    found: tuple[str, ...]
    """The results of the project with its bugs."""

    async def grade(self, output: str, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Grade:
        """Run the hidden calls on the final files. Their results are compared here, so that the project's code
        cannot see what is expected. Raises: `SandboxError` if commands cannot be run."""
        results = await self._run(after)
        right = [one == other for one, other in zip(results, self.wanted, strict=True)]
        broken = [one == other for one, other in zip(self.found, self.wanted, strict=True)]
        is_tampered = after.get(TESTS) != before.get(TESTS)
        notes = [
            f"{call} gives {result:.80}, not {wanted}"
            for (_, call), result, wanted, is_right in zip(
                self.calls, results, self.wanted, right, strict=True
            )
            if not is_right
        ]
        reward = 1.0
        if notes:
            lost = sum([was and not now for was, now in zip(broken, right, strict=True)])
            won = sum([now and not was for was, now in zip(broken, right, strict=True)])
            reward = REPAIRED_SHARE * max(0, won - lost) / broken.count(False)
        if is_tampered:
            reward, notes = reward - TAMPERING_COST, [f"{TESTS} should have been left alone", *notes]
        return Grade(round(max(0.0, reward), 4), "; ".join(notes[:4]) or "all hidden tests pass")

    async def _run(self, files: Mapping[str, bytes]) -> Sequence[str]:
        commands = HostCommands()
        if (fault := commands.find_fault()) is not None:
            raise ConfigError(f"the tests of a repair cannot be run here: {fault}")
        script = DATA["runner"].format(calls=repr(list(self.calls)))
        box = open_for_check(files, {_HIDDEN: script.encode()}, [_HIDDEN])
        async with commands.open() as folder:
            outcome = await folder.run(f"python3 -B {_HIDDEN}", box, _LIMITS)
        results = decode_or(outcome.text.strip().rpartition("\n")[2])
        if isinstance(results, list) and len(results) == len(self.calls):
            return [str(item) for item in results]
        if "python3: not found" in outcome.text:
            raise SandboxError("the tests of a repair need python3 in /usr/bin; install it")
        return ["no result"] * len(self.calls)


def _generate(kind: str, draw: Draw, level: int) -> GeneratedCase:
    """Draw a project. Easy ones have one bug, which the prompt names; in hard ones there are two of the kind, and
    the tests of the project show only the first."""
    size, bugs = (2, 4, 6)[level], 2 if level == 2 else 1
    modules = draw.sample(_NAMES, size)
    entries = draw.sample(DATA[kind], bugs)
    snippets = [_draw_snippet(draw, entry, kind, name) for entry, name in zip(entries, modules, strict=False)]
    # The other functions are of the same split, so that training sees nothing of the tasks for tests.
    family = [item for item in _KINDS if (item in _TEST_KINDS) is (kind in _TEST_KINDS)]
    others = [(name, entry) for name in family for entry in DATA[name]]
    for module in modules[bugs:]:
        name, entry = draw.pick(others)
        snippets.append(_draw_snippet(draw, entry, name, module))
    broken = snippets[:bugs]
    files = {
        f"{item.module}.py": (item.bad_code if item in broken else item.code).encode()
        for item in draw.shuffled(snippets)
    }
    rights = {item.module: _evaluate(item, item.code) for item in snippets}
    wrongs = {item.module: _evaluate(item, item.bad_code) for item in broken}
    hidden = ([], broken, broken[1:])[level]
    shown = [item for item in snippets if item not in hidden]
    checks = [
        f"    ({call!r}, {result}),\n"
        for item in shown
        for call, result in zip(item.calls, rights[item.module], strict=True)
        if _is_literal(result)
    ]
    imports = ", ".join(sorted([item.module for item in shown]))
    files[TESTS] = DATA["tests"].format(modules=imports, checks="".join(checks)).encode()
    calls = [(item.module, call) for item in snippets for call in item.calls]
    wanted = [result for item in snippets for result in rights[item.module]]
    found = [result for item in snippets for result in wrongs.get(item.module, rights[item.module])]
    first = broken[0]
    values = {"call": first.calls[0], "found": wrongs[first.module][0], "wanted": rights[first.module][0]}
    if level == 0:
        values["path"] = f"{first.module}.py"
    if level == 2:
        values = {"modules": str(bugs)}
    milestones = []
    for item in broken:
        path = {"file_path": f"{item.module}.py"}
        milestones += [Milestone("read_file", path), Milestone("edit_file", path)]
    return GeneratedCase(
        values,
        files,
        RepairGoal(tuple(calls), tuple(wanted), tuple(found)),
        (kind, *[entry["wrong"] for entry in entries]),
        (*milestones, Milestone("shell")),
    )


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _solve(kind: str, values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the modules, put right what is known to be wrong, and run the tests."""
    paths = yield from find_paths(lambda path: path.endswith(".py") and path != TESTS)
    wanted = [values["path"]] if "path" in values else paths
    texts = yield from read_files(wanted, habit)
    repaired = []
    for path, text in texts.items():
        for entry in DATA[kind]:
            if (found := _find_bug(entry, text)) is not None:
                yield Step([edit_file(path, text, *found)], "This line does not do what the docstring says.")
                repaired.append(path)
    (printed,) = yield Step(
        [WantedCall("shell", {"command": f"python3 -B {TESTS}"})], "Do the tests pass now?"
    )
    told = f"{printed.strip().rpartition(chr(10))[2]} after the repair of {', '.join(repaired)}."
    return final(habit, ", ".join(repaired), told)


def _find_bug(entry: Mapping[str, Any], text: str) -> tuple[str, str] | None:
    """Return the text with the bug and the right one, if the bug of `entry` is in `text`. The numbers are found in
    the text: a wrong code fits for one choice of them."""
    function = text.partition("def ")[2].partition("(")[0]
    for n in range(2, 10):
        for m in range(11, 61) if "$m" in entry["code"] else (0,):
            numbers = {"f": function, "n": n, "m": m}
            code, right, wrong = (
                Template(entry[key]).substitute(numbers) for key in ("code", "right", "wrong")
            )
            if text == code.lstrip().replace(right, wrong):
                return wrong, right
    return None


_TEST_KINDS = ("forgotten", "memory")

generate_boundary, solve_boundary = partial(_generate, "boundary"), partial(_solve, "boundary")
generate_operator, solve_operator = partial(_generate, "operator"), partial(_solve, "operator")
generate_ordering, solve_ordering = partial(_generate, "ordering"), partial(_solve, "ordering")
generate_forgotten, solve_forgotten = partial(_generate, "forgotten"), partial(_solve, "forgotten")
generate_memory, solve_memory = partial(_generate, "memory"), partial(_solve, "memory")
