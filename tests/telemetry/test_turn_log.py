"""The log of turns."""

import asyncio
import json
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.forks.process import FORKS, ROOT

from treadle import Agent, Policy, ScriptedModel, open_journal, tool
from treadle.core import events as e
from treadle.core.errors import ConfigError, RateLimitError, ServerError
from treadle.core.judgement import Verdict
from treadle.core.lineage import Child, Parent
from treadle.core.types import (
    Completion,
    Effect,
    Fault,
    FinishReason,
    Message,
    Recalled,
    RecalledItem,
    Role,
    Route,
    ServerCall,
    StopReason,
    ToolCall,
    ToolResult,
    Usage,
)
from treadle.models import FallbackModel, RetryModel, call
from treadle.telemetry import JsonlTurnLog, TurnLog, TurnRecord, read_turn_records


@tool(effect="pure")
async def look() -> str:
    """Look."""
    return "seen"


def answer(text: str = "", *calls: ToolCall, cost: float | None = 0.5, **more: Any) -> Completion:
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    usage = Usage(100, 20, 50, 5)
    return Completion(Message(Role.ASSISTANT, text, calls, **more), reason, usage, cost, model="m-1")


@pytest.mark.parametrize("name", ["notes.txt", "notes.txt.1", "notes.txt.2"])
async def test_a_file_that_is_no_log_stays_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious\n")
    log = JsonlTurnLog(tmp_path / "notes.txt", max_bytes=1, keep=2)
    with pytest.raises(ConfigError, match="is no log of turns, and stays as it is"):
        log.check()
    for _ in range(4):
        await Agent(ScriptedModel(["hi"]), hooks=[log]).run("go")
    assert (tmp_path / name).read_text() == "precious\n"


async def record_all(*answers: Any, journal: Any = None, **options: Any) -> list[TurnRecord]:
    """Return the records of a run, which must be the same while it is driven and afterwards."""
    found: list[TurnRecord] = []
    journal = journal or open_journal("memory:")
    model = answers[0] if len(answers) == 1 and hasattr(answers[0], "infer") else ScriptedModel(answers)
    agent = Agent(model, tools=[look], journal=journal, hooks=[TurnLog(found.append)], **options)
    run = await agent.run("go")
    assert found == list(read_turn_records(journal.read(run.run_id)))
    return found


def fold(*bodies: e.DurableBody) -> list[TurnRecord]:
    for number, body in enumerate(bodies):
        msgspec.structs.force_setattr(body, "at", 100.0 + number)
    return list(read_turn_records([e.Event("r", seq, body) for seq, body in enumerate(bodies, start=1)]))


BEGIN = e.RunStarted(version=e.VERSION)


def turn(number: int = 1, **more: Any) -> e.TurnStarted:
    return e.TurnStarted(turn=number, message=Message(Role.USER, "go"), **more)


def asked(**more: Any) -> e.InferenceStarted:
    return e.InferenceStarted(step=1, messages=1, model="p:m", **more)


def said(completion: Completion | None = None, **more: Any) -> e.InferenceCompleted:
    return e.InferenceCompleted(step=1, completion=completion or answer("ok"), duration_seconds=2.0, **more)


def ended(number: int = 1, reason: StopReason = StopReason.COMPLETED, **more: Any) -> e.TurnCompleted:
    return e.TurnCompleted(turn=number, stop_reason=reason, **more)


async def test_the_sums_are_over_all_inferences_of_the_turn() -> None:
    """Tokens and cost were those of the last round only."""
    (record,) = await record_all(
        answer("", call("look")), answer("", call("look"), call("look")), answer("ok")
    )
    assert (record.steps, record.input_tokens, record.output_tokens) == (3, 300, 60)
    assert (record.cached_input_tokens, record.cached_share, record.reasoning_tokens) == (150, 0.5, 15)
    assert (record.cost_usd, record.cost_basis) == (1.5, "known")
    assert (record.tool_calls, record.tools, record.tool_errors) == (3, {"look": 3}, 0)
    assert record.key == f"{record.run_id}/1"
    assert record.models == ["m-1"]


async def test_an_unknown_cost_is_never_zero() -> None:
    """The cost of a model without a price was 0, and its basis was called published."""
    (record,) = await record_all(answer("", call("look")), answer("ok", cost=None))
    assert (record.cost_usd, record.cost_basis, record.known_cost_usd) == (None, "unknown", 0.5)
    assert json.loads(msgspec.json.encode(record))["cost_usd"] is None


async def test_a_thrown_away_answer_and_a_lost_one_count() -> None:
    thrown = e.InferenceFailed(
        step=1,
        error="worse",
        error_type="RejectedError",
        fault=Fault.MODEL,
        retry_in_seconds=0.0,
        model="p:small",
        usage=Usage(10, 10),
        cost_usd=0.25,
    )
    (record,) = fold(BEGIN, turn(), asked(), thrown, said(), ended())
    assert (record.input_tokens, record.cost_usd, record.failed_attempts) == (110, 0.75, 1)
    verdict = Verdict("good", "p:judge", Usage(3, 1), 0.1)
    (record,) = fold(BEGIN, turn(), asked(), said(verdict=verdict), ended())
    assert (record.input_tokens, record.cost_usd) == (103, 0.6)
    # The process was killed while the model answered.
    (record,) = fold(BEGIN, turn(), asked(), e.RunResumed(), asked(), said(), ended())
    assert (record.failed_attempts, record.uncounted_inferences, record.cost_usd) == (1, 1, None)
    assert record.paused_seconds == 1.0


async def test_failed_turns_have_records() -> None:
    """Only completed turns were logged."""
    (record,) = await record_all(answer("", call("look")), ServerError("down"))
    assert (record.stop_reason, record.error, record.error_type) == ("error", "down", "ServerError")
    assert (record.fault, record.cost_usd) == ("infrastructure", 0.5)
    (record,) = await record_all([call("look")], [call("look")], "so far", policy=Policy(max_steps=2))
    assert record.stop_reason == "max_steps"


async def test_cancelled_turns_have_records_and_so_have_the_turns_that_go_on() -> None:
    found: list[TurnRecord] = []
    journal = open_journal("memory:")
    slow = Agent(ScriptedModel(["late"], delay_seconds=60), journal=journal, hooks=[TurnLog(found.append)])
    task = asyncio.ensure_future(slow.run("go", run_id="r"))
    while not journal.runs() or len(journal.read("r")) < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [(item.key, item.stop_reason, item.cost_usd) for item in found] == [("r/1", "cancelled", None)]
    again = Agent(ScriptedModel([answer("done")]), journal=journal, hooks=[TurnLog(found.append)])
    await again.resume("r")
    assert [(item.key, item.stop_reason, item.cost_usd) for item in found[1:]] == [
        ("r/1.2", "completed", 0.5)
    ]
    assert found == list(read_turn_records(journal.read("r")))


async def test_a_turn_that_is_tried_again_has_a_record_for_each_part() -> None:
    journal = open_journal("memory:")
    found: list[TurnRecord] = []
    failing = Agent(
        ScriptedModel([answer("", call("look")), ServerError("down")]), tools=[look], journal=journal
    )
    await failing.run("go", run_id="r")
    again = Agent(ScriptedModel([answer("up")]), journal=journal, hooks=[TurnLog(found.append)], tools=[look])
    await again.resume("r")
    keys = [(item.key, item.part, item.input_tokens) for item in read_turn_records(journal.read("r"))]
    assert keys == [("r/1", 1, 100), ("r/1.2", 2, 100)]
    assert [item.key for item in found] == ["r/1.2"]


async def test_what_a_fork_copied_is_in_no_record_of_it() -> None:
    journal = open_journal("memory:")
    found: list[TurnRecord] = []
    agent = Agent(ScriptedModel([answer("", call("look")), answer("one")]), tools=[look], journal=journal)
    await agent.run("go", run_id="origin")
    other = Agent(
        ScriptedModel([answer("two")]), tools=[look], journal=journal, hooks=[TurnLog(found.append)]
    )
    await other.fork("origin", 7, new_run_id="fork")
    (record,) = found
    assert (record.key, record.steps, record.input_tokens) == ("fork/1", 1, 100)
    assert record.parent == Parent("origin", 7)
    assert found == list(read_turn_records(journal.read("fork")))


async def test_the_models_that_failed_and_the_one_that_answered_are_named() -> None:
    """The first model of a chain was named in place of the one that answered, from state that all runs shared."""
    first = ScriptedModel([RateLimitError("busy", status=429)], name="p:first")
    second = ScriptedModel([answer("ok")], name="p:second")
    (record,) = await record_all(FallbackModel([first, second]))
    assert (record.model, record.models) == ("p:first", ["m-1"])
    assert [(item.model, item.error_type) for item in record.fallbacks] == [("p:first", "RateLimitError")]
    retried = RetryModel(ScriptedModel([RateLimitError("busy", status=429, retry_after_seconds=0.0), "ok"]))
    (record,) = await record_all(retried)
    assert (record.fallbacks, record.failed_attempts) == ([], 1)


def test_the_rest_of_a_turn_is_told() -> None:
    route = Route("small", "p:s", ("short",), {"small": 0.9, "mid": 0.4})
    item = RecalledItem("episodic", "e1", 2, 0.5)
    calls = (ToolCall("c", "use_skill", '{"skill_name":"pdf"}'), ToolCall("d", "helper", "{}"))
    reasoned = answer("", *calls, reasoning="hm", server_calls=(ServerCall("s", "web_search"),))
    (record,) = fold(
        BEGIN,
        e.ContextCompacted(
            messages=2, replacement=(), usage=Usage(7, 1), model="p:s", cost_usd=0.1, tokens_before=9
        ),
        turn(recalled=Recalled("…", (item,), 3)),
        asked(route=route),
        said(reasoned, first_token_seconds=0.3),
        e.ToolStarted(step=1, call_id="c", name="use_skill", effect=Effect.PURE),
        e.ToolCompleted(step=1, result=ToolResult("c", "use_skill", "x"), duration_seconds=1.5),
        e.ToolCompleted(
            step=1, result=ToolResult("d", "helper", "x", is_error=True), child=Child("kid", Usage(9, 9), 3.0)
        ),
        e.QuestionAsked(question_id="q", text="Which?"),
        e.RunPaused(reason="question"),
        e.RunResumed(),
        e.QuestionAnswered(question_id="q", text="That."),
        e.ApprovalRequested(call_id="d"),
        e.ApprovalDecided(call_id="d", is_approved=False),
        e.MessageInjected(message=Message(Role.USER, "more")),
        ended(reason=StopReason.REFUSED, error="the model refused"),
    )
    assert record.route == route
    assert (record.recalled, record.recalled_left_out) == ((item,), 3)
    assert (record.skills, record.server_tools) == (["pdf"], {"web_search": 1})
    assert (record.is_compacted, record.compactions[0].tokens_before) == (True, 9)
    # The compaction before the turn is part of it; what the child used is not.
    assert (record.input_tokens, record.cost_usd) == (107, 0.6)
    assert record.children == [Child("kid", Usage(9, 9), 3.0)]
    assert (record.questions, record.answered_questions) == (1, 1)
    assert (record.approvals, record.refused_approvals, record.injected_messages) == (1, 1, 1)
    assert record.refusals == ["content"]
    assert (record.inference_seconds, record.tool_seconds, record.first_token_seconds) == (2.0, 1.5, 0.3)
    assert (record.paused_seconds, record.tool_errors) == (1.0, 1)
    assert record.reasoning_sha256 is not None
    assert "hm" not in msgspec.json.encode(record).decode().split('"')


def test_a_skill_whose_call_is_nested_too_deeply_is_not_named() -> None:
    deep = ToolCall("c", "use_skill", f'{{"skill_name": {"[" * 100_000}')
    (record,) = fold(BEGIN, turn(), asked(), said(answer("", deep)), ended())
    assert record.skills == []


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_records_are_lines_of_a_file_that_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "log" / "turns.jsonl"
    log = JsonlTurnLog(path, max_bytes=4000, keep=2)
    agent = Agent(ScriptedModel(lambda _: "ok"), hooks=[log], journal="memory:")
    for number in range(12):
        await agent.run("go", run_id=f"r{number}")
    log.close()
    files = [path, path.with_name("turns.jsonl.1"), path.with_name("turns.jsonl.2")]
    assert sorted(item.name for item in path.parent.iterdir() if item.suffix != ".lock") == sorted(
        item.name for item in files
    )
    assert all(file.stat().st_size <= 4000 for file in files)
    kept = [line["run_id"] for file in reversed(files) for line in read_lines(file)]
    assert kept == [f"r{number}" for number in range(12 - len(kept), 12)]
    assert path.stat().st_mode & 0o077 == 0


def test_an_id_cannot_leave_the_file(tmp_path: Path) -> None:
    """The id of a conversation was a part of a path, so that it could name any file."""
    path = tmp_path / "turns.jsonl"
    run_id = '../../etc/x\n{"key":"forged"}'
    log = JsonlTurnLog(path)  # a run of an older version may have any id
    log(e.Event(run_id, 1, turn()))
    log(e.Event(run_id, 2, ended()))
    assert [line["run_id"] for line in read_lines(path)] == [run_id]
    assert [item.name for item in tmp_path.iterdir()] == ["turns.jsonl"]


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep"):
        JsonlTurnLog(tmp_path / "x", keep=0)


def append_many(path: Path, name: str) -> None:
    log = JsonlTurnLog(path, max_bytes=20_000, keep=50)
    for number in range(100):
        log(e.Event(f"{name}-{number}", 1, turn()))
        log(e.Event(f"{name}-{number}", 2, ended()))


def test_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=append_many, args=(path, name)) for name in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    files = [file for file in tmp_path.iterdir() if file.suffix != ".lock"]
    keys = [line["key"] for file in files for line in read_lines(file)]
    assert len(files) > 2
    assert sorted(keys) == sorted(f"{name}-{number}/1" for name in "abc" for number in range(100))


DRIVE = """
import asyncio, json, os, signal, sys
from treadle import Agent, ScriptedModel, open_journal, tool
from treadle.models import call
from treadle.telemetry import JsonlTurnLog

folder, kind, at = json.loads(sys.argv[1])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Log(JsonlTurnLog):
    def _append(self, record):
        if kind == "before" and record.turn == at:
            die()
        if kind == "torn" and record.turn == at:
            os.write(self._open()[0], b'{"key":"s/%d",' % at)
            die()
        super()._append(record)
        if kind == "after" and record.turn == at:
            die()

@tool(effect="pure")
async def look() -> str:
    "Look."
    return "seen"

def answer(request):
    return "done" if request.messages[-1].role == "tool" else [call("look")]

async def main():
    def listen(item):
        if kind == "event" and item.seq == at:
            die()
    with open_journal(folder + "/runs.db") as journal:
        agent = Agent(ScriptedModel(answer), tools=[look], journal=journal, hooks=[Log(folder + "/turns.jsonl")])
        async with agent.session("s") as session:
            if session.is_turn_open:
                await session.finish_turn(on_event=listen)
            turns = sum(message.role == "user" for message in session.messages)
            for number in range(turns, 3):
                await session.send("go", on_event=listen)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("kind", "at"),
    [("before", 1), ("before", 3), ("after", 2), ("torn", 2), ("event", 4), ("event", 9), ("event", 15)],
)
def test_no_record_is_lost_or_doubled_when_the_process_is_killed(tmp_path: Path, kind: str, at: int) -> None:
    def drive(*order: Any) -> int:
        return FORKS.start("-c", DRIVE, json.dumps([str(tmp_path), *order]), cwd=ROOT).wait()

    assert drive(kind, at) == -signal.SIGKILL
    assert drive("none", 0) == 0
    lines = (tmp_path / "turns.jsonl").read_text().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    assert len(lines) - len(whole) == (kind == "torn")
    assert [line["key"] for line in whole] == ["s/1", "s/2", "s/3"]
    with open_journal(tmp_path / "runs.db") as journal:
        made = list(read_turn_records(journal.read("s")))
    assert [msgspec.convert(line, TurnRecord) for line in whole] == made


async def test_a_record_that_was_rotated_away_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    journal = open_journal("memory:")
    log = JsonlTurnLog(path, max_bytes=1, keep=1)
    agent = Agent(ScriptedModel(lambda _: "ok"), hooks=[log], journal=journal)
    async with agent.session("old") as session:
        await session.send("go")
    for number in range(3):
        await agent.run("go", run_id=f"r{number}")
    async with agent.session("old"):
        pass
    assert [line["run_id"] for line in read_lines(path)] == ["r2"]


async def test_many_fallbacks_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    fell = e.InferenceFailed(
        step=1,
        error="busy",
        error_type="RateLimitError",
        fault=Fault.INFRASTRUCTURE,
        retry_in_seconds=0.0,
        model="p:first",
    )
    log = TurnLog(lambda record: None)
    for number in range(10):
        middle = (fell,) if number < 4 else ()
        log.take(f"r{number}", 1, (turn(), asked(), *middle, said(), ended()))
        assert log.has_warned is (number >= 3)
    assert len(caplog.records) == 1
    assert "RateLimitError" in caplog.text
    for number in range(2):
        log.take(f"s{number}", 1, (turn(), said(), ended()))
    assert not log.has_warned


async def test_a_record_is_one_line_whatever_its_texts_are(tmp_path: Path) -> None:
    """Rules out that a title or an error adds a line to the log, which would pass for the record of a turn."""
    evil = 'x\n{"run_id":"forged"}\r\n\u2028\u2029\x85\x0b\x1b[2J'
    log = tmp_path / "turns.jsonl"
    model = ScriptedModel([ServerError(evil)] * 2)
    with open_journal(tmp_path / "a.db") as journal:
        async with Agent(model, hooks=[JsonlTurnLog(log)], journal=journal) as agent:
            for number in range(2):
                await agent.run(evil, run_id=f"r{number}", metadata={"title": evil})
    lines = log.read_bytes().removesuffix(b"\n").split(b"\n")
    assert [json.loads(line)["labels"] for line in lines] == [{"title": evil}] * 2
