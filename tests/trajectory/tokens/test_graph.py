"""The token graph: every sampled token is delivered exactly once, with the engine's id and log probability."""

import math
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.trajectory.tokens.journals import Sampled, Writer, join

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.core.lineage import Caller
from treadle.core.tokens.packed import pack_ids, pack_logprobs, to_logprobs
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import FinishReason, Message, Role
from treadle.trajectory.tokens import Drift, TokenGrade, TokenGraph, Trajectory, read_tokens

IDS = st.lists(st.integers(0, 2), max_size=4)
"""Few different ids, so that prompts and answers agree by chance and answers are beginnings of other answers."""
PLAYS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("extend",) * 6,
                "older",
                "prefix",
                "fresh",
                "again",
                "text",
                "no prompt",
                "fail",
                "compact",
                "cached",
                "model",
                "fork",
                "agent",
                "child",
            )
        ),
        st.integers(0, 30),
        IDS,
        IDS,
        st.sampled_from(("all", "all", "none", "hole", "short", "forced")),
    ),
    max_size=14,
)


def play(
    plays: Sequence[tuple[str, int, list[int], list[int], str]], *, is_packed: bool = True
) -> list[Writer]:
    """Return the journals that a list of plays makes. The newest run goes on, or the one before it."""
    main = Writer("main", is_packed=is_packed)
    writers, open_ = [main], main
    for number, (what, pick, added, output, known) in enumerate(plays):
        run, full = open_, open_.full
        earlier = full[pick % len(full)] if full else ()
        newest = full[-1] if full else ()
        if what == "fail":
            run.fail()
        elif what == "compact":
            run.compact()
        elif what == "text":
            run.say()
        elif what == "no prompt":
            run.say(TokenRecord.of(output=output, logprobs=[-1.0] * len(output)))
        elif what == "model":
            run.model = f"model {pick % 2}"
        elif what == "fork":
            open_ = run.fork(f"fork {number}", 1 + pick % len(run.events))
            writers.append(open_)
        elif what == "agent":
            open_ = Writer(f"agent {number}", caller=Caller(run.run_id, f"call {number}"))
            writers.append(open_)
            run.call(open_.run_id)
        elif what == "child":
            open_ = writers[max(0, len(writers) - 2)]
        else:
            prompt = {
                "extend": (*newest, *added),
                "cached": (*newest, *added),
                "older": (*earlier, *added),
                "prefix": (*earlier[: pick % (len(earlier) + 1)], *added),
                "fresh": tuple(added) or (2,),
                "again": newest,
            }[what] or (1,)
            logprobs: list[float] | None = [-0.5 * index - number for index in range(len(output))]
            assert logprobs is not None
            forced = (pick % len(output),) if known == "forced" and output else ()
            if known == "hole" and output:
                logprobs[pick % len(output)] = math.nan
            if known == "short":
                logprobs = [*logprobs, -9.0]
            if known == "none":
                logprobs = None
            run.ask(prompt, output, logprobs, is_cached=what == "cached", forced=forced)
    return writers


def find(graph: TokenGraph, item: Sampled) -> list[tuple[Trajectory, Any]]:
    """Return where an answer counts as sampled."""
    return [
        (trajectory, span)
        for trajectory in graph.trajectories
        for span in trajectory.spans
        if (span.run_id, span.seq, span.is_trained) == (item.run_id, item.seq, True)
    ]


def check(graph: TokenGraph, writers: Sequence[Writer]) -> None:
    """Check a graph against what was sampled, which the writers kept apart from the events."""
    sampled = {(item.run_id, item.seq): item for writer in writers for item in writer.sampled}
    parents = {writer.run_id: writer.parent for writer in writers}
    total = 0
    for item in sampled.values():
        places = find(graph, item)
        assert len(places) == (0 if item.is_cached else 1)
        for trajectory, span in places:
            part = slice(span.start, span.end)
            flags = [int(at not in item.forced) for at in range(len(item.output))]
            total += sum(flags)
            assert tuple(trajectory.token_ids_T[part]) == item.output
            assert list(trajectory.sampled_T[part]) == flags
            expected = item.logprobs
            if expected is None or len(expected) != len(item.output):
                expected = (math.nan,) * len(item.output)
                has_all = not any(flags)
            else:
                expected = tuple(
                    [value if flag else math.nan for value, flag in zip(expected, flags, strict=True)]
                )
                has_all = not any(
                    math.isnan(value) for value, flag in zip(expected, flags, strict=True) if flag
                )
            assert trajectory.logprobs_T[part].tobytes() == array("f", expected).tobytes()
            assert has_all or trajectory.grade is not TokenGrade.TOKEN_EXACT
    for trajectory in graph.trajectories:
        size = len(trajectory.token_ids_T)
        assert len(trajectory.sampled_T) == len(trajectory.logprobs_T) == size
        ends = [0]
        for span in trajectory.spans:
            if trajectory.grade is TokenGrade.TEXT:
                assert (span.start, span.end, size) == (0, 0, 0)
                continue
            run_id = span.run_id
            while (run_id, span.seq) not in sampled:
                run_id = parents[run_id]  # a fork names the run that it copied from, which may be a fork too
            item = sampled[run_id, span.seq]
            # What stands before an answer is the prompt that the engine was given, and nothing else.
            assert tuple(trajectory.token_ids_T[: span.start]) == item.prompt
            assert ends[-1] <= span.start <= span.end
            ends.append(span.end)
        assert trajectory.grade is TokenGrade.TEXT or ends[-1] == size
        inside = {at for span in trajectory.spans if span.is_trained for at in range(span.start, span.end)}
        assert all(not flag or at in inside for at, flag in enumerate(trajectory.sampled_T))
        assert trajectory.messages[-1].role is Role.ASSISTANT
        assert (trajectory.drift is None) <= (trajectory.branch == 0)
    assert graph.conservation.faults == ()
    assert graph.conservation.sampled == graph.conservation.delivered == total


def longest(writer: Writer, prompt: tuple[int, ...], before: int) -> int:
    """Return the length of the longest earlier prompt and answer that a prompt begins with."""
    return max((len(full) for full in writer.full[:before] if prompt[: len(full)] == full), default=-1)


@given(PLAYS)
def test_every_sampled_token_is_delivered_once(plays: list[Any]) -> None:
    """Answers of retries, forks, sub-agents, compacted contexts and other models are all delivered, each in one
    branch. Agents of the reference delivered the last node only, and lost what stood in the others."""
    writers = play(plays)
    check(read_tokens(join(writers)), writers)


@given(PLAYS)
def test_runs_read_alone_and_together_give_the_same(plays: list[Any]) -> None:
    writers = play(plays)
    together = read_tokens(join(writers)).trajectories
    alone = [item for writer in writers for item in read_tokens(writer.events).trajectories]

    def key(item: Trajectory) -> Any:
        kind = None if item.drift is None else item.drift.kind
        return (item.run_id, item.branch, item.token_ids_T.tobytes(), item.sampled_T, item.spans, kind)

    assert Counter(map(repr, map(key, together))) == Counter(map(repr, map(key, alone)))


@given(PLAYS)
def test_an_edge_is_the_longest_match_of_ids(plays: list[Any]) -> None:
    """A prompt extends the longest earlier prompt and answer that it begins with: with answers "a" and "ab" to one
    prompt, what continues "ab" never extends "a", which the reference's search for the first match did."""
    plays = [item for item in plays if item[0] in ("extend", "older", "prefix", "fresh", "again", "fail")]
    (writer,) = play(plays)
    graph = read_tokens(writer.events)
    nodes = graph.nodes["main"]
    for index, (node, item) in enumerate(zip(nodes, writer.sampled, strict=True)):
        parent = -1 if node.parent is None else nodes[node.parent].end
        assert parent == longest(writer, item.prompt, index)
        assert node.parent is None or item.prompt[:parent] == writer.full[node.parent]


@given(PLAYS)
def test_old_journals_with_lists_of_numbers_read_alike(plays: list[Any]) -> None:
    packed, lists = read_tokens(join(play(plays))), read_tokens(join(play(plays, is_packed=False)))
    one, other = packed.trajectories, lists.trajectories
    assert [item.token_ids_T for item in one] == [item.token_ids_T for item in other]
    assert [item.logprobs_T.tobytes() for item in one] == [item.logprobs_T.tobytes() for item in other]
    assert [item.sampled_T for item in one] == [item.sampled_T for item in other]


@given(PLAYS, st.integers(0, 200))
def test_a_prefix_of_a_journal_reads_as_far_as_it_goes(plays: list[Any], cut: int) -> None:
    """Reading the beginning of a run gives the beginnings of its branches."""
    (writer,) = play([item for item in plays if item[0] not in ("fork", "agent", "child")])
    events = writer.events[: 1 + cut % len(writer.events)]
    part = read_tokens(events)
    assert part.conservation.faults == ()
    whole = read_tokens(writer.events).nodes["main"]
    for one, other in zip(part.nodes["main"], whole, strict=False):
        assert (one.seq, one.parent, one.branch, one.start) == (
            other.seq,
            other.parent,
            other.branch,
            other.start,
        )


def test_two_answers_to_one_prompt_share_it_and_are_both_delivered() -> None:
    """The reference replaced the node of the first answer by the second one."""
    writer = Writer("main")
    for output in ([7], [7, 8]):
        writer.ask([1, 2], output, [-1.0] * len(output))
    writer.ask([1, 2, 7, 8, 3], [9], [-2.0])
    graph = read_tokens(writer.events)
    first, second = graph.trajectories
    assert (list(first.token_ids_T), list(first.sampled_T)) == ([1, 2, 7], [0, 0, 1])
    assert (list(second.token_ids_T), list(second.sampled_T)) == ([1, 2, 7, 8, 3, 9], [0, 0, 1, 1, 0, 1])
    assert second.drift is not None
    assert (second.drift.position, second.drift.expected, second.drift.found) == (2, (7,), ())


def test_an_end_of_turn_token_is_neither_doubled_nor_lost() -> None:
    """The ids of the row are the engine's: prompt 2 begins with prompt and answer 1, the end token (3) once."""
    writer = Writer("main")
    writer.ask([1, 10], [20, 3], [-1.0, -0.1])
    writer.ask([1, 10, 20, 3, 5, 11], [21, 3], [-1.0, -0.1])
    (row,) = read_tokens(writer.events).trajectories
    assert list(row.token_ids_T) == [1, 10, 20, 3, 5, 11, 21, 3]
    assert list(row.sampled_T) == [0, 0, 1, 1, 0, 0, 1, 1]


def test_a_cut_answer_keeps_its_reason() -> None:
    """`length` is what the engine said, also where a parser found calls in the answer."""
    writer = Writer("main")
    writer.ask([1], [2, 3], [-1.0, -1.0], finish=FinishReason.LENGTH)
    writer.ask([1, 2, 3, 4], [5], [-1.0])
    (row,) = read_tokens(writer.events).trajectories
    assert [span.finish_reason for span in row.spans] == [FinishReason.LENGTH, FinishReason.TOOL_CALLS]


@pytest.mark.parametrize(
    ("logprobs", "forced", "grade"),
    [
        ([-1.0, -2.0], (), TokenGrade.TOKEN_EXACT),
        (None, (), TokenGrade.TOKEN_IDS),
        ([-1.0, math.nan], (), TokenGrade.TOKEN_IDS),
        ([-1.0, math.nan], (1,), TokenGrade.TOKEN_EXACT),
        ([-1.0], (), TokenGrade.TOKEN_IDS),
        ([-1.0, -2.0, -3.0], (), TokenGrade.TOKEN_IDS),
        ([-1.0, -math.inf], (), TokenGrade.TOKEN_EXACT),
    ],
)
def test_the_grade_says_whether_all_log_probabilities_are_real(
    logprobs: list[float] | None, forced: tuple[int, ...], grade: TokenGrade
) -> None:
    """A list of another length says nothing about any position. The reference padded short lists with 1.0 at
    trained positions, and cut long ones."""
    writer = Writer("main")
    writer.ask([1], [2, 3], logprobs, forced=forced)
    (row,) = read_tokens(writer.events).trajectories
    assert row.grade is grade
    if logprobs is not None and len(logprobs) != 2:
        assert all(map(math.isnan, row.logprobs_T))


def test_answers_without_ids_are_text() -> None:
    """No ids are made from text, and none are placed without the prompt that they follow."""
    writer = Writer("main")
    writer.say()
    writer.say(TokenRecord.of(output=[5, 6], logprobs=[-1.0, -1.0]))
    writer.say(TokenRecord(tokens=("a",), logprobs=pack_logprobs([-1.0])))
    (row,) = read_tokens(writer.events).trajectories
    assert (row.grade, list(row.token_ids_T), row.sampled_T) == (TokenGrade.TEXT, [], b"")
    assert [row.messages[span.message].content for span in row.spans] == ["answer 1", "answer 2", "answer 3"]
    conservation = read_tokens(writer.events).conservation
    assert (conservation.texts, conservation.sampled, conservation.faults) == (3, 0, ())


def test_an_answer_without_ids_between_others_is_context_for_them() -> None:
    writer = Writer("main")
    writer.ask([1], [2], [-1.0])
    writer.say()
    writer.ask([1, 2, 3, 4, 5], [6], [-1.0])
    text, row = read_tokens(writer.events).trajectories
    assert (text.grade, row.grade) == (TokenGrade.TEXT, TokenGrade.TOKEN_EXACT)
    assert [span.step for span in text.spans] == [2]
    assert list(row.sampled_T) == [0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize(("prompt", "output"), [([], [5]), ([1], [])])
def test_empty_lists_of_ids_are_not_ids(prompt: list[int], output: list[int]) -> None:
    """Some servers return an empty list where they mean that they do not know."""
    writer = Writer("main")
    writer.ask([1], [2], [-1.0])
    writer.previous = b""
    writer.say(TokenRecord.of(prompt=prompt, output=output, logprobs=[-1.0] * len(output)))
    writer.ask([1, 2, 3], [4], [-1.0])
    text, row = read_tokens(writer.events).trajectories
    assert (text.grade, text.spans[0].step) == (TokenGrade.TEXT, 2)
    assert list(row.sampled_T) == [0, 1, 0, 1]


def test_equal_ids_of_two_tokenizers_are_different_ids() -> None:
    writer = Writer("main")
    writer.ask([1, 2], [3], [-1.0], tokenizer="one")
    writer.ask([1, 2, 3, 4], [5], [-1.0], tokenizer="two")
    writer.ask([1, 2, 3, 6], [7], [-1.0], tokenizer="one")
    other, first = read_tokens(writer.events).trajectories
    assert (other.tokenizer, list(other.token_ids_T)) == ("two", [1, 2, 3, 4, 5])
    assert (first.tokenizer, list(first.token_ids_T)) == ("one", [1, 2, 3, 6, 7])
    assert other.drift is not None
    assert other.drift.kind is Drift.TEMPLATE


def test_tokens_of_several_weight_versions_say_which_are_of_which() -> None:
    writer = Writer("main")
    writer.ask([1], [2, 3, 4], [-1.0] * 3, weight_version="8", versions=((2, "7"), (1, "8")))
    writer.ask([1, 2, 3, 4], [5], [-1.0], weight_version="8")
    writer.ask([1, 2, 3, 4, 5], [6], [-1.0])
    writer.ask([1, 2, 3, 4, 5, 6], [7, 7], [-1.0] * 2, weight_version="9", versions=((1, "8"),))
    (row,) = read_tokens(writer.events).trajectories
    # A list that does not cover the answer says nothing.
    assert [span.weight_versions for span in row.spans] == [((2, "7"), (1, "8")), ((1, "8"),), (), ()]


def test_a_fork_leaves_what_it_copied_to_the_other_run() -> None:
    """Also if the fork is read alone, so that two exports never deliver a token twice."""
    first = Writer("first")
    seq = first.ask([1], [2], [-1.0])
    first.ask([1, 2, 3], [4], [-1.0])
    fork = first.fork("fork", seq)
    fork.ask([1, 2, 3], [5], [-1.5])
    (row,) = read_tokens(fork.events).trajectories
    assert (row.run_id, list(row.token_ids_T), list(row.sampled_T)) == ("fork", [1, 2, 3, 5], [0, 0, 0, 1])
    assert [(span.run_id, span.is_trained) for span in row.spans] == [("first", False), ("fork", True)]
    assert row.drift is not None
    assert (row.drift.kind, row.drift.position, row.drift.found) == (Drift.FORK, 2, (3,))
    graph = read_tokens([*fork.events, *first.events])
    forked, whole = graph.trajectories
    assert list(whole.sampled_T) == [0, 1, 0, 1]
    # With the other run at hand, the report shows where the two part.
    assert forked.drift is not None
    assert (forked.drift.position, forked.drift.expected, forked.drift.run_id) == (3, (4,), "first")
    assert str(graph.conservation) == (
        "3 inferences: 3 tokens sampled, 3 delivered, tokens of other runs: 1; every token once"
    )


def test_sub_agents_are_delivered_before_their_caller() -> None:
    main = Writer("main")
    main.ask([1], [2], [-1.0])
    agent = Writer("agent", caller=Caller("main", "call_agent"))
    main.call("agent")
    agent.ask([1, 9], [8], [-1.0])
    main.ask([1, 2, 3], [4], [-1.0])
    inner, outer = read_tokens(join([main, agent])).trajectories
    assert (inner.run_id, outer.run_id) == ("agent", "main")
    assert inner.drift is not None
    assert (inner.drift.kind, inner.drift.position, inner.drift.run_id) == (Drift.SUBAGENT, 1, "main")
    assert outer.drift is None


def test_attempts_that_were_thrown_away_are_in_no_branch() -> None:
    writer = Writer("main")
    writer.fail()
    writer.ask([1], [2], [-1.0])
    graph = read_tokens(writer.events)
    assert (graph.conservation.thrown_away, len(graph.trajectories[0].spans)) == (1, 1)


def test_the_check_finds_what_is_missing_doubled_or_changed() -> None:
    writer = Writer("main")
    writer.ask([1], [2, 3], [-1.0, -2.0])
    graph = read_tokens(writer.events)
    (row,) = graph.trajectories
    assert graph.check([row]).faults == ()
    assert "delivered 0 times" in graph.check([]).faults[0]
    assert "delivered 2 times" in graph.check([row, row]).faults[0]
    assert "other ids" in graph.check([replace(row, token_ids_T=array("i", [1, 2, 4]))]).faults[0]
    assert "another mask" in graph.check([replace(row, sampled_T=b"\0\0\1")]).faults[0]
    invented = replace(row, logprobs_T=to_logprobs(pack_logprobs([0.0, -1.0, 0.0])))
    assert "other log probabilities" in graph.check([invented]).faults[0]
    assert "every token once" not in str(graph.check([]))


def test_a_journal_with_a_gap_is_refused() -> None:
    writer = Writer("main")
    writer.ask([1], [2], [-1.0])
    with pytest.raises(JournalError, match="has event 3 after event 1"):
        read_tokens([writer.events[0], *writer.events[2:]])
    writer.put(e.InferenceStarted(step=2, messages=1))
    record = TokenRecord(pack_ids([1]), 9, pack_ids([2]))
    writer._complete(record, Message(Role.ASSISTANT, "x"))
    with pytest.raises(JournalError, match="leaves out 9 ids"):
        read_tokens(writer.events)


def _seconds(steps: int, *, drifts: bool) -> float:
    writer = Writer("main")
    prompt: tuple[int, ...] = tuple(range(100))
    for step in range(steps):
        writer.ask(prompt, range(20), [-1.0] * 20)
        prompt = (*prompt[: 50 if drifts else None], *(() if drifts else range(20)), step + 7, *range(30))
    begin = time.process_time()
    graph = read_tokens(writer.events)
    assert len(graph.nodes["main"]) == steps
    assert graph.conservation.faults == ()
    return time.process_time() - begin


@pytest.mark.parametrize("drifts", [False, True])
def test_a_run_of_a_thousand_steps_is_read(drifts: bool) -> None:
    _seconds(1_000, drifts=drifts)
