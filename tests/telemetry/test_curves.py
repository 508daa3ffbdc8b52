"""Curves: the clients' own readers find the points that were written, offline."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest

from treadle.core.errors import ConfigError
from treadle.telemetry.curves import CURVES, CurveRun, Curves, open_curves

POINTS = [(0, {"eval/score": 0.25, "loss": 2.0}), (10, {"eval/score": 0.5}), (5, {"loss": 1.0})]
"""Points of two curves, not in the order of their steps, as after a checkpoint that was gone back to."""


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what a test registers."""
    monkeypatch.setattr(CURVES, "_loaded", {})


def write(*targets, points=POINTS, name="first-run"):
    with open_curves(targets, name, {"epochs": 2}) as curves:
        for step, values in points:
            curves.write(step, values)


def test_tensorboard_reads_the_points_of_a_continued_run(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(f"tensorboard={tmp_path}", points=POINTS[:1])
    write(f"tensorboard={tmp_path}", points=POINTS[1:])
    found = EventAccumulator(str(tmp_path / "first-run")).Reload()
    scalars = {
        tag: {(event.step, found.Tensors(tag)[place].tensor_proto.float_val[0]) for place, event in
              enumerate(found.Tensors(tag))}
        for tag in found.Tags()["tensors"]
    }  # fmt: skip
    assert scalars == {"eval/score": {(0, 0.25), (10, 0.5)}, "loss": {(0, 2.0), (5, 1.0)}}


def run_apart(code, tmp_path, **environment):
    """Run code in a process of its own: the clients keep a service and threads for their process."""
    there = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=there, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


WRITE = """
from treadle.telemetry.curves import open_curves
with open_curves([{target!r}], "first-run", {{"epochs": 2}}) as curves:
    for step, values in {points!r}:
        curves.write(step, values)
"""


def test_trackio_has_the_points_of_a_continued_run(tmp_path):
    pytest.importorskip("trackio")
    there = {"TRACKIO_DIR": str(tmp_path / "trackio")}
    read = """
from trackio.sqlite_storage import SQLiteStorage
print(SQLiteStorage.get_runs("proved"))
for item in SQLiteStorage.get_logs("proved", "first-run"):
    print(sorted((k, v) for k, v in item.items() if k in ("step", "loss", "eval/score")))
"""
    first, second = (WRITE.format(target="trackio=proved", points=part) for part in (POINTS[:1], POINTS[1:]))
    assert not run_apart(first, tmp_path, **there).stdout
    runs, *lines = run_apart(second + read, tmp_path, **there).stdout.splitlines()
    assert runs == "['first-run']"
    assert sorted(lines) == sorted([str(sorted({"step": step, **values}.items())) for step, values in POINTS])


@pytest.mark.sets(0)
def test_trackio_leaves_the_run_of_the_trainer_open(tmp_path):
    pytest.importorskip("trackio")
    code = """
import trackio
trackio.init("proved", "of-the-trainer")
from treadle.telemetry.curves import open_curves
with open_curves(["trackio=proved"], "ours") as curves:
    curves.write(1, {"a": 1})
trackio.log({"b": 2}, 1)
trackio.finish()
from trackio.sqlite_storage import SQLiteStorage
print(len(SQLiteStorage.get_logs("proved", "of-the-trainer")), len(SQLiteStorage.get_logs("proved", "ours")))
"""
    assert run_apart(code, tmp_path, TRACKIO_DIR=str(tmp_path)).stdout.splitlines()[-1] == "1 1"


@pytest.mark.sets(0)
def test_wandb_has_the_points_in_its_offline_run(tmp_path):
    pytest.importorskip("wandb")
    there = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    run_apart(WRITE.format(target="wandb=proved", points=POINTS), tmp_path, **there)
    (path,) = tmp_path.glob("wandb/offline-run-*/run-first-run.wandb")
    read = f"""
import json, struct
from wandb.proto import wandb_internal_pb2
data, at, piece = open({str(path)!r}, "rb").read(), 7, b""
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
    size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
    piece += data[at + 7 : at + 7 + size]
    at += 7 + size
    if kind in (1, 4):  # The record is whole; 2 and 3 are its first and middle pieces.
        record, piece = wandb_internal_pb2.Record.FromString(piece), b""
        if record.WhichOneof("record_type") == "history":
            found = [(i.key or "/".join(i.nested_key), json.loads(i.value_json)) for i in record.history.item]
            print(sorted((name, value * 1.0) for name, value in found if not name.startswith("_")))
"""
    lines = run_apart(read, tmp_path, **there).stdout.splitlines()
    assert lines == [str(sorted({"step": float(step), **values}.items())) for step, values in POINTS]


@pytest.mark.sets(0)
def test_wandb_that_is_not_logged_in_says_what_to_do(tmp_path):
    pytest.importorskip("wandb")
    code = """
from treadle.telemetry.curves import open_curves
try:
    open_curves(["wandb"], "first-run")
except Exception as error:
    print(type(error).__name__, error)
"""
    there = {"WANDB_MODE": "online", "WANDB_API_KEY": "", "HOME": str(tmp_path), "WANDB_SILENT": "true",
             "NETRC": str(tmp_path / "netrc")}  # fmt: skip
    told = run_apart(code, tmp_path, **there).stdout
    assert told.startswith("ConfigError W&B did not begin the run 'first-run': ")
    assert "WANDB_MODE=offline" in told


OTEL = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from treadle.core.errors import ConfigError
from treadle.telemetry.curves import open_curves
try:
    open_curves(["otel"], "first-run")
except ConfigError as error:
    print(error)
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
with open_curves(["otel"], "first-run") as curves:
    for step, values in {points!r}:
        curves.write(step, {{f"{{name}} é": value for name, value in values.items()}})
for resource in reader.get_metrics_data().resource_metrics:
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            for point in metric.data.data_points:
                print([metric.name, point.attributes["treadle.step"], point.value])
"""


def test_open_telemetry_gets_gauges_with_steps(tmp_path):
    error, *lines = run_apart(OTEL.format(points=POINTS), tmp_path).stdout.splitlines()
    assert "has no provider of OpenTelemetry's metrics" in error
    wanted = [[f"treadle.{name}__", step, value] for step, values in POINTS for name, value in values.items()]
    assert sorted(lines) == sorted(map(str, wanted))


class Kept:
    """A curve writer that keeps what it gets."""

    def __init__(self, run, fails=False):
        self.run, self.points, self.closed, self._fails = run, [], 0, fails

    def write(self, step, values):
        self.points.append((step, values))

    def close(self):
        self.closed += 1
        if self._fails:
            raise OSError("full")


def test_values_that_are_no_number_are_left_out():
    kept = Kept(CurveRun(name="x"))
    curves = Curves([kept])
    curves.write(1, {"a": None, "b": float("nan"), "c": 1})
    curves.write(2, {"a": None, "d": float("inf")})
    assert kept.points == [(1, {"c": 1.0})]


def test_all_writers_are_closed_if_one_fails():
    writers = [Kept(CurveRun(name="x"), fails=True), Kept(CurveRun(name="x"), fails=True)]
    with pytest.raises(OSError, match="full"):
        Curves(writers).close()
    assert [writer.closed for writer in writers] == [1, 1]


def test_a_writer_that_cannot_be_opened_closes_those_before():
    made = []
    CURVES.add("kept", lambda run: made.append(Kept(run)) or made[-1])
    with pytest.raises(ConfigError, match="unknown curve writer 'wand'; did you mean 'wandb'"):
        open_curves(["kept=here", "wand"], "first-run")
    assert [(kept.run.target, kept.closed) for kept in made] == [("here", 1)]


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_missing_client_is_an_error_with_the_command(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    for module in [item for item in sys.modules if item.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError, match=rf"pip install 'treadle\[{name}\]'"):
        open_curves([name], "first-run")
    with suppress(KeyError):
        monkeypatch.delitem(sys.modules, name)
