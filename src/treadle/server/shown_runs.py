"""What a client that sees only its own runs is told of them: nothing of what stands behind the server.

Names of models are those that clients know. Settings, paths and the names of tools' files are left out, and
addresses are taken out of errors. What the agent reads and says, its tools and its limits are shown.
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.events.narrowing import Item
from treadle.core.texts.hiding import hide_model, hide_servers
from treadle.export.groups import Group
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter, RunInfo
from treadle.server.admission.access import ApiCaller
from treadle.server.run_host import AGENT

_TOLD = (
    *(
        e.RunStarted,
        e.RunResumed,
        e.RunPaused,
        e.RunFinished,
        e.TurnStarted,
        e.TurnCompleted,
        e.Noted,
        e.Rewarded,
    ),
    *(e.InferenceStarted, e.InferenceCompleted, e.InferenceFailed, e.ContextCompacted),
)
"""The events that may tell of more than the conversation."""
_WITH_MODELS = ("completion", "sampled", "route", "verdict", "judgement")
_OF_AGENT = ("instructions", "policy", "schema", "task_set")
"""What is shown of an agent. Its tools stand in another field."""
_LEFT_OUT = ("answered_by", "engine", "opaque", "response_id", "reasons", "rejected", "scorer")


def show_info(caller: ApiCaller, info: RunInfo) -> RunInfo:
    """Return the facts about a run as a client sees them."""
    if caller.sees_all:
        return info
    error = None if info.error is None else _hide(info.error, info)
    return replace(info, model=info.labels.get(AGENT), error=error)


def view_of(caller: ApiCaller, info: RunInfo) -> Callable[[Item], Item] | None:
    """Return a function that returns an event of a run as a client sees it; `None`: the client sees all."""
    return None if caller.sees_all else lambda item: cast("Item", _show_event(item, caller, info))


def journal_of(journal: Journal, caller: ApiCaller) -> Journal:
    """Return the runs of a journal as a client sees them, for what only reads."""
    return journal if caller.sees_all else cast("Journal", _ShownJournal(journal, caller))


def show_group(group: Group) -> Group:
    """Return a group with its tokens as a client sees it who does not see all."""
    rollouts = []
    for rollout in group.rollouts:
        alias = rollout.metadata.get(AGENT)
        shown = [
            replace(item, spans=tuple([replace(span, model=alias, engine=None) for span in item.spans]))
            for item in rollout.trajectories
        ]
        rollouts.append(replace(rollout, trajectories=tuple(shown)))
    return replace(group, rollouts=tuple(rollouts))


class _ShownJournal:
    """A journal whose events and facts are those that a client sees."""

    def __init__(self, journal: Journal, caller: ApiCaller) -> None:
        self._journal = journal
        self._caller = caller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def runs(self, *given: Any, **options: Any) -> list[RunInfo]:
        return [show_info(self._caller, info) for info in self._journal.runs(*given, **options)]

    def read(self, run_id: str, *given: Any, **options: Any) -> list[e.Event]:
        infos = self._journal.runs(RunFilter(run_ids=[run_id]))
        found = self._journal.read(run_id, *given, **options)
        return [_show_event(event, self._caller, infos[0]) for event in found] if infos else []

    def scan(self, run_id: str, *given: Any, **options: Any) -> Any:
        return iter(self.read(run_id, *given, **options))


def _hide(text: str, info: RunInfo) -> str:
    """Return the text of an error without addresses and the real name of the model."""
    told = hide_servers(text)
    return hide_model(told, info.model, info.labels.get(AGENT, "the model")) if info.model else told


def _show_event(event: Any, caller: ApiCaller, info: RunInfo) -> Any:
    if isinstance(event.body, e.ToolCompleted):
        return _show_result(event)
    if not isinstance(event.body, _TOLD):
        return event
    fields: dict[str, Any] = msgspec.json.decode(event.raw or e.encode_body(event.body))
    alias = info.labels.get(AGENT, "")
    for part in (fields, *[fields[name] for name in _WITH_MODELS if isinstance(fields.get(name), dict)]):
        if part.get("model"):
            part["model"] = alias
        for name in _LEFT_OUT:
            part.pop(name, None)
    for name in ("error", "remark"):
        if fields.get(name):
            fields[name] = _hide(fields[name], info)
    if fields.get("by") != caller.name:
        fields.pop("by", None)
    if (agent := fields.get("agent")) is not None:
        agent.get("policy", {}).pop("summary_model", None)
        fields["agent"] = {name: agent[name] for name in _OF_AGENT if name in agent} | {
            "model": {"name": alias}
        }
    raw = msgspec.json.encode(fields)
    return e.Event(event.run_id, event.seq, e.decode_body(raw), raw)


def _show_result(event: Any) -> Any:
    """Return the result of a call without what the error of a sub-agent's run told in older versions."""
    result = event.body.result
    if event.body.child is None or not result.is_error:
        return event
    body = replace(event.body, result=replace(result, content=hide_servers(result.content)))
    return e.Event(event.run_id, event.seq, body, e.encode_body(body))
