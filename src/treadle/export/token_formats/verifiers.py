"""The token format `verifiers`: one trace record of verifiers for each rollout.

A trace is a graph of messages; each of Treadle's branches is a path of its own. A message's node has the tokens
that it adds to the sequence. The tokens between two answers belong to the last message before the second one,
because only the server's template knows where each message ends. Log probabilities are compact: an answer's
node has one for each token that is marked in `mask`, and no others. For verifiers, a trace without rewards has the
reward 0, so that each rollout needs one.

Source: verifiers 0.4.0, `v1/graph.py` (`MessageNode`) and `v1/trace.py` (`Trace`, version 1); prime-rl of August
2026, `orchestrator/trajectories.py` (the stream of weights that its loss reads).
"""

from collections.abc import Mapping
from itertools import compress

from treadle.core.errors import ExportError
from treadle.core.types import FinishReason, Json, Message, Role, StopReason
from treadle.export.exporter import ColumnType
from treadle.export.groups import Group, Rollout
from treadle.export.rows import write_functions
from treadle.export.token_exporter import Branch, LossMask, read_branches, reward_of
from treadle.runs.task import split_reference
from treadle.trajectory.tokens.trajectories import TokenGrade

TRACE_VERSION = 1
_STREAM = "rl"
"""The name of the weights that prime-rl's loss for RL reads."""
_FINISH = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.TOOL_CALLS: "tool_calls"}
_ENDED = {StopReason.COMPLETED: "agent_completed", StopReason.MAX_STEPS: "max_turns"}
"""Stop reasons that verifiers has its own words for."""


class VerifiersTraces:
    """The token format `verifiers`: a trace record of verifiers for each rollout."""

    needs = TokenGrade.TOKEN_EXACT
    columns: Mapping[str, ColumnType] = {
        "version": ColumnType.INTEGER,
        "id": ColumnType.TEXT,
        "task": ColumnType.JSON,
        "agent": ColumnType.JSON,
        "tools": ColumnType.LIST,
        "nodes": ColumnType.LIST,
        "calls": ColumnType.LIST,
        "rewards": ColumnType.JSON,
        "info": ColumnType.JSON,
        "is_completed": ColumnType.BOOLEAN,
        "ok": ColumnType.BOOLEAN,
        "stop_condition": ColumnType.TEXT,
    }

    def write(self, group: Group, mask: LossMask) -> list[dict[str, Json]]:
        """Return a row for each rollout."""
        branches = read_branches(group, mask, self.needs)
        return [
            _write_trace(group, rollout, [branch for branch in branches if branch.index == index])
            for index, rollout in enumerate(group.rollouts)
        ]


FORMAT = VerifiersTraces()


def _write_trace(group: Group, rollout: Rollout, branches: list[Branch]) -> dict[str, Json]:
    nodes: list[dict[str, Json]] = []
    calls: list[dict[str, Json]] = []
    tools = write_functions(rollout.tools)
    for branch in branches:
        _write_path(branch, tools, nodes, calls)
    return {
        "version": TRACE_VERSION,
        "id": rollout.run_id,
        "task": {"type": split_reference(group.task)[0], "data": {"name": group.task}, "key": group.task},
        "agent": {"config": {}, "name": "agent"},
        "tools": tools,
        "nodes": nodes,
        "calls": calls,
        # The reward of a trace is the sum of all rewards here, so that the weighted sum is the only one.
        "rewards": {"reward": {"score": reward_of(rollout)}},
        "info": {"group_id": group.group_id, "rewards": rollout.rewards},
        "is_completed": True,
        "ok": rollout.stop_reason is not StopReason.ERROR,
        "stop_condition": _ENDED.get(rollout.stop_reason, rollout.stop_reason.value),
    }


def _write_path(
    branch: Branch, tools: list[dict[str, Json]], nodes: list[dict[str, Json]], calls: list[dict[str, Json]]
) -> None:
    """Append the nodes of one branch, and the calls that made its answers."""
    spans, messages = branch.trajectory.spans, branch.trajectory.messages
    if not spans or spans[-1].end != len(branch.ids_T):
        raise ExportError(
            f"branch {branch.trajectory.branch} of run {branch.trajectory.run_id!r} does not end with an answer"
        )
    root, end, read = len(nodes), 0, 0

    def add(message: Message, stop: int, **more: Json) -> None:
        nonlocal end
        node = _write_node(branch, end, stop)
        parent = len(nodes) - 1 if len(nodes) > root else None
        nodes.append({"parent": parent, "message": _write_message(message), **node, **more})
        end = stop

    for span in spans:
        has_message = span.message >= read
        between = messages[read : span.message] if has_message else ()
        for message in between:
            add(message, span.start if message is between[-1] else end)
        add(messages[span.message] if has_message else Message(Role.ASSISTANT), span.end, sampled=True)
        read = span.message + 1 if has_message else read
        calls.append(
            {"node": len(nodes) - 1, "model": span.model, "finish_reason": _FINISH.get(span.finish_reason)}
        )
    nodes[root]["tools"] = tools


def _write_node(branch: Branch, start: int, stop: int) -> dict[str, Json]:
    """Return the tokens that a node adds to its path."""
    weights = branch.loss_T[start:stop]
    flags = [weight != 0 for weight in weights]
    trained = sum(flags)
    node: dict[str, Json] = {
        "token_ids": branch.ids_T[start:stop],
        "mask": flags,
        "logprobs": list(compress(branch.logprobs_T[start:stop], flags)),
    }
    if trained and branch.rollout.advantage is not None:
        node["advantages"] = [branch.rollout.advantage] * trained
    if not {*weights} <= {0.0, 1.0}:
        node["loss_weights"] = {_STREAM: weights}
    return node


def _write_message(message: Message) -> dict[str, Json]:
    raw: dict[str, Json] = {"role": message.role.value, "content": message.content}
    if message.role is Role.TOOL:
        raw |= {"tool_call_id": message.call_id, "name": message.name}
    if message.reasoning:
        raw["reasoning_content"] = message.reasoning
    if message.tool_calls:
        raw["tool_calls"] = [
            {"id": call.call_id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
    return raw
