"""Evaluation during training: a callback for the trainers of transformers and TRL.

It evaluates the model under training in its own process, with the tasks and rows of an ordinary evaluation, and the
same seeds at each step, so that the scores of two steps are compared sample by sample.
"""

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.core.types import Settings
from treadle.evals.evaluation import Evaluated, evaluate
from treadle.evals.evaluation_config import PROGRAM, READER
from treadle.evals.evaluation_reports import read_curves
from treadle.export.whole import write_whole
from treadle.http.background import run_blocking
from treadle.models.tokens.engines.in_process import Network, make_network_model
from treadle.models.tokens.token_model import TokenModel
from treadle.renderers.hf import HfRenderer
from treadle.runs.task import Task
from treadle.telemetry.curves import Curves, open_curves

_METRICS = ("score", "solved", "tokens", "steps")
"""The names of the figures that each evaluation has."""
_NAME = "training"
"""The name of the model under training."""
_BASE: Any = require("transformers", install="torch transformers").TrainerCallback


class EvaluationCallback(_BASE):  # type: ignore[misc]
    """A callback that evaluates the model at steps, logs the scores, and keeps the best model.

    The score is in the trainer's log history, and in the metrics of the trainer's own evaluation at the same step,
    as `eval_treadle_score`, so that `metric_for_best_model` can name it.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        every_steps: int | None = None,
        settings: Settings = Settings(max_output_tokens=512),
        metric: str = "score",
        keeps_best: bool = True,
        curves: Iterable[str] = (),
        renderer: Any = None,
        batch_size: int = 8,
        **evaluation: Any,
    ) -> None:
        """Make the callback.

        Each evaluation is a folder `step-N` in `folder`, or `step-N.2` if that exists, as after a return to an
        earlier checkpoint; the best model so far is in `folder/best`. It is made every `every_steps` steps and at
        the end of the training; by default, whenever the trainer evaluates. `settings` are those of the sampling,
        and `metric` is `score`, `solved` or the name of a scorer. `curves` are targets such as `wandb=PROJECT`; see
        `open_curves`. The renderer is made from the tokenizer of the trainer, unless one is given. `evaluation` has
        the keys of an evaluation, such as `rows`, `tasks`, `rewards` and `max_tasks`, without `models` and `path`.
        """
        if every_steps is not None and every_steps < 1:
            raise ConfigError(f"every_steps is {every_steps}; give a number of at least 1")
        if taken := {"models", "path", "name", "workers"} & evaluation.keys():
            raise ConfigError(
                f"the callback sets {', '.join(sorted(taken))} of the evaluation itself; leave it out"
            )
        if "reports" in evaluation:
            raise ConfigError(
                "the callback writes curves and no reports; `treadle eval report FOLDER/step-N` writes them"
            )
        self.folder = Path(folder)
        self.best: tuple[int, float] | None = None
        """The step with the best value of the metric, and the value; `None` before the first evaluation."""
        self.history: list[tuple[int, dict[str, float]]] = []
        """The scores by step."""
        self._every_steps = every_steps
        self._settings = settings
        self._metric = metric
        self._keeps_best = keeps_best
        self._targets = tuple(curves)
        self._curves: Curves | None = None
        self._renderer = renderer
        self._batch_size = batch_size
        self._evaluation = evaluation

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that the model can be evaluated, and open the curves. Raises: `ConfigError`."""
        if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
            raise ConfigError(
                "the weights are split among processes, which this callback cannot put together; evaluate saved "
                "checkpoints: treadle eval --model hf:FOLDER"
            )
        # What is wrong with the evaluation must not be found only after the first steps.
        asked = {**self._evaluation, "models": [f"{PROGRAM}{_NAME}"], "path": self.folder}
        names = [item.name for item in READER.resolve(None, asked).scorers()]
        if self._metric not in (known := [*_METRICS, *names]):
            raise ConfigError(f"the evaluation has no {self._metric!r}; metric can be {', '.join(known)}")
        best = self.folder / "best" / "treadle_score.json"
        if best.exists():
            found = msgspec.json.decode(best.read_bytes())
            self.best = found["step"], found["value"]
        if state.is_world_process_zero and self._targets:
            self._curves = open_curves(self._targets, self.folder.name or "training")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate every `every_steps` steps."""
        if self._every_steps is not None and state.global_step % self._every_steps == 0:
            self._evaluate(state, kwargs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate when the trainer does, and add the scores to its metrics."""
        if self._every_steps is None:
            self._evaluate(state, kwargs)
        if self.history and self.history[-1][0] == state.global_step:
            found = self.history[-1][1]
            (kwargs.get("metrics") or {}).update(
                {f"eval_treadle_{name}": value for name, value in found.items()}
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate the last step, and close the curves."""
        if self._every_steps is not None:
            self._evaluate(state, kwargs)
        if self._curves is not None:
            self._curves.close()
            self._curves = None

    def _evaluate(self, state: Any, given: dict[str, Any]) -> None:
        """Evaluate the model unless it was at this step."""
        step = int(state.global_step)
        is_done = bool(self.history) and self.history[-1][0] == step
        if not state.is_world_process_zero or is_done:
            return
        model, tokenizer = given["model"], given.get("processing_class")
        done = self._run(step, model, self._find_renderer(tokenizer))
        is_whole = done.end.reason == "done"
        if not is_whole:
            told = done.end.error or done.end.reason
            logging.getLogger("treadle").warning(
                "the evaluation of step %d is not whole, so that its model is not kept: %s", step, told
            )
        scores = read_curves(done.results)
        if self._metric not in scores and not is_whole:
            return
        if self._metric not in scores:
            raise ConfigError(
                f"no sample of step {step} has a {self._metric!r}; there are {', '.join(scores)}"
            )
        self.history.append((step, scores))
        logged = {f"eval_treadle_{name}": value for name, value in scores.items()}
        state.log_history.append({"step": step, "epoch": state.epoch, **logged})
        if self._curves is not None:
            self._curves.write(step, {f"eval/{name}": value for name, value in scores.items()})
        value = scores[self._metric]
        if self._keeps_best and is_whole and (self.best is None or value > self.best[1]):
            self._keep(step, value, model, tokenizer)

    def _run(self, step: int, model: Any, renderer: Any) -> Evaluated:
        """Return the evaluation of the weights as they are at this step."""
        network = Network(model, batch_size=self._batch_size)

        def make(task: Task, seed: int) -> TokenModel:
            settings = replace(self._settings, seed=seed)
            return make_network_model(_NAME, network, renderer, settings, weight_version=str(step))

        name, number = f"step-{step}", 1
        while (self.folder / name).exists():
            number += 1
            name = f"step-{step}.{number}"
        asked = {**self._evaluation, "models": {_NAME: make}, "path": self.folder / name, "name": name}
        return run_blocking(evaluate(**asked))

    def _find_renderer(self, tokenizer: Any) -> Any:
        """Return the renderer of the tokenizer. Raises: `ConfigError` if it has no chat template."""
        if self._renderer is None:
            if tokenizer is None:
                raise ConfigError(
                    "the trainer has no tokenizer; give it processing_class, or the callback a renderer"
                )
            folder = tempfile.mkdtemp(prefix="treadle-tokenizer-")
            tokenizer.save_pretrained(folder)
            self._renderer = HfRenderer(Path(folder), name=f"hf:{getattr(tokenizer, 'name_or_path', folder)}")
        return self._renderer

    def _keep(self, step: int, value: float, model: Any, tokenizer: Any) -> None:
        """Keep the model as the best one."""
        folder = self.folder / "best"
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        told = {"step": step, "metric": self._metric, "value": value}
        write_whole([msgspec.json.encode(told)], folder / "treadle_score.json")
        self.best = step, value
