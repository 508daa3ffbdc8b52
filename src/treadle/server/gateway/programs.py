"""Attempts that other programs play, whose requests to the model are the attempt's.

A program is a command, which is started for each attempt, or the environment that a task comes with
(`environments`). The run of an attempt is an ordinary run of the task, whose model is the program (`ProgramModel`):
the program's conversations are runs of their own (`Completion.run_ids`), which this run has called, so that their
tokens are delivered with it. `ProgramWorkers` is a place where runs are driven, as any other: what a job does with
an attempt is the same.
"""

import asyncio
import json
import math
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import JSONResponse, Response

from treadle.agent.agent import Agent
from treadle.core import events as e
from treadle.core.errors import ConfigError, ContextOverflowError, ServerError, TreadleError
from treadle.core.lineage import Caller
from treadle.core.policy import Policy
from treadle.core.spec import PartSpec
from treadle.core.state import Ending
from treadle.core.texts.json_text import is_deep
from treadle.core.types import Completion, Fault, FinishReason, Message, Request, Role, StopReason, Usage
from treadle.jobs.seeded_agents import SeededAgent
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER
from treadle.loop.driver import Driver
from treadle.models.protocol import Watch
from treadle.runs.ensure import ensure_run
from treadle.runs.options import Given, StreamOptions
from treadle.runs.run import Run
from treadle.runs.task import Grade, SimpleTask, Task, find_environment, keep_finite
from treadle.server.admission.access import (
    ApiCaller,
    Receive,
    RequestRefused,
    Scope,
    Send,
    error_body,
    refuse,
    send_whole,
)
from treadle.server.catalog import ClientWish
from treadle.server.gateway.environments import EnvironmentProcess, end_all, start_guarded
from treadle.server.gateway.gateway_host import GatewayHost
from treadle.server.gateway.wires import Gateway, GatewayErrors
from treadle.server.listening import listen, serve_app
from treadle.tools.client_tools import ClientTools
from treadle.workers.registry import HereWorkers

TEMPORARY_FAILURE = 75
"""The exit status of a program that failed through no fault of the model, so that it is started again. It is
`EX_TEMPFAIL` of sysexits.h."""
_SAMPLING = frozenset(("temperature", "top_p", "seed", "logprobs", "return_token_ids", "strict_tools"))
"""The settings of requests that a rollout's own take the place of."""
_FIRST = 3
"""After so many tasks whose programs ask no model, without one that does, the program is wrong."""
_MAX_OUTPUT_CHARS = 100_000
_MAX_FILE_BYTES = 50_000_000
_STOP_SECONDS = 5.0
_RELAYED = Policy(max_steps=None, compact_at=None, charges_lost=False)


class _Ended(Struct):
    """What a program left behind."""

    status: int
    output: str
    reward: float | None
    files: dict[str, bytes]
    said: str
    """The end of what it printed on standard error."""
    detail: str = "the program's own"
    metrics: dict[str, float] | None = None


class Program:
    """One start of the command: who asks with its key, and what its conversations used."""

    def __init__(self, run_id: str, agent: SeededAgent) -> None:
        self.run_id = run_id
        self.agent = agent
        self.run_ids: dict[str, None] = {}
        """The runs with its conversations, in the order in which they began."""
        self.done: list[Completion] = []
        self.ending = Ending()
        """How its newest request ended without an answer; nothing if it had one."""
        self._agents: dict[bytes, Agent[Any]] = {}

    def find_limit(self) -> str | None:
        """Return the name of a limit that the program has reached; `None` if it may ask once more."""
        policy = self.agent.policy
        for name, used in (("max_steps", len(self.done)), ("max_tokens", self.usage.total_tokens)):
            most = getattr(policy, name)
            if most is not None and used >= most:
                return name
        return None

    @property
    def fault(self) -> Fault | None:
        """Whose fault it is that its newest request had no answer; `None` if it had one."""
        if self.ending.stop_reason is StopReason.CONTEXT_OVERFLOW and self.done:
            return Fault.MODEL  # the first prompt was not too long
        return self.ending.fault

    @property
    def usage(self) -> Usage:
        """The tokens of all answers."""
        return sum([item.usage for item in self.done], Usage())

    @property
    def cost_usd(self) -> float | None:
        """The cost of all answers; `None` if one is not known."""
        costs = [item.cost_usd for item in self.done]
        return None if None in costs else sum([cost for cost in costs if cost is not None])

    def relay(self, wish: ClientWish) -> Agent[Any]:
        """Return the agent that answers a request of the program."""
        key = msgspec.json.encode(wish, order="deterministic")
        found = self._agents.get(key)
        if found is None:
            given = {name: value for name, value in wish.settings.items() if name not in _SAMPLING}
            found = self._agents[key] = Agent(
                self.agent.vary(given) if given else self.agent.model,
                instructions=wish.instructions,
                tools=[ClientTools(list(wish.tools))] if wish.tools else [],
                policy=_RELAYED,
                journal=self.agent.journal,
                hooks=self.agent.hooks.all,
            )
        return found


class _ProgramHost(GatewayHost):
    """The gateway for the programs that run. A client is a program, whose name is its key."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal, self)
        self._by_key: dict[str, Program] = {}
        self.has_asked = False
        """True if a program has asked its model."""
        self._gateway = Gateway(_refuse_path, self, _to_response)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        given = dict(scope["headers"])
        key = given.get(b"authorization", b"").removeprefix(b"Bearer ") or given.get(b"x-api-key", b"")
        name = key.decode("latin-1").strip()
        if name not in self._by_key:
            await refuse(send, RequestRefused(401, "the API key is wrong", "invalid_api_key"))
            return
        scope.setdefault("state", {})["caller"] = ApiCaller(name, frozenset(("run",)))
        await self._gateway(scope, receive, send)

    @contextmanager
    def admit(self, program: Program) -> Iterator[str]:
        """Let a program ask its model until the context ends, with the key that this yields."""
        key = secrets.token_urlsafe(24)
        self._by_key[key] = program
        try:
            yield key
        finally:
            del self._by_key[key]

    def agent(self, name: str, wish: ClientWish) -> Agent[Any]:
        """See `AgentCatalog.agent`; `client` is the key of the program."""
        return self._by_key[wish.client].relay(replace(wish, client=""))

    def is_agent(self, name: str) -> bool:
        """See `AgentCatalog.is_agent`."""
        return False

    def dialect_of(self, name: str) -> str | None:
        """See `AgentCatalog.dialect_of`. Programs are given models of OpenAI's chat, or none of a server."""
        return "openai_chat"

    def _find(self, caller: ApiCaller) -> Program:
        """Return the program of a client. Raises: `RequestRefused` if it has ended."""
        found = self._by_key.get(caller.name)
        if found is None:
            raise RequestRefused(401, "this key is of no program that runs", "invalid_api_key")
        return found

    async def check_room(self, caller: ApiCaller) -> None:
        if (limit := self._find(caller).find_limit()) is not None:
            raise RequestRefused(402, f"the rollout has reached its {limit}", "budget_exceeded")

    def visible_to(self, caller: ApiCaller) -> dict[str, str]:
        return {CALLER: self._find(caller).run_id}

    def lineage(self, caller: ApiCaller) -> Caller | None:
        program = self._find(caller)
        number = len(program.run_ids) + 1
        return Caller(program.run_id, f"conversation-{number}", str(number))

    def note_asked(self, caller: ApiCaller, run_id: str) -> None:
        self._find(caller).run_ids[run_id] = None
        self.has_asked = True

    def note_done(self, caller: ApiCaller, done: Sequence[Completion], ending: Ending | None) -> None:
        program = self._by_key.get(caller.name)
        if program is not None:
            program.done += done
            program.ending = ending or Ending()


class ProgramModel:
    """A program as the model of the run of its task: its answer is what it printed."""

    def __init__(self, workers: "ProgramWorkers", run_id: str, agent: SeededAgent, task: Task) -> None:
        self.name = agent.model.name
        self.part = PartSpec(
            name=agent.model.name,
            settings={"command": workers.name_for(task)},
            missing="it is a program that a job started",
        )
        self._workers = workers
        self._run_id = run_id
        self._agent = agent
        self._task = task
        self.driver: Driver | None = None
        """The driver of the run, whose sandbox has the files."""

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Run the program, and return its answer.

        Raises: `ServerError` if it was killed, or failed because the engine did or before it asked the model;
        `ConfigError` if the first programs all fail so.
        """
        assert self.driver is not None
        driver, sandbox = self.driver, self.driver.bench.sandbox
        assert sandbox is not None
        program = Program(self._run_id, self._agent)
        before = {path: sandbox.read(path) for path in sandbox.paths()}
        ended = await self._workers.start(program, self._task, before)
        if ended.status:
            self._blame(program, ended)
        for path in before.keys() - ended.files.keys():
            sandbox.delete(path)
        for path, content in ended.files.items():
            if before.get(path) != content:
                sandbox.write(path, content)
        snapshot, blobs = driver.bench.take_snapshot()
        driver.put(*snapshot, blobs=blobs)
        if ended.reward is not None:
            driver.put(
                e.Rewarded(reward=ended.reward, detail=ended.detail, metrics=keep_finite(ended.metrics))
            )
        return Completion(
            Message(Role.ASSISTANT, ended.output),
            FinishReason.STOP,
            program.usage,
            program.cost_usd,
            model=self.name,
            opaque={"exit_status": ended.status} if ended.status else None,
            run_ids=tuple(program.run_ids),
        )

    def _blame(self, program: Program, ended: _Ended) -> None:
        """Raise the error for a program that failed, unless its work is graded as it is."""
        said = ended.said or "it printed no error"
        said += self._workers.explain_missing_file(said)
        how = f"exited with {ended.status}" if ended.status > 0 else f"was killed by signal {-ended.status}"
        text = f"the program {self._workers.name_for(self._task)!r} {how}: {said}"
        if is_played := find_environment(self._task) is not None:
            text = f"the environment {self._task.task_set} failed: {said}"
        if program.fault is Fault.MODEL:
            return
        if program.fault is not None:
            kind: type[TreadleError] = ServerError if program.fault is Fault.INFRASTRUCTURE else ConfigError
            if program.ending.stop_reason is StopReason.CONTEXT_OVERFLOW:
                kind = ContextOverflowError
            raise kind(f"{text} (the model: {program.ending.error})")
        if ended.status < 0 or ended.status == TEMPORARY_FAILURE:
            raise ServerError(text)
        if not program.run_ids:
            hint = "" if is_played else ": does it use OPENAI_BASE_URL?"
            kind = ConfigError if self._workers.are_silent(self._run_id) else ServerError
            raise kind(f"{text}. It did not ask the model{hint}")


class ProgramWorkers(HereWorkers):
    """This process as the place where the runs of programs are driven."""

    def __init__(self, command: str | Sequence[str] | None = None) -> None:
        """Keep the command, whose files are relative to the current folder. Raises: `ConfigError`.

        Without a command, tasks that come with an environment are played by it, and others by Treadle's own loop.
        """
        super().__init__()
        try:
            words = shlex.split(command) if isinstance(command, str) else list(command or ())
        except ValueError as error:
            raise ConfigError(f"the command {command!r} is not a command line: {error}") from error
        if command is not None and (not words or shutil.which(words[0]) is None):
            raise ConfigError(f"the command {command!r} does not begin with a program that exists")
        self._argv = [str(Path(word).absolute()) if Path(word).is_file() else word for word in words]
        self._command = shlex.join(words)
        self._others = [word for word in words[1:] if not Path(word).is_file()]
        self._environments: dict[tuple[str, ...], EnvironmentProcess] = {}
        self._host: _ProgramHost | None = None
        self._serving: asyncio.Task[None] | None = None
        self._url: asyncio.Future[str] | None = None
        self._silent: set[str] = set()

    def explain_missing_file(self, said: str) -> str:
        """Return where files of the command are looked for if `said` is about a missing one, else nothing."""
        if "No such file" not in said or not any(word in said for word in self._others):
            return ""
        return (
            f". A file of the command is looked for in {str(Path.cwd())!r}, and then among those of the task"
        )

    def are_silent(self, run_id: str) -> bool:
        """Return whether the program is wrong for all tasks: the first ones have all failed before they asked the
        model. That of `run_id` has failed so."""
        self._silent.add(run_id)
        has_asked = self._host is not None and self._host.has_asked
        return not has_asked and len(self._silent) >= _FIRST

    def name_for(self, task: Task) -> str:
        """Return the command that plays a task."""
        return self._command or shlex.join(find_environment(task) or ())

    async def run(
        self, agent: Agent[Any], run_id: str, task: str | Task, /, **options: Unpack[StreamOptions]
    ) -> Run[Any]:
        if not self._command and (isinstance(task, str) or find_environment(task) is None):
            return await super().run(agent, run_id, task, **options)
        if not isinstance(agent, SeededAgent) or isinstance(task, str):
            raise ConfigError("a command is started for attempts at tasks alone")
        if self._url is None:
            await self._serve(agent.journal)
        model = ProgramModel(self, run_id, agent, task)
        outer: Agent[str] = Agent(
            model, policy=replace(agent.policy, max_steps=None, compact_at=None), journal=agent.journal
        )
        with self._driven.watch() as hold:

            def take(driver: Driver) -> None:
                hold(driver)
                model.driver = driver

            given = Given(outer.answer, agent.deps, is_relayed=True, on_driver=take)
            return await ensure_run(outer, run_id, _without_tools(task), given, options)

    async def start(self, program: Program, task: Task, files: Mapping[str, bytes]) -> _Ended:
        """Let the program of a task work on it, and return what it left behind. Cancelling ends it."""
        assert self._url is not None
        assert self._host is not None
        url = await asyncio.shield(self._url)
        with self._host.admit(program) as key:
            if not self._command:
                return await self._play(program, task, f"{url}/v1", key)
            place = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="treadle-program-"))
            try:
                environment = await asyncio.to_thread(_prepare, place, task, files)
                environment |= {
                    "OPENAI_BASE_URL": f"{url}/v1",
                    "OPENAI_API_KEY": key,
                    "ANTHROPIC_BASE_URL": url,
                    "ANTHROPIC_API_KEY": key,
                }
                status = await self._wait(place, {**os.environ, **environment})
                return await asyncio.to_thread(_collect, place, status)
            finally:
                await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)

    async def _play(self, program: Program, task: Task, url: str, key: str) -> _Ended:
        command = find_environment(task)
        assert command is not None
        process = self._environments.get(command)
        if process is None:
            process = self._environments[command] = EnvironmentProcess(command)
        told = await process.play(task.task_id, url, key, program.agent.model.name)
        why = told.get("error")
        if why is None and not math.isfinite(told["reward"]):
            why = f"its reward is {told['reward']!r}, which is no number"
        if why is not None:
            if (limit := program.find_limit()) is not None:
                return _Ended(1, "", 0.0, {}, why, f"the rollout reached its {limit} before it ended")
            if program.fault is Fault.MODEL:
                return _Ended(1, "", 0.0, {}, why, f"the model gave no answer: {program.ending.error}")
            return _Ended(TEMPORARY_FAILURE if program.run_ids else 1, "", None, {}, why)
        return _Ended(
            0,
            told["output"],
            told["reward"],
            {},
            "",
            told["detail"] or "the environment's own",
            told["metrics"],
        )

    async def _wait(self, place: Path, environment: Mapping[str, str]) -> int:
        with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as error:
            process = await start_guarded(
                self._argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                cwd=place / "work",
                env=environment,
            )
        try:
            return await process.wait()
        finally:
            await end_all(process)

    async def _serve(self, journal: Journal) -> None:
        self._url = ready = asyncio.get_running_loop().create_future()
        self._host = host = _ProgramHost(journal)
        listener, url = listen("127.0.0.1", 0)
        self._serving = asyncio.ensure_future(
            serve_app(GatewayErrors(host), listener, lambda: ready.set_result(url), host.close, _STOP_SECONDS)
        )

    async def close(self) -> None:
        await asyncio.gather(*[process.close() for process in self._environments.values()])
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])


async def _refuse_path(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/v1/models":
        model = {"id": "rollout", "object": "model", "created": 0, "owned_by": "treadle"}
        await send_whole(send, 200, {"object": "list", "data": [model]}, {})
        return
    await refuse(send, RequestRefused(404, f"there is no {scope['path']!r:.100} here", "not_found"))


def _to_response(error: Exception) -> Response:
    if not isinstance(error, RequestRefused):
        status = 400 if isinstance(error, ConfigError) else 500
        error = RequestRefused(status, str(error), "invalid_request" if status == 400 else "server_error")
    body = error_body(error.status_code, error.detail, error.code)
    return JSONResponse(body, error.status_code, {"connection": "close", **(error.headers or {})})


def _prepare(place: Path, task: Task, files: Mapping[str, bytes]) -> dict[str, str]:
    """Write the task into a folder, and return the variables that tell a program of it."""
    work = place / "work"
    for path, content in files.items():
        target = work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    work.mkdir(exist_ok=True)
    told = {name: getattr(task, name) for name in ("task_set", "task_id", "seed", "input", "instructions")}
    (place / "task.json").write_text(json.dumps(told))
    return {
        "TREADLE_TASK": task.input,
        "TREADLE_TASK_ID": f"{task.task_set}:{task.task_id}",
        "TREADLE_TASK_FILE": str(place / "task.json"),
        "TREADLE_OUTPUT_FILE": str(place / "output.txt"),
        "TREADLE_REWARD_FILE": str(place / "reward.json"),
    }


def _collect(place: Path, status: int) -> _Ended:
    """Return what a program left in its folder. Raises: `ConfigError` if its reward cannot be read."""
    printed = _read_text(place / "stdout").rstrip()
    given, reward = place / "reward.json", None
    if given.exists():
        reward = _read_reward(_read_text(given))
    else:
        head, _, last = printed.rpartition("\n")
        if last.startswith("{") and "reward" in (_decode(last) or {}):
            reward, printed = _read_reward(last), head.rstrip()
    output = place / "output.txt"
    files: dict[str, bytes] = {}
    left = _MAX_FILE_BYTES
    for path in sorted((place / "work").rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= left:
            content = files[path.relative_to(place / "work").as_posix()] = path.read_bytes()
            left -= len(content)
    # The folder is temporary, so that its path means nothing to the user.
    said = " ".join(_read_text(place / "stderr")[-1000:].replace(f"{place / 'work'}/", "").split())
    return _Ended(status, _read_text(output) if output.exists() else printed, reward, files, said)


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 4 * _MAX_OUTPUT_CHARS))
        return file.read().decode(errors="replace")[-_MAX_OUTPUT_CHARS:]


def _decode(text: str) -> Any:
    """Return the value of JSON, in which Python's NaN and Infinity are numbers; `None` for any other text."""
    try:
        return None if is_deep(text) else json.loads(text)
    except ValueError:
        return None


def _read_reward(text: str) -> float:
    """Return a number, or the number `reward` of an object. Raises: `ConfigError` if the text is neither."""
    value = _decode(text)
    if isinstance(value, dict):
        value = value.get("reward")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and abs(value) < math.inf:
        return float(value)
    raise ConfigError(
        f"the program's reward is {text!r:.100}; write a number, or an object with a number called reward"
    )


def _without_tools(task: Task) -> Task:
    """Return a task whose tools are the program's own."""

    def check(_: SimpleTask, output: str, files: Mapping[str, bytes]) -> Grade | Awaitable[Grade]:
        return task.check(output, files)

    return SimpleTask(
        task_id=task.task_id,
        input=task.input,
        instructions=task.instructions,
        files=task.files,
        grader=None if getattr(task, "grader", task) is None else check,
        seed=task.seed,
        task_set=task.task_set,
    )
