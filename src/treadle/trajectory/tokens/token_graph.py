"""The token graph of runs: their inferences, the branches that these form, and the proof that nothing was lost."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import RunNotFoundError
from treadle.core.prompts.foreign import as_seen
from treadle.core.tokens.packed import ID_BYTES, count_packed, to_ids, to_logprobs
from treadle.core.tokens.routed_experts import join_experts
from treadle.core.types import Message
from treadle.journal.protocol import Journal
from treadle.runs.agent_parts import AGENT
from treadle.runs.recording import child_run_id
from treadle.trajectory.tokens.nodes import NAN, Node, TokenReader
from treadle.trajectory.tokens.trajectories import (
    Decode,
    Decoders,
    Span,
    TokenGrade,
    Trajectory,
    find_decode,
    load_decoders,
)

_MOST_FAULTS = 5


class Conservation(Struct, frozen=True, kw_only=True):
    """The comparison of the sampled tokens with the tokens that the trajectories deliver."""

    inferences: int = 0
    """The inferences of these runs whose answers were used."""
    sampled: int = 0
    """The tokens that these inferences sampled and whose ids are known."""
    delivered: int = 0
    """The tokens that count as sampled in the trajectories."""
    texts: int = 0
    """How many of the inferences have no ids, so that they are delivered as text."""
    thrown_away: int = 0
    """Attempts whose answers were thrown away or lost; no trajectory has them."""
    elsewhere: int = 0
    """Tokens of answers that forks copied or that came from the cache. They belong to other runs."""
    faults: tuple[str, ...] = ()
    """What differs, in words; empty if every sampled token is delivered exactly once, with its log probability."""

    def __str__(self) -> str:
        texts = f", {self.texts:,} as text" if self.texts else ""
        lost = f", {self.thrown_away:,} thrown away" if self.thrown_away else ""
        other = f", tokens of other runs: {self.elsewhere:,}" if self.elsewhere else ""
        state = "; ".join(self.faults) if self.faults else "every token once"
        noun = "inference" if self.inferences == 1 else "inferences"
        return (
            f"{self.inferences:,} {noun}{texts}{lost}: {self.sampled:,} tokens sampled, {self.delivered:,} "
            f"delivered{other}; {state}"
        )


class TokenGraph:
    """The inferences of one or more runs. `read_tokens` makes it."""

    def __init__(self, runs: dict[str, TokenReader], decoders: Decoders = None) -> None:
        self._runs = runs
        self._decoders = decoders

    @property
    def nodes(self) -> dict[str, tuple[Node, ...]]:
        """The inferences of each run, in order. The parent of one is a position in the same tuple."""
        return {run_id: tuple(run.nodes) for run_id, run in self._runs.items()}

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Return all branches: those of sub-agents before those of their caller, and those of a run in the order in
        which they end, so that the last one has the final answer."""
        return tuple([item for run in self._in_order() for item in _read_branches(run)])

    @cached_property
    def conservation(self) -> Conservation:
        """Return the comparison of the sampled tokens with `trajectories`."""
        return self.check(self.trajectories)

    def check(self, trajectories: Iterable[Trajectory]) -> Conservation:
        """Compare what was sampled with `trajectories`, which may have been made in another way."""
        items = tuple(trajectories)
        places: dict[tuple[str, int], list[tuple[Trajectory, Span]]] = defaultdict(list)
        for item in items:
            for span in item.spans:
                if span.is_trained:
                    places[span.run_id, span.seq].append((item, span))
        nodes = [node for run in self._runs.values() for node in run.nodes]
        own = [node for node in nodes if not node.is_copied]
        sampled = sum([node.sampled.count(1) for node in own if node.is_sampled])
        delivered = sum([item.sampled_tokens for item in items])
        faults = [fault for node in own for fault in _find_faults(node, places[node.run_id, node.seq])]
        if sampled != delivered:
            faults.append(f"{sampled:,} tokens were sampled and {delivered:,} are delivered")
        return Conservation(
            inferences=len(own),
            sampled=sampled,
            delivered=delivered,
            texts=sum([node.output is None for node in own]),
            thrown_away=sum([run.lost for run in self._runs.values()]),
            elsewhere=sum([count_packed(node.output) for node in nodes if not node.is_sampled]),
            faults=tuple(faults[:_MOST_FAULTS]),
        )

    def find_decode(self, tokenizer: str | None) -> Decode | None:
        """Return the function that decodes the ids of a tokenizer; `None` if there is none."""
        return find_decode(self._decoders, tokenizer)

    def _in_order(self) -> Iterator[TokenReader]:
        """Yield the runs, each after its sub-agents."""
        called = defaultdict(list)
        for run in self._runs.values():
            caller = run.started.caller
            called[None if caller is None or caller.run_id not in self._runs else caller.run_id].append(run)

        def visit(run: TokenReader) -> Iterator[TokenReader]:
            for child in called[run.run_id]:
                yield from visit(child)
            yield run

        for run in called[None]:
            yield from visit(run)


def read_tokens(events: Iterable[e.Event], decode: Decoders = None) -> TokenGraph:
    """Return the token graph of the events of one or more runs, each from its first event on.

    An inference that a fork has copied belongs to the other run, whether the events of that run are given or
    not. `decode` is used for the kinds of drift and for their texts. Raises: `JournalError` if an event is
    missing.
    """
    found: dict[str, list[e.Event]] = {}
    for event in events:
        found.setdefault(event.run_id, []).append(event)
    runs: dict[str, TokenReader] = {}
    for run_id in found:
        _read_run(run_id, found, runs, decode)
    return TokenGraph({run_id: runs[run_id] for run_id in found}, decode)


def load_tokens(journal: Journal, *run_ids: str, decode: Decoders = None) -> TokenGraph:
    """Return the token graph of runs and of all their sub-agents. It blocks.

    Without `decode`, the renderers that the runs name are used, if the runs are trusted. Raises:
    `RunNotFoundError`, also if the run of a sub-agent was deleted; `JournalError`.
    """
    events = _load_events(journal, run_ids)
    if decode is None:
        trusted = {run_id for run_id in {event.run_id for event in events} if journal.is_trusted(run_id)}
        decode = load_decoders(event.body for event in events if event.run_id in trusted)
    return read_tokens(events, decode)


def _load_events(journal: Journal, run_ids: Iterable[str]) -> list[e.Event]:
    """Return the events of runs and of all their sub-agents."""
    events: list[e.Event] = []
    # The runs to read, and whether each must exist.
    waiting = dict.fromkeys(run_ids, True)
    done: set[str] = set()
    while waiting:
        run_id = next(iter(waiting))
        must_exist = waiting.pop(run_id)
        done.add(run_id)
        try:
            read = journal.read(run_id)
        except RunNotFoundError:
            if must_exist:
                raise
            continue
        events += read
        for child, is_known in _find_children(read).items():
            if child not in done:
                waiting[child] = is_known
    return events


def _find_children(events: list[e.Event]) -> dict[str, bool]:
    """Return the runs of a run's sub-agents, and whether its events say that they exist. Those of an interrupted
    call may. The calls that a fork has copied belong to the other run."""
    started = events[0].body
    assert isinstance(started, e.RunStarted)
    copied = 0 if started.parent is None else started.parent.seq
    agents: set[str] = set()
    found: dict[str, bool] = {}
    for event in events:
        body = event.body
        spec = body.agent if isinstance(body, e.RunStarted | e.RunResumed) else None
        agents.update(
            [] if spec is None else [part.name for part in spec.tools if part.name.startswith(AGENT)]
        )
        if event.seq <= copied:
            continue
        if isinstance(body, e.ToolStarted) and f"{AGENT}{body.name}" in agents:
            found.setdefault(child_run_id(event.run_id, body.call_id), False)
        elif isinstance(body, e.ToolCompleted) and body.child is not None:
            found[body.child.run_id] = True
        elif isinstance(body, e.InferenceCompleted):
            found |= dict.fromkeys(body.completion.run_ids, True)
    return found


def _read_run(
    run_id: str, events: dict[str, list[e.Event]], runs: dict[str, TokenReader], decode: Decoders
) -> TokenReader:
    """Read a run after the run that it came from."""
    if run_id in runs:
        return runs[run_id]
    run = runs[run_id] = TokenReader(run_id, decode)
    started = events[run_id][0].body
    if isinstance(started, e.RunStarted):
        origin = started.parent or started.caller
        if origin is not None and origin.run_id in events:
            run.origin = _read_run(origin.run_id, events, runs, decode)
    for event in events[run_id]:
        run.take(event)
    return run


def _read_branches(run: TokenReader) -> list[Trajectory]:
    leaves = {node.branch: index for index, node in enumerate(run.nodes) if node.branch >= 0}
    order = sorted(leaves.items(), key=lambda item: item[1])
    return [_read_branch(run, branch, leaf) for branch, leaf in order]


def _read_branch(run: TokenReader, branch: int, leaf: int) -> Trajectory:
    path = [run.nodes[index] for index in run.path(leaf)]
    last, is_text = path[-1], path[-1].output is None
    ids = b"" if is_text else run.ids_of(leaf)
    sampled, logprobs = bytearray(len(ids) // ID_BYTES), bytearray(NAN * (len(ids) // ID_BYTES))
    messages = (*last.messages, last.message)
    spans, is_exact, drift = [], True, None
    for node in path:
        is_here = node.branch == branch
        is_trained = is_here and node.is_sampled
        if node.logprobs is not None:
            logprobs[node.start * ID_BYTES : node.end * ID_BYTES] = node.logprobs
        if is_trained:
            sampled[node.start : node.end] = node.sampled
            is_exact = is_exact and node.has_logprobs
        if is_here and node.drift is not None:
            drift = node.drift
        has_failed_call = any([call.call_id in run.failed_calls for call in node.message.tool_calls])
        spans.append(_read_span(node, messages, is_trained, has_failed_call))
    exact = TokenGrade.TOKEN_EXACT if is_exact else TokenGrade.TOKEN_IDS
    return Trajectory(
        run_id=run.run_id,
        branch=branch,
        grade=TokenGrade.TEXT if is_text else exact,
        token_ids_T=to_ids(ids),
        sampled_T=bytes(sampled),
        logprobs_T=to_logprobs(bytes(logprobs)),
        spans=tuple(spans),
        routed_experts=join_experts([node.routed_experts for node in path], len(ids) // ID_BYTES),
        drift=drift,
        messages=as_seen(messages),
        tokenizer=last.tokenizer,
    )


def _read_span(node: Node, messages: tuple[Message, ...], is_trained: bool, has_failed_call: bool) -> Span:
    at = len(node.messages)
    return Span(
        start=node.start,
        end=node.end,
        run_id=node.run_id,
        seq=node.seq,
        step=node.step,
        turn=node.turn,
        message=at if at < len(messages) and messages[at] == node.message else -1,
        finish_reason=node.finish_reason,
        has_failed_call=has_failed_call,
        model=node.model or None,
        engine=node.engine,
        weight_versions=node.versions,
        sampling_mask=node.sampling_mask,
        settings=node.settings,
        is_trained=is_trained,
    )


def _find_faults(node: Node, places: list[tuple[Trajectory, Span]]) -> Iterator[str]:
    """Yield what is wrong with the delivery of an inference."""
    where = f"the answer of event {node.seq} of run {node.run_id!r}"
    expected = 1 if node.is_sampled else 0
    if len(places) != expected:
        yield f"{where} is delivered {len(places)} times instead of {expected}"
        return
    for trajectory, span in places:
        part = slice(span.start, span.end)
        if trajectory.token_ids_T[part] != to_ids(node.output or b""):
            yield f"{where} is delivered with other ids"
        if trajectory.sampled_T[part] != node.sampled:
            yield f"{where} is delivered with another mask"
        logprobs = NAN * count_packed(node.output) if node.logprobs is None else node.logprobs
        if trajectory.logprobs_T[part].tobytes() != to_logprobs(logprobs).tobytes():
            yield f"{where} is delivered with other log probabilities"
