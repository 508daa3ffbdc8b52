"""Environments of OpenEnv: a server with `reset`, `step` and `state`, which this program starts or connects to.

An episode is a conversation. It begins with the observation of `reset`; each call of the model is an action, whose
result is the next observation. Source: openenv-core 0.3.0, `core/generic_client.py` and `core/env_server/`.
"""

import asyncio
import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

EPISODES = 256
"""How many tasks are listed. The task N is the episode of `reset(seed=N)`."""
WAIT_SECONDS = 60.0
"""How long the first answer of the server, and a session, are waited for."""
_PAUSE_SECONDS = 0.2
_FULL = "CAPACITY_REACHED"
"""The error of a server that has no room for one more session."""
_CALL_TOOL = "CallToolAction"
"""The name of the action of an environment whose tools are listed over MCP."""
_STEP = "step"
"""The name of the only tool of an environment that lists none."""
_NO_BUDGET = 402
Told = dict[str, Any]


class OpenEnvPlayer:
    """The episodes of an environment."""

    def __init__(self, name: str, settings: Told) -> None:
        """Load the environment of a folder or a package, or keep the address of its server."""
        import openenv.core  # noqa: F401

        self.name = name
        self._prompt = str(settings.pop("prompt", f"Play an episode of {name}."))
        self._text_field = settings.pop("text", None)
        self._max_steps = settings.pop("max_steps", 50)
        if not isinstance(self._max_steps, int) or self._max_steps < 1:
            raise ValueError(f"max_steps is {self._max_steps!r}; give a whole number of at least 1")
        counted = settings.pop("reward", "sum")
        if counted not in ("sum", "last"):
            raise ValueError(f"reward is {counted!r}; give sum or last")
        self._takes_last = counted == "last"
        wrong = [key for key in settings if not key.startswith("reset.")]
        if wrong:
            raise ValueError(
                f"the key {wrong[0]!r} is unknown; give prompt, text, max_steps, reward, or reset.NAME"
            )
        self._reset = {key[len("reset.") :]: value for key, value in settings.items()}
        self._url = name if "://" in name else None
        self._app: Any = None if self._url else _load_app(name)
        self._server: Any = None
        self._schema: Told = {}
        self._starting: asyncio.Task[None] | None = None
        self._door = asyncio.Lock()
        self._playing = 0

    def describe_tasks(self) -> list[Told]:
        return [{"id": str(seed), "input": self._prompt, "instructions": None} for seed in range(EPISODES)]

    async def _start(self) -> None:
        """Start the server, unless it is another's, and read the schema of its actions."""
        import httpx
        import uvicorn

        if self._url is None:
            listener = socket.create_server(("127.0.0.1", 0))
            self._url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self._server = uvicorn.Server(uvicorn.Config(self._app, log_level="warning"))
            threading.Thread(target=self._server.run, args=([listener],), daemon=True).start()
        async with httpx.AsyncClient(base_url=self._url, timeout=WAIT_SECONDS) as client:
            answer = await client.get("/schema")
        self._schema = answer.raise_for_status().json()["action"]
        known = self._schema.get("properties", {})
        if self._text_field and self._text_field not in known:
            raise ValueError(f"its action has no field {self._text_field!r}; text can be {', '.join(known)}")

    async def play(self, asked: Told) -> Told:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)
        session, first = await self._enter(int(asked["task"]))
        self._playing += 1
        try:
            return await self._converse(asked, session, first)
        finally:
            self._playing -= 1
            await session.close()

    async def _enter(self, seed: int) -> tuple[Any, Any]:
        """Return a session and its first observation. Servers may refuse more than one session at a time."""
        from openenv.core.generic_client import GenericEnvClient
        from websockets.exceptions import ConnectionClosed

        waited = 0.0
        async with self._door:
            while True:
                session = GenericEnvClient(self._url)
                try:
                    return session, await session.reset(seed=seed, **self._reset)
                except BaseException as error:
                    await session.close()
                    is_full = isinstance(error, ConnectionClosed) or _FULL in str(error)
                    if not is_full or waited > WAIT_SECONDS:
                        raise
                waited = 0.0 if self._playing else waited + _PAUSE_SECONDS
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _find_tools(self, session: Any) -> list[Told]:
        """Return the model's tools as OpenAI writes them: those of the environment, or its action."""
        if self._text_field:
            return []
        if self._schema.get("title") == _CALL_TOOL:
            listed = (await session.step({"type": "list_tools"})).observation["tools"]
            tools = [(tool["name"], tool.get("description"), tool.get("input_schema")) for tool in listed]
        else:
            hidden = ("metadata", "type")
            shown = {key: field for key, field in self._schema["properties"].items() if key not in hidden}
            told = self._schema.get("description") or "Act in the environment, and return what it shows."
            tools = [(_STEP, told, {**self._schema, "properties": shown})]
        return [
            {
                "type": "function",
                "function": {"name": name, "description": told or "", "parameters": schema or {}},
            }
            for name, told, schema in tools
        ]

    async def _converse(self, asked: Told, session: Any, first: Any) -> Told:
        """Let the model act until the episode ends, and return the outcome."""
        from openai import APIStatusError, AsyncOpenAI

        tools, rewards, steps, said, end = await self._find_tools(session), list[float](), 0, "", ""
        messages: list[Told] = [
            {"role": "user", "content": f"{self._prompt}\n\n{_show(first.observation)}".strip()}
        ]
        is_done = first.done
        async with AsyncOpenAI(base_url=asked["base_url"], api_key=asked["api_key"], max_retries=0) as client:
            ask: Any = client.chat.completions.create
            given = {"timeout": None, **({"tools": tools} if tools else {})}
            while not (is_done or end):
                try:
                    answer = await ask(model=asked["model"], messages=messages, **given)
                except APIStatusError as error:
                    if error.status_code != _NO_BUDGET:
                        raise
                    end = "a limit of the attempt ended it"
                    break
                message = answer.choices[0].message
                said = message.content or ""
                messages.append(message.model_dump(exclude_none=True))
                actions = _read_actions(message, self._text_field, self._schema.get("title") == _CALL_TOOL)
                if not actions:
                    end = "the model made no call"
                for call_id, action in actions:
                    shown, reward, is_over = await _act(session, action, is_done)
                    steps, is_done = steps + 1, is_done or is_over
                    rewards += [] if reward is None else [float(reward)]
                    role = {"role": "tool", "tool_call_id": call_id} if call_id else {"role": "user"}
                    messages.append({**role, "content": shown})
                if steps >= self._max_steps:
                    end = "it reached its max_steps"
        return {
            "reward": (rewards[-1] if self._takes_last else sum(rewards)) if rewards else 0.0,
            "detail": f"{steps} steps, {'done' if is_done else end}{'' if rewards else ', no step had a reward'}",
            "metrics": {"steps": float(steps), "done": float(is_done)},
            "output": said,
        }

    async def close(self) -> None:
        if self._server is not None:
            self._server.should_exit = True


def _load_app(name: str) -> Any:
    """Return the application that `openenv.yaml` names: of a folder, or of an installed package."""
    from importlib import import_module
    from importlib.util import find_spec

    import yaml

    place = Path(name).resolve()
    if place.is_dir():
        sys.path.insert(0, str(place.parent))
    else:
        found = find_spec(name) if name.isidentifier() else None
        if found is None or found.origin is None:
            raise ValueError(
                f"{name!r} is no folder, no installed package, and no address such as http://host:8000"
            )
        place = Path(found.origin).parent
    named = place / "openenv.yaml"
    settings = yaml.safe_load(named.read_text("utf-8")) if named.is_file() else {}
    module, _, attribute = str(settings.get("app") or "server.app:app").partition(":")
    return getattr(import_module(f"{place.name}.{module}"), attribute)


def _show(observation: Any) -> str:
    """Return what the model sees of an observation."""
    if isinstance(observation, dict) and "tool_name" in observation:
        observation = observation.get("error") or observation.get("result")
    return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)


def _read_actions(message: Any, text_field: str | None, is_call: bool) -> list[tuple[str, Any]]:
    """Return the actions of an answer, each with the id of its call. A text instead says why it is none."""
    if text_field:
        return [("", {text_field: message.content or ""})]
    found: list[tuple[str, Any]] = []
    for call in message.tool_calls or ():
        action: Any
        try:
            action = json.loads(call.function.arguments or "{}")
        except (ValueError, RecursionError):
            action = None
        if not isinstance(action, dict):
            action = "The arguments are not an object of JSON."
        elif not is_call and call.function.name != _STEP:
            action = f"There is no tool {call.function.name!r}; the only one is {_STEP!r}."
        elif is_call:
            action = {"type": "call_tool", "tool_name": call.function.name, "arguments": action}
        found.append((call.id, action))
    return found


async def _act(session: Any, action: Any, is_done: bool) -> tuple[str, float | None, bool]:
    """Return what the model sees of a step, its reward, and whether the episode is done."""
    if is_done or isinstance(action, str):
        return action if isinstance(action, str) else "The episode is over.", None, False
    try:
        result = await session.step(action)
    except RuntimeError as error:  # the server's word that the action is wrong
        return f"The action failed: {error}", None, False
    return _show(result.observation), result.reward, bool(result.done)
