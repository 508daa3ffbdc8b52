"""The sinks by name, and how they are written: `NAME:TARGET`, such as `jsonl:groups.jsonl` or `atropos:http://…`.

A token format is a sink too: `verl:rows.jsonl` is a file, and `verl:rows` a folder of Parquet files. So are curve
writers, such as `tensorboard:FOLDER` and `wandb:PROJECT`, with the option `name` for the run. Options
follow a question mark, as in a URL: `atropos:http://host:8000?weight=0.5`. Every sink has the options `loss` (a
loss mask, such as `last_turn`) and `renderer` (which the mask `no_reasoning` needs to find the reasoning).
"""

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import parse_qsl

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry, did_you_mean, name_known
from treadle.core.texts.masking import hide_password
from treadle.export.token_exporter import TOKEN_FORMATS, LossMask, sampled_mask
from treadle.renderers.registry import load_renderer
from treadle.rollout.sinks.protocol import Sink
from treadle.telemetry.curves import CURVES
from treadle.trajectory.tokens.masks import make_mask


class MakeSink(Protocol):
    """A function that makes a sink."""

    def __call__(
        self, name: str, target: str, options: dict[str, str], *, group_size: int, mask: LossMask
    ) -> Sink:
        """Return the sink `name` for `target`. Raises: `ConfigError`."""
        ...


SINKS: Registry[MakeSink] = Registry(
    "sink",
    "treadle.sinks",
    {
        "jsonl": "treadle.rollout.sinks.files:make_lines",
        "parquet": "treadle.rollout.sinks.files:make_folder",
        "atropos": "treadle.rollout.sinks.atropos:make_atropos",
    },
)


def make_sinks(specs: Sequence[str], *, group_size: int, mask: LossMask = sampled_mask) -> list[Sink]:
    """Return the sinks in texts of the form `NAME:TARGET`. Raises: `ConfigError`."""
    if len(set(specs)) < len(specs):
        raise ConfigError("a sink is given twice")
    return [_make_sink(spec, group_size, mask) for spec in specs]


def _make_sink(spec: str, group_size: int, mask: LossMask) -> Sink:
    kind, _, rest = spec.partition(":")
    target, _, query = rest.partition("?")
    if not target:
        raise ConfigError(
            f"the sink {spec!r} has no target; write it as NAME:TARGET, such as jsonl:groups.jsonl"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    mask = _take_mask(options, mask)
    # The name of a sink is in the ledger.
    spec = hide_password(spec)
    if kind in SINKS:
        return SINKS.load(kind)(spec, target, options, group_size=group_size, mask=mask)
    if kind in CURVES:
        from treadle.rollout.sinks.curve_sink import CurvesSink

        check_keys(spec, options, ["name"])
        return CurvesSink(spec, kind, target, options.get("name", "rollout"))
    if kind in TOKEN_FORMATS:
        from treadle.rollout.sinks.files import make_rows

        return make_rows(spec, target, {**options, "format": kind}, group_size=group_size, mask=mask)
    known = list(dict.fromkeys([*SINKS.names(), *CURVES.names(), *TOKEN_FORMATS.names()]))
    raise ConfigError(f"there is no sink {kind!r}{name_known(kind, known, 'the sinks are')}")


def _take_mask(options: dict[str, str], otherwise: LossMask) -> LossMask:
    """Take the options of every sink out of `options`, and return the loss mask that they ask for."""
    loss, renderer = options.pop("loss", None), options.pop("renderer", None)
    if loss is None:
        return otherwise
    return make_mask(loss, decode=None if renderer is None else load_renderer(renderer).decode)


def check_keys(spec: str, options: dict[str, str], known: Sequence[str]) -> None:
    """Check the names of a sink's options. Raises: `ConfigError` with the nearest name."""
    for key in options:
        if key not in known:
            near = did_you_mean(key, known) or f"; its options are {', '.join(known) or 'none'}"
            raise ConfigError(f"the sink {spec!r} has no option {key!r}{near}")
