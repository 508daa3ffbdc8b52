"""The inferences of a run, read from its events, each with the earlier inference that its prompt extends."""

from math import isnan

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.core.log import Log
from treadle.core.prompts.prompting import make_request
from treadle.core.state import State, advance
from treadle.core.tokens.packed import ID_BYTES, as_packed, count_packed, pack_logprobs, to_logprobs
from treadle.core.tokens.routed_experts import RoutedExperts
from treadle.core.tokens.token_record import SamplingMask, TokenRecord
from treadle.core.types import Completion, FinishReason, Message, Settings, ToolSpec
from treadle.trajectory.tokens.drift import (
    Trie,
    TrieMatch,
    Vertex,
    explain,
    explain_messages,
    find_parent,
    make_report,
)
from treadle.trajectory.tokens.trajectories import Decoders, Drift, DriftReport, find_decode

NAN = pack_logprobs([float("nan")])
"""A log probability that is not known, packed."""


class Node(Struct, frozen=True, kw_only=True):
    """One inference whose answer was used."""

    run_id: str
    """The run that asked; for an inference that a fork copied, the run that it was copied from."""
    seq: int
    step: int
    turn: int
    asked_at: float = 0.0
    """When the request was sent, in seconds since the epoch."""
    at: float = 0.0
    """When the answer was recorded, in seconds since the epoch."""
    parent: int | None = None
    """The position in its run of the inference that this prompt extends; `None`: there is none."""
    branch: int = -1
    """The number of the branch that delivers the answer; -1 if another run delivers it."""
    is_copied: bool = False
    """True if a fork copied the inference, so that its answer belongs to the other run."""
    is_cached: bool = False
    """True if the answer came from Treadle's cache, so that this run has sampled nothing."""
    start: int = 0
    """How many ids the prompt has."""
    output: bytes | None = None
    """The packed ids of the answer; `None` if the engine did not return the ids of prompt and answer."""
    logprobs: bytes | None = None
    """The packed log probabilities; `None` if the engine did not return one for each id."""
    forced: tuple[int, ...] = ()
    """The positions in the answer of tokens that were not sampled."""
    versions: tuple[tuple[int, str], ...] = ()
    routed_experts: RoutedExperts | None = None
    """The experts of the tokens that no earlier inference has; `None` if the engine returned none."""
    sampling_mask: SamplingMask | None = None
    finish_reason: FinishReason
    model: str
    """The name of the model that answered."""
    engine: str | None = None
    settings: Settings | None = None
    tokenizer: str | None = None
    messages: Log[Message]
    """The messages of the request."""
    message: Message
    """The answer."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that the request offered."""
    compactions: int = 0
    """How often the context had been compacted before."""
    injections: int = 0
    """How many messages had been added to the transcript other than by tools and new turns."""
    drift: DriftReport | None = None
    """Why a branch begins here; `None` if the branch goes on, or is the first one of the run."""
    place: Vertex | None = None
    """Where the prompt and the answer end in the tree of ids; `None` without ids."""

    @property
    def end(self) -> int:
        """The position after the last id of the answer."""
        return self.start + count_packed(self.output)

    @property
    def is_sampled(self) -> bool:
        """Whether the run that was read sampled the answer itself."""
        return not (self.is_copied or self.is_cached)

    @property
    def vocabulary(self) -> str:
        """The name of the ids' vocabulary. Equal ids of different vocabularies mean different things."""
        return self.tokenizer or f"model {self.model}"

    @property
    def sampled(self) -> bytes:
        """1 for each token of the answer that the model sampled, and 0 for the others."""
        flags = bytearray(b"\1" * count_packed(self.output))
        for at in self.forced:
            flags[at] = 0
        return bytes(flags)

    @property
    def has_logprobs(self) -> bool:
        """Whether the log probability of every sampled token is known."""
        if self.logprobs is None:
            return False
        values = to_logprobs(self.logprobs)
        if not isnan(sum(values)):
            return True
        sampled = self.sampled
        return not any(isnan(value) for value, flag in zip(values, sampled, strict=True) if flag)


class TokenReader:
    """The inferences of one run, in order. It is fed with all events of the run."""

    def __init__(self, run_id: str, decoders: Decoders = None) -> None:
        self.run_id = run_id
        self.nodes: list[Node] = []
        self.branches = 0
        self.lost = 0
        """How many answers were thrown away, or lost on the way."""
        self.failed_calls: set[str] = set()
        """The ids of the calls that failed through the model's own fault."""
        self.origin: TokenReader | None = None
        """The run that this one was forked from, or that called it, if it was read before."""
        self._decoders = decoders
        self._state = State()
        self._request: tuple[Log[Message], tuple[ToolSpec, ...]] = (Log(), ())
        self._injections = 0
        self._newest: int | None = None
        """The position of the newest inference with ids, to which the next record may refer; `None`: not kept."""
        self._newest_text: int | None = None
        """The position of the newest inference without ids."""
        self._tries: dict[str, Trie] = {}
        self._has_child: set[int] = set()
        """The inferences that another one extends in the same branch."""

    @property
    def started(self) -> e.RunStarted:
        """The first event of the run. Raises: `JournalError` if the events do not begin with it."""
        if self._state.started is None:
            raise JournalError(f"the events of run {self.run_id!r} do not begin with 'run_started'")
        return self._state.started

    def take(self, event: e.Event) -> None:
        """Take the next event. Raises: `JournalError` if an earlier one is missing."""
        body, state = event.body, self._state
        if event.seq != state.seq + 1:
            raise JournalError(
                f"run {self.run_id!r} has event {event.seq} after event {state.seq}; give all events in order"
            )
        if isinstance(body, e.InferenceStarted):
            self._injections += len(state.turn.steering) if body.has_tools else 0
        elif isinstance(body, e.MessageInjected):
            self._injections += body.delivery is None
        elif isinstance(body, e.ToolCompleted) and body.result.is_models_fault:
            self.failed_calls.add(body.result.call_id)
        elif isinstance(body, e.InferenceFailed):
            self.lost += body.usage is not None or body.may_be_billed
        asked, prior = state.turn.asked, state.shown.prior
        advance(state, body)
        if isinstance(body, e.InferenceStarted):
            request = make_request(state, has_tools=body.has_tools)
            self._request = request.messages, request.tools
        elif isinstance(body, e.InferenceCompleted) and not body.completion.run_ids:
            known = 0 if prior is None else len(prior.token_ids) // ID_BYTES
            asked_at = body.at if asked is None else asked.at
            model = body.answered_by or (asked and asked.model) or ""
            node = self._read(event, body.step, body.completion, model, asked_at)
            self._add(node, body.completion, known)
        elif isinstance(body, e.ContextCompacted) and body.sampled is not None:
            asked_at = body.at - body.duration_seconds
            node = self._read(event, state.step, body.sampled, body.model or "", asked_at)
            self._add_summary(node, body.sampled)

    def ids_of(self, index: int) -> bytes:
        """Return the packed ids of the prompt and the answer of an inference; empty if they are not known."""
        place = self.nodes[index].place
        return b"" if place is None else place.ids()

    def path(self, index: int) -> list[int]:
        """Return the positions of the inferences that one extends, the first one first, then its own."""
        found: list[int] = []
        at: int | None = index
        while at is not None:
            found.append(at)
            at = self.nodes[at].parent
        return found[::-1]

    def _read(self, event: e.Event, step: int, done: Completion, model: str, asked_at: float) -> Node:
        """Return an inference without its place among the others."""
        seq = event.seq
        parent = self.started.parent
        is_copied = parent is not None and seq <= parent.seq
        record = done.tokens or TokenRecord()
        has_ids = _has_ids(done.message, record)
        output = as_packed(record.token_ids) if has_ids else None
        return Node(
            run_id=parent.run_id if parent is not None and is_copied else self.run_id,
            seq=seq,
            step=step,
            turn=self._state.turn.number,
            asked_at=asked_at,
            at=event.at,
            is_copied=is_copied,
            is_cached=done.is_cached,
            output=output,
            logprobs=_read_logprobs(record) if has_ids else None,
            forced=record.forced,
            versions=_read_versions(done, count_packed(output)),
            routed_experts=record.routed_experts if has_ids else None,
            sampling_mask=record.sampling_mask if has_ids else None,
            finish_reason=done.finish_reason,
            model=model or done.model or "",
            engine=done.engine,
            settings=done.settings,
            tokenizer=record.tokenizer,
            messages=self._request[0],
            message=done.message,
            tools=self._request[1],
            compactions=self._state.shown.compactions,
            injections=self._injections,
        )

    def _add(self, node: Node, done: Completion, known: int) -> None:
        """Add an inference. `known` is how many ids the inference before it has, which its record may leave out."""
        record = done.tokens or TokenRecord()
        if record.prompt_shared_tokens > known:
            raise JournalError(
                f"event {node.seq} of run {self.run_id!r} leaves out {record.prompt_shared_tokens} ids, and the "
                f"inference before it has {known}; the journal is damaged"
            )
        index = len(self.nodes)
        if node.output is not None:
            node = self._place(node, index, is_continued=record.prompt_shared_tokens == known)
        else:
            node = self._place_text(node)
        if record.prompt_token_ids is not None and record.token_ids is not None:
            self._newest = None if node.output is None else index
        self.nodes.append(self._join_branch(node))

    def _add_summary(self, node: Node, done: Completion) -> None:
        """Add the inference of a compaction's summary, which is a branch of its own. Without ids it is left out,
        because its text is in no transcript."""
        output = node.output
        if output is None:
            return
        prompt = as_packed(None if done.tokens is None else done.tokens.prompt_token_ids)
        trie = self._tries.setdefault(node.vocabulary, Trie())
        match = trie.match(prompt, None)
        report = make_report(Drift.COMPACTION, 0, None, (node, prompt), self._decoders)
        node = replace(
            node,
            start=len(prompt) // ID_BYTES,
            messages=Log(),
            tools=(),
            drift=None if node.is_copied else report,
        )
        node = replace(node, place=trie.add(prompt + output, len(self.nodes), match.vertex))
        self.nodes.append(self._join_branch(node))

    def _place(self, node: Node, index: int, *, is_continued: bool) -> Node:
        """Return `node` with its place among the ids, and what it extends. `is_continued`: its prompt begins with
        all ids of the inference before it."""
        newest = None if self._newest is None else self.nodes[self._newest]
        assert self._state.shown.prior is not None
        assert node.output is not None
        full = self._state.shown.prior.token_ids
        prompt = full[: len(full) - len(node.output)]
        trie = self._tries.setdefault(node.vocabulary, Trie())
        start = None
        if newest is not None and is_continued:
            start = newest.place if newest.vocabulary == node.vocabulary else None
        match = trie.match(prompt, start)
        parent = find_parent(match)
        node = replace(node, start=len(prompt) // ID_BYTES, parent=parent)
        if not node.is_copied and self._is_new_branch(node):
            node = replace(node, drift=self._find_drift(node, prompt, match))
        return replace(node, place=trie.add(full, index, match.vertex))

    def _place_text(self, node: Node) -> Node:
        """Return `node`, which has no ids, with what it extends: the inference before it, if that has none either
        and the messages were only continued."""
        before, self._newest_text = self._newest_text, len(self.nodes)
        if before is None:
            return self._with_origin(node)
        kind = explain_messages(self.nodes[before], node)
        if kind is None:
            node = replace(node, parent=before)
            return node if not self._is_new_branch(node) else self._with_origin(node)
        return replace(node, drift=make_report(kind, 0, (self.nodes[before], b""), (node, b""), None))

    def _with_origin(self, node: Node) -> Node:
        kind = self._find_origin()
        if kind is None and self.branches:
            kind = Drift.UNKNOWN
        return node if kind is None else replace(node, drift=make_report(kind, 0, None, (node, b""), None))

    def _is_new_branch(self, node: Node) -> bool:
        if node.parent is None or node.parent in self._has_child:
            return True
        return self.nodes[node.parent].is_copied is not node.is_copied

    def _join_branch(self, node: Node) -> Node:
        """Return `node` with the number of its branch."""
        is_new = self._is_new_branch(node)
        if node.parent is not None and not is_new:
            self._has_child.add(node.parent)
        if node.is_copied:
            return node
        if not is_new and node.parent is not None:
            return replace(node, branch=self.nodes[node.parent].branch)
        self.branches += 1
        return replace(node, branch=self.branches - 1)

    def _find_origin(self) -> Drift | None:
        """Return why the first branch of this run begins, if another run came before it."""
        if self.branches:
            return None
        if self.started.parent is not None:
            return Drift.FORK
        return None if self.started.caller is None else Drift.SUBAGENT

    def _find_drift(self, node: Node, prompt: bytes, match: TrieMatch) -> DriftReport | None:
        """Return why a branch begins at `node`; `None` for the first branch."""
        kind, owner, closest = self._find_origin(), self, match.closest
        if kind is None and not self.branches:
            return None
        if kind is not None and self.origin is not None:
            trie = self.origin._tries.get(node.vocabulary)
            found = None if trie is None else trie.match(prompt)
            if found is not None and found.size >= match.size:
                owner, match, closest = self.origin, found, found.closest
        elif closest is None:
            # The first prompt of another model.
            closest = next((at for at in reversed(range(len(self.nodes))) if self.nodes[at].place), None)
        at, old = match.size // ID_BYTES, None
        if closest is not None:
            old = owner.nodes[closest], owner.ids_of(closest)
            if kind is None:
                path = [owner.nodes[step] for step in owner.path(closest)]
                decode = find_decode(self._decoders, node.tokenizer)
                kind = explain(path, node, at, (old[1], prompt), decode)
        return make_report(kind or Drift.UNKNOWN, at, old, (node, prompt), self._decoders)


def _has_ids(message: Message, record: TokenRecord) -> bool:
    """Return whether the ids of prompt and answer are known. No ids for an answer that says something are not."""
    if record.prompt_token_ids is None or record.token_ids is None:
        return False
    if not record.prompt_token_ids and not record.prompt_shared_tokens:
        return False
    return bool(record.token_ids) or not (message.content or message.tool_calls or message.reasoning)


def _read_logprobs(record: TokenRecord) -> bytes | None:
    """Return the log probabilities, NaN for tokens that were not sampled; `None` if there is not one for each."""
    values, size = record.logprobs, count_packed(record.token_ids)
    if values is None or count_packed(values) != size:
        return None
    packed = bytearray(values if isinstance(values, bytes) else pack_logprobs(values))
    for at in record.forced:
        packed[at * ID_BYTES : (at + 1) * ID_BYTES] = NAN
    return bytes(packed)


def _read_versions(done: Completion, size: int) -> tuple[tuple[int, str], ...]:
    """Return which weights sampled which tokens; empty if that is not known."""
    versions = () if done.tokens is None else done.tokens.versions
    if versions:
        return versions if sum(count for count, _ in versions) == size else ()
    return () if done.weight_version is None else ((size, done.weight_version),)
