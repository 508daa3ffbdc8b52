"""Curves: named values by step, written by the clients of TensorBoard, trackio and W&B, or to OpenTelemetry.

Read first: `open_curves`. A curve writer of another package is an entry point in the group `treadle.curves`: a
function of a `CurveRun`. Writers that are opened again for a run of the same name continue it.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, redirect_stdout
from contextvars import Context
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry, require
from treadle.core.types import Json

_STEP = "step"
"""The name of the axis in W&B, which takes steps of its own only in ascending order."""


class CurveRun(Struct, frozen=True, kw_only=True):
    """What the curves are about, and where they go."""

    name: str
    """The name of the run, which is the same if the run is continued."""
    target: str = ""
    """The folder for TensorBoard, and the project for W&B and trackio; empty: a default."""
    settings: Mapping[str, Json] = {}
    """The settings of the run, for the clients that show them. They have no secrets."""


class CurveWriter(Protocol):
    """A client that stores the points of curves."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve in `values`. A name may have slashes. All values are finite."""

    def close(self) -> None:
        """Store what is not stored yet, and end the run of this process."""


MakeCurves: TypeAlias = Callable[[CurveRun], CurveWriter]

CURVES: Registry[MakeCurves] = Registry(
    "curve writer",
    "treadle.curves",
    {name: f"{__name__}:{kind}" for name, kind in (
        ("tensorboard", "TensorBoardCurves"),
        ("trackio", "TrackioCurves"),
        ("wandb", "WandbCurves"),
        ("otel", "OpenTelemetryCurves"),
    )},
)  # fmt: skip
"""The curve writers by name."""


class Curves:
    """Several curve writers as one. A context manager that closes them."""

    def __init__(self, writers: Iterable[CurveWriter]) -> None:
        self._writers = tuple(writers)

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Add a point to each curve in `values`. Values that are `None`, infinite or no number are left out."""
        known = {name: float(value) for name, value in values.items() if value is not None}
        finite = {name: value for name, value in known.items() if math.isfinite(value)}
        for writer in self._writers if finite else ():
            writer.write(step, finite)

    def close(self) -> None:
        """Close all writers, also if one of them fails."""
        with ExitStack() as stack:
            for writer in self._writers:
                stack.callback(writer.close)

    def __enter__(self) -> "Curves":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_curves(targets: Iterable[str], name: str, settings: Mapping[str, Json] | None = None) -> Curves:
    """Return the writers of the curves of a run called `name`, each given as `NAME` or `NAME=TARGET`.

    Examples are `tensorboard=FOLDER`, `trackio=PROJECT`, `wandb=PROJECT` and `otel`. The clients read their own
    environment variables, such as `WANDB_MODE=offline` and `TRACKIO_DIR`. Several processes that write curves of
    one name write one run.

    Raises: `ConfigError` for an unknown name, for a package that is not installed, and if a client refuses.
    """
    with ExitStack() as opened:
        writers: list[CurveWriter] = []
        for given in targets:
            kind, _, target = given.partition("=")
            made = CURVES.load(kind)(CurveRun(name=name, target=target, settings=settings or {}))
            writers.append(made)
            opened.callback(made.close)
        opened.pop_all()
        return Curves(writers)


class TensorBoardCurves:
    """Curves as event files in a folder, by default `runs`, with a folder for the run. See `CurveWriter`."""

    def __init__(self, run: CurveRun) -> None:
        """Open the files. Raises: `ConfigError` if the package `tensorboard` is missing."""
        summary = require("tensorboard.summary", "tensorboard")
        self._writer = summary.Writer(f"{run.target or 'runs'}/{run.name}")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class TrackioCurves:
    """Curves in trackio's project, by default `treadle`: in its folder on this machine, unless the environment
    names a server or a Space."""

    def __init__(self, run: CurveRun) -> None:
        """Begin or continue the run. Raises: `ConfigError` if trackio is missing, or refuses."""
        with redirect_stdout(sys.stderr):
            trackio = require("trackio", "trackio")
            # trackio ends the run that its context has, which may be one of the trainer.
            self._context = Context()
            try:
                self._run: Any = self._context.run(
                    trackio.init,
                    run.target or "treadle",
                    run.name,
                    config=dict(run.settings),
                    resume="allow",
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
            except Exception as error:
                raise ConfigError(f"trackio did not begin the run {run.name!r}: {error}") from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._context.run(self._run.log, dict(values), step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._context.run(self._run.finish)


class WandbCurves:
    """Curves in a project of W&B, by default `treadle`, beside other runs of this process."""

    def __init__(self, run: CurveRun) -> None:
        """Begin or continue the run. Raises: `ConfigError` if wandb is missing, or refuses."""
        wandb = require("wandb", "wandb")
        try:
            self._run = wandb.init(
                project=run.target or "treadle",
                name=run.name,
                id=run.name,
                config=dict(run.settings),
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(console="off"),
            )
        except Exception as error:
            raise ConfigError(
                f"W&B did not begin the run {run.name!r}: {error}. Log in with `wandb login`, or set "
                "WANDB_MODE=offline and send the run later with `wandb sync`"
            ) from error
        self._run.define_metric("*", step_metric=_STEP)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({_STEP: step, **values})

    def close(self) -> None:
        self._run.finish()


class OpenTelemetryCurves:
    """Curves as gauges of OpenTelemetry, with the run and the step as attributes, for the process's provider."""

    def __init__(self, run: CurveRun) -> None:
        """Make the meter. Raises: `ConfigError` if the package `opentelemetry-api` is missing, or if the process
        has no provider, so that all values would be lost."""
        self._metrics = require("opentelemetry.metrics", "otel")
        if not hasattr(self._metrics.get_meter_provider(), "force_flush"):
            raise ConfigError(
                "the process has no provider of OpenTelemetry's metrics; run the command within "
                "`opentelemetry-instrument`, or call opentelemetry.metrics.set_meter_provider"
            )
        self._meter = self._metrics.get_meter("treadle")
        self._attributes = {"treadle.run.name": run.name}
        self._gauges: dict[str, Any] = {}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if name not in self._gauges:
                # OpenTelemetry takes names of ASCII letters, digits, and `_ . - /`, at most 255.
                safe = re.sub(r"[^A-Za-z0-9_.\-/]", "_", name)
                self._gauges[name] = self._meter.create_gauge(f"treadle.{safe}"[:255])
            self._gauges[name].set(value, {**self._attributes, "treadle.step": step})

    def close(self) -> None:
        self._metrics.get_meter_provider().force_flush()
