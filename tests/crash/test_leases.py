"""Two processes and one run: one drives it, the other is refused, and a suspended one cannot write later."""

import asyncio
import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest
from tests.forks.process import FORKS, Started

from treadle import Agent, LeaseHeldError, ScriptedModel, open_journal
from treadle.core.events import Rewarded

HOLDER = textwrap.dedent("""
    import asyncio, sys
    from treadle import open_journal
    from treadle.core.errors import JournalError
    from treadle.core.events import Rewarded

    async def main():
        journal = open_journal(sys.argv[1], lease_seconds=float(sys.argv[2]))
        writer = journal.create("run") if sys.argv[3] == "create" else await journal.acquire("run")
        writer.append([Rewarded(at=0.0, reward=0.0, name="held")])
        await writer.sync()
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        try:
            writer.append([Rewarded(at=0.0, reward=0.0, name="late")])
            await writer.sync()
            print("kept", flush=True)
        except JournalError as error:
            print(type(error).__name__, error, flush=True)

    asyncio.run(main())
""")


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def hold(path: Path, lease_seconds: float, how: str = "create") -> Started:
    process = FORKS.start("-c", HOLDER, str(path), str(lease_seconds), how, **PIPES)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def names(path: Path) -> list[str]:
    with open_journal(path) as journal:
        return [event.body.name for event in journal.read("run") if isinstance(event.body, Rewarded)]


async def test_a_second_process_is_refused_and_told_who_drives(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    holder = hold(path, 30)
    try:
        with open_journal(path) as journal, pytest.raises(LeaseHeldError, match=f"process {holder.pid} "):
            await journal.acquire("run")
        out, _ = holder.communicate("go\n", timeout=30)
        assert out == "kept\n"
    finally:
        holder.kill()
    with open_journal(path) as journal:
        await (await journal.acquire("run")).release()


async def test_a_killed_process_loses_its_run_at_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    holder = hold(path, 3600)
    holder.kill()
    holder.wait()
    with open_journal(path, lease_seconds=3600) as journal:
        await journal.acquire("run")
        with pytest.raises(LeaseHeldError, match="this process already"):
            await journal.acquire("run")


async def test_a_stopped_process_cannot_write_once_another_took_over(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    holder = hold(path, 3)
    try:
        os.kill(holder.pid, signal.SIGSTOP)
        with open_journal(path, lease_seconds=3) as journal:
            with pytest.raises(LeaseHeldError):
                await journal.acquire("run")
            async with asyncio.timeout(30):
                while True:
                    await asyncio.sleep(0.2)
                    try:
                        writer = await journal.acquire("run")
                        break
                    except LeaseHeldError:
                        continue
            writer.append([Rewarded(at=0.0, reward=0.0, name="taken over")])
            await writer.sync()
            os.kill(holder.pid, signal.SIGCONT)
            out, _ = await asyncio.to_thread(holder.communicate, "go\n", 30)
            assert out.startswith("LeaseLostError run 'run' was taken over by another process")
            writer.append([Rewarded(at=0.0, reward=0.0, name="still here")])
            await writer.sync()
            await writer.release()
    finally:
        holder.kill()
    assert names(path) == ["held", "taken over", "still here"]


async def test_a_stopped_process_that_nobody_replaced_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    holder = hold(path, 0.2)
    try:
        os.kill(holder.pid, signal.SIGSTOP)
        await asyncio.sleep(1)
        os.kill(holder.pid, signal.SIGCONT)
        out, _ = await asyncio.to_thread(holder.communicate, "go\n", 30)
        assert out == "kept\n"
    finally:
        holder.kill()


async def test_many_processes_resume_one_run_and_one_drives(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_journal(path) as journal:
        task = asyncio.ensure_future(
            Agent(ScriptedModel(["never"], delay_seconds=60), journal=journal).run("go", run_id="run")
        )
        while "run" not in {info.run_id for info in journal.runs()}:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    script = textwrap.dedent("""
        import sys
        from treadle import Agent, LeaseHeldError, ScriptedModel, open_journal
        agent = Agent(ScriptedModel(["answer"], delay_seconds=3), journal=open_journal(sys.argv[1]))
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            print(agent.resume_sync("run").output, flush=True)
        except LeaseHeldError:
            print("refused", flush=True)
    """)
    racers = [FORKS.start("-c", script, str(path), **PIPES) for _ in range(4)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outs = sorted([racer.communicate(timeout=60)[0] for racer in racers])
    assert outs == ["answer\n", "refused\n", "refused\n", "refused\n"]
    with open_journal(path) as journal:
        types = [event.type for event in journal.read("run")]
    assert types.count("run_resumed") == types.count("run_finished") == 1
