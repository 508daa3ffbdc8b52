"""Writing to the log fails once, at each call in turn: nothing acknowledged is lost and no lease is kept."""

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.conftest import IS_FULL

from treadle import open_journal

FAULTS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Fail at call number FAULT_AT that writes or syncs the log, with the error FAULT. */
static int fails(int fd) {
    static int calls = 0;
    char link[64], name[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, name, sizeof name - 1);
    if (size <= 0) return 0;
    name[size] = 0;
    if (!strstr(name, "-wal") || ++calls != atoi(getenv("FAULT_AT"))) return 0;
    errno = atoi(getenv("FAULT"));
    return 1;
}

int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return fails(fd) ? -1 : real(fd);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    return fails(fd) ? -1 : real(fd, data, size, at);
}
"""
DRIVER = """
import asyncio, json, sys
from treadle import Agent, JournalError, RunNotFoundError, ScriptedModel, open_journal, tool
from treadle.models import call

@tool(effect="once")
async def step(x: int) -> str:
    "Step."
    return "ok"

def answer(request):
    count = sum(message.role == "assistant" for message in request.messages)
    return [call("step", {"x": count})] if count < 3 else "done"

async def main():
    heard, outcomes = {}, []
    agent = Agent(ScriptedModel(answer), tools=[step], journal=open_journal(sys.argv[1], level=sys.argv[2]))

    def note(event):
        if getattr(event, "seq", None):
            heard[event.run_id] = event.seq

    for run_id in ("a", "b"):
        try:
            await agent.run("go", run_id=run_id, on_event=note)
        except JournalError:
            outcomes.append("failed")
    try:
        outcomes.append(str((await agent.resume("a")).stop_reason))
    except RunNotFoundError:  # its first event was not kept
        outcomes.append("never began")
    print(json.dumps([heard, outcomes]))

asyncio.run(main())
"""


@pytest.mark.sets(0)
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("level", "error"), [("process", "ENOSPC"), ("power", "EIO")])
def test_each_write_of_the_log_fails_once(tmp_path: Path, level: str, error: str) -> None:
    (tmp_path / "faults.c").write_text(FAULTS)
    library = tmp_path / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "faults.c", "-ldl"], check=True)
    failures = 0
    for at in range(1, 120) if IS_FULL else (50, 70):
        path = tmp_path / f"{at}.db"
        faults = {"LD_PRELOAD": str(library), "FAULT_AT": str(at), "FAULT": str(getattr(errno, error))}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(DRIVER), str(path), level],
            env={**os.environ, **faults},
            capture_output=True,
            text=True,
        )
        if not done.stdout:
            assert "JournalError" in done.stderr, done.stderr  # the file could not be made
            continue
        heard, outcomes = json.loads(done.stdout)
        failures += outcomes.count("failed")
        assert outcomes[-1] in ("completed", "never began"), (at, outcomes, done.stderr)
        with open_journal(path) as journal:
            infos = {info.run_id: info for info in journal.runs()}
            assert not any(info.is_driven for info in infos.values())
            for run_id, seq in heard.items():
                assert len(journal.read(run_id)) >= seq
            assert "failed" in outcomes or infos["b"].status == "finished"
    assert failures > 0
