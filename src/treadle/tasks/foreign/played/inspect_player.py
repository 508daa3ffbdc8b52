"""Tasks of Inspect: their own solvers, tools, sandboxes and scorers, with the gateway as their model.

Inspect evaluates one thing at a time in a process. So each sample is evaluated in a fork of this process, which has
loaded the task. Source: inspect_ai 0.3.285, `eval`, `task_with`, `log.EvalSample` and `scorer.Score`.
"""

import asyncio
import ctypes
import math
import multiprocessing
import signal
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MAX_TASKS = 10_000
"""How many samples of a task are listed."""
_OF_EVAL = "eval."
"""The beginning of the settings that are arguments of Inspect's `eval`. Others are those of the task."""
_TAKEN = frozenset(
    ("tasks", "model", "model_base_url", "epochs", "limit", "sample_id", "log_dir", "fail_on_error")
)
"""The arguments of `eval` that say what is evaluated, and how often."""
_GRADES = ("C", "I", "P", "N")
_WORDS = ("yes", "no", "true", "false")
_DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
Told = dict[str, Any]


class InspectPlayer:
    """The samples of a task of Inspect."""

    def __init__(self, name: str, settings: Told) -> None:
        """Load the task `FILE`, `FILE@TASK` or `PACKAGE/TASK`."""
        given = {key: value for key, value in settings.items() if not key.startswith(_OF_EVAL)}
        self._options = {key[len(_OF_EVAL) :]: value for key, value in settings.items() if key not in given}
        if taken := _TAKEN & self._options.keys():
            raise ValueError(f"{_OF_EVAL}{min(taken)} is set by Treadle; leave it out")
        self._task = _load(name, given)
        if not self._task.scorer:
            raise ValueError("it has no scorer, so that nothing says how good an answer is")
        import openai  # noqa: F401 (Inspect needs it for its model, and says so only when it is asked)

        self._samples: dict[str, Any] = {}
        for index, sample in enumerate(self._task.dataset, 1):
            sample_id = str(index if sample.id is None else sample.id)
            if self._samples.setdefault(sample_id, sample) is not sample:
                raise ValueError(f"several of its samples have the id {sample_id!r}")

    def describe_tasks(self) -> list[Told]:
        return [
            {"id": sample_id, "input": _read_input(sample.input), "instructions": None}
            for sample_id, sample in [*self._samples.items()][:MAX_TASKS]
        ]

    async def play(self, asked: Told) -> Told:
        """See `Player.play`. The sample is evaluated in a process of its own."""
        forks = multiprocessing.get_context("fork")
        ours, theirs = forks.Pipe(duplex=False)
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        with tempfile.TemporaryDirectory(prefix="treadle-inspect-") as folder:
            process = forks.Process(target=self._evaluate, args=(asked, folder, theirs))
            process.start()
            theirs.close()
            loop.add_reader(ours, ended.set)
            try:
                await ended.wait()
                told: Told = ours.recv()
            except EOFError:
                process.join()
                told = {"error": f"the process of the sample ended with {process.exitcode}"}
            finally:
                loop.remove_reader(ours)
                ours.close()
                process.kill()
                process.join()
        return told

    def _evaluate(self, asked: Told, folder: str, answer: Connection) -> None:
        """Evaluate a sample with the log in a folder, and send the outcome."""
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        from inspect_ai import eval as evaluate
        from inspect_ai import task_with
        from inspect_ai.dataset import MemoryDataset
        from inspect_ai.model import get_model

        try:
            model = get_model(
                f"openai-api/treadle/{asked['model']}", base_url=asked["base_url"], api_key=asked["api_key"]
            )
            dataset = MemoryDataset([self._samples[asked["task"]]])
            # The model of the task itself would be asked in place of the one that is evaluated.
            task = task_with(self._task, dataset=dataset, epochs=1, model=model)
            options = {"max_retries": 0, "display": "none", **self._options}
            (log,) = evaluate(task, model=model, log_dir=folder, fail_on_error=True, **options)
            answer.send(describe(log))
        except BaseException as error:  # Inspect leaves with `SystemExit` where its commands would
            answer.send({"error": f"{type(error).__name__}: {error}"})

    async def close(self) -> None:
        """See `Player.close`."""


def _load(name: str, given: Told) -> Any:
    """Return a task of a file, or of an installed package."""
    from inspect_ai import list_tasks
    from inspect_ai._eval.loader import load_task_spec
    from inspect_ai._util.registry import registry_info, registry_params

    file, _, task = name.partition("@")
    path = Path(file).resolve()
    if path.is_file() and not task:
        known = [info.name for info in list_tasks([path.name], root_dir=path.parent)]
        if len(known) != 1:
            names = " or ".join([f"{file}@{name}" for name in known]) or "one with a function @task"
            raise ValueError(f"the file has {len(known)} tasks; name {names}")
        (task,) = known
    made = load_task_spec(f"{path}@{task}" if path.is_file() else name, given)
    if not made:
        raise ValueError(f"{file!r} is no file, and no task of an installed package")
    if unused := given.keys() - registry_params(made[0]).keys():  # Inspect only warns of them
        taken = ", ".join(registry_info(made[0]).metadata["params"]) or "no arguments"
        raise ValueError(f"the task does not take {', '.join(sorted(unused))}; it takes {taken}")
    return made[0]


def _read_input(given: Any) -> str:
    """Return what the user says in the input of a sample."""
    if isinstance(given, str):
        return given
    return "\n\n".join([message.text for message in given if message.role == "user"])


def _read_number(value: Any) -> float:
    """Return a value of a scorer as a number, as Inspect does; no number for a text of which Inspect makes 0."""
    from inspect_ai.scorer import value_to_float

    if isinstance(value, str) and value not in _GRADES and value.lower() not in _WORDS:
        try:
            return float(value)
        except ValueError:
            return math.nan
    return float(value_to_float()(value))


def describe(log: Any) -> Told:
    """Return the outcome of the only sample of a log. The reward is the mean of the scorers' values."""
    sample: Any = log.samples[0] if log.samples else None
    error = log.error if sample is None or sample.error is None else sample.error
    if error is not None:
        return {"error": error.message}
    metrics, rewards, told = dict[str, float](), list[float](), list[str]()
    for name, score in sample.scores.items():
        value = score.value
        listed = dict(enumerate(value)) if isinstance(value, list) else value
        parts = listed if isinstance(listed, dict) else {"": listed}
        numbers = {
            f"{name}.{key}".rstrip("."): _read_number(part) for key, part in parts.items() if part is not None
        }
        metrics |= numbers
        rewards += [sum(numbers.values()) / len(numbers)] if numbers else []
        told.append(f"{name} {value}" + (f": {score.explanation}" if score.explanation else ""))
    if sample.limit is not None:
        told.append(f"ended by its {sample.limit.type} limit")
    if not rewards or not all(map(math.isfinite, rewards)):
        return {"error": f"its scorers gave no number: {', '.join(told) or 'no score'}"}
    return {
        "reward": sum(rewards) / len(rewards),
        "detail": ", ".join(told),
        "metrics": metrics,
        "output": sample.output.completion,
    }
