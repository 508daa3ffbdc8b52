"""The codec of events: round trips, unknown fields and types, newer versions, and damaged lines."""

import ast
import json
import pickle
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.histories import History, histories

import treadle.events
from treadle.core import errors
from treadle.core import events as e
from treadle.core.errors import JournalError, ProviderError, ReplayDivergence
from treadle.core.events import narrowing
from treadle.core.events.codec import DurableBody
from treadle.core.log import Log
from treadle.core.policy import Policy

STARTED = e.RunStarted(at=1.0, version=e.VERSION, policy=Policy())


@settings(max_examples=settings().max_examples // 3, suppress_health_check=list(HealthCheck))
@given(histories())
def test_events_are_read_as_they_were_written(history: History) -> None:
    for seq, body in enumerate(history.bodies, 1):
        assert e.decode_body(e.encode_body(body)) == body
        event = e.Event('rün-"1"', seq, body)
        back = e.decode_line(event.to_json())
        assert (back.run_id, back.seq, back.body) == (event.run_id, seq, body)
        assert back.to_json() == event.to_json()


def test_every_type_of_the_vocabulary_is_known() -> None:
    expected = (
        "run_started turn_started inference_started inference_completed inference_failed tool_started "
        "tool_completed context_compacted message_injected question_asked question_answered approval_requested "
        "approval_decided snapshot_taken turn_completed run_paused run_resumed run_finished rewarded noted"
    )
    assert set(expected.split()) == e.EVENT_TYPES


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1).map(lambda name: f"new_{name}"), json_values, min_size=1))
def test_unknown_fields_are_kept_at_every_depth(extra: dict[str, object]) -> None:
    raw = json.loads(e.encode_body(STARTED))
    raw.update(extra)
    raw["policy"].update(extra)
    line = msgspec.json.encode({"run_id": "r", "seq": 1, **raw})
    event = e.decode_line(line)
    assert isinstance(event.body, e.RunStarted)
    assert event.body.policy == Policy()
    assert msgspec.json.decode(event.to_json()) == msgspec.json.decode(line)


@pytest.mark.parametrize("version", ["3.0", "10.3", "x"])
def test_a_newer_major_version_is_refused(version: str) -> None:
    raw = msgspec.json.encode({**json.loads(e.encode_body(STARTED)), "version": version, "policy": "changed"})
    with pytest.raises(JournalError, match="upgrade treadle"):
        e.decode_body(raw)


def test_a_newer_minor_version_is_read() -> None:
    raw = msgspec.json.encode({**json.loads(e.encode_body(STARTED)), "version": "1.9"})
    assert isinstance(e.decode_body(raw), e.RunStarted)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "not a line"),
        (b"[]", "not a line"),
        (b'{"type":"run_resumed","at":1}', "not a line"),
        (b'{"run_id":"r","seq":1}', "damaged"),
        (b'{"run_id":"r","seq":1,"type":"run_exploded","at":1}', "unknown event type 'run_exploded'"),
        (b'{"run_id":"r","seq":1,"type":"run_resumed"}', "damaged"),
        (b'{"run_id":"r","seq":1,"type":"run_resumed","at":"noon"}', "damaged"),
    ],
)
def test_what_is_no_event_is_refused_and_told(line: bytes, words: str) -> None:
    with pytest.raises(JournalError, match=words):
        e.decode_line(line)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 70)), max_size=20))
def test_joined_results_are_those_of_a_scan_in_few_pieces(steps: list[tuple[int, int]]) -> None:
    seen = []

    def write(total: int, item: int, end: str) -> tuple[int, bytes]:
        seen.append(item)
        return total + item, f"{item}{end}".encode()

    versions: list[Log[int]] = [Log()]
    for which, count in steps:
        versions.append(versions[which % len(versions)].extend(range(count)))
    for log in versions:
        pieces, state = log.join(write, 0, " ")
        assert (b"".join(pieces), state) == (b"".join(f"{item} ".encode() for item in log), sum(log))
        assert len(pieces) <= len(log) // 32 + 32
        before = len(seen)
        assert log.join(write, 0, " ") == (pieces, state)
        assert len(seen) == before


@given(st.lists(st.tuples(st.integers(0, 5), st.integers())))
def test_a_log_is_as_many_lists_as_it_has_versions(steps: list[tuple[int, int]]) -> None:
    def double(item: int) -> int:
        return 2 * item

    def add(total: int, item: int) -> tuple[int, str]:
        return total + item, f"+{item}"

    versions: list[tuple[Log[int], list[int]]] = [(Log(), [])]
    for which, item in steps:
        log, model = versions[which % len(versions)]
        versions.append((log.append(item), [*model, item]))
        versions.append((log.extend([item, item]), [*model, item, item]))
    for log, model in versions:
        assert list(log) == model
        assert len(log) == len(model)
        assert log.map(double) == [double(item) for item in model]
        sums = list(accumulate(model))
        assert log.scan(add, 0) == ([f"+{item}" for item in model], sums[-1] if sums else 0)
        assert [log[index] for index in range(-len(model), len(model))] == model + model
        with pytest.raises(IndexError):
            log[len(model)]


def test_every_error_is_picklable_and_a_fitting_builtin() -> None:
    builtin = (ValueError, RuntimeError, OSError, LookupError, AssertionError)
    kinds = [
        item
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, errors.TreadleError)
    ]
    assert len(kinds) > 15
    for kind in kinds:
        given: tuple[Any, ...] = ("what failed",)
        if kind in (ReplayDivergence, errors.UntrustedError):
            given = (3, "a", "b") if kind is ReplayDivergence else ("run 'r'", ("ask 'x'",))
        error = kind(*given)
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back)) == (kind, str(error))
        assert kind is errors.TreadleError or isinstance(error, builtin)
    limited = pickle.loads(pickle.dumps(errors.RateLimitError("slow", status=429, retry_after_seconds=2.5)))
    assert isinstance(limited, ProviderError)
    assert (limited.status, limited.retry_after_seconds) == (429, 2.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_steps", -1), ("max_cost_usd", float("nan")), ("deadline_seconds", -0.1), ("parallel_tool_calls", 0),
     ("last_step_message", "{limt}")],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_names_its_field(field: str, value: object) -> None:
    with pytest.raises(errors.ConfigError, match=field):
        Policy(**{field: value})  # type: ignore[arg-type]


def test_type_checkers_know_every_event() -> None:
    """The union of the classes for type checkers is written out, so a new event could be missing in it."""
    tree = ast.parse(Path(narrowing.__file__).read_text())
    unions = {
        node.target.id: {item.id for item in ast.walk(node.value) if isinstance(item, ast.Name)}
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }
    assert unions["Event"] == {body.__name__ for body in get_args(DurableBody)}
    assert unions["Event"] <= vars(treadle.events).keys()
