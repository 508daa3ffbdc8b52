"""Atropos API servers for tests, in processes that can be killed: `python -m tests.rollout.sinks.atropos_server`.

The kind `package` is the server of the package atroposlib. The kind `reference` is written from a description of
that server alone; it is used if the package is not installed.
"""

import contextlib
import gzip
import http.client
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.forks.process import FORKS, ROOT

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
KINDS = ["reference", *(["package"] if importlib.util.find_spec("atroposlib") else [])]


class Server:
    """A server on one port, which can be killed and started again."""

    def __init__(self, kind: str = KINDS[-1]) -> None:
        self.kind = kind
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Any = None

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        code = f"from tests.rollout.sinks.atropos_server import main; main({self.kind!r}, {self.port})"
        self.process = FORKS.start("-c", code, cwd=ROOT)
        while True:
            try:
                self.ask("GET", "/")
                return
            except OSError:
                assert self.process.poll() is None, self.process.communicate()
                time.sleep(0.02)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            raw = None if body is None else json.dumps(body).encode()
            connection.request(method, path, raw, {"content-type": "application/json"})
            return json.loads(connection.getresponse().read())

    def register(self, batch_size: int = 8, max_token_len: int = 1000) -> None:
        """Register a trainer, and ask for a batch, which opens the server for environments."""
        register(self, batch_size, max_token_len)


def register(server: Server, batch_size: int, max_token_len: int = 1000) -> None:
    order = {
        "wandb_group": "g",
        "wandb_project": "p",
        "batch_size": batch_size,
        "max_token_len": max_token_len,
    }
    more = {"checkpoint_dir": "c", "save_checkpoint_interval": 1, "starting_step": 0, "num_steps": 10}
    server.ask("POST", "/register", order | more)
    server.ask("GET", "/batch")


class Reference:
    """The state of the server, and its answers."""

    def __init__(self) -> None:
        self.trainer: dict[str, Any] = {}
        self.envs: list[dict[str, Any]] = []
        self.queue: list[dict[str, Any]] | None = None
        self.ready: list[Any] = []
        self.latest: dict[str, Any] = {"tokens": [], "generation_params": []}
        self.step = 0
        self.is_started = False

    def answer(self, method: str, path: str, body: Any) -> Any:
        name = path.strip("/").replace("-", "_") or "root"
        return getattr(self, f"{method.lower()}_{name}")(body)

    def get_root(self, body: Any) -> Any:
        return {"message": "AtroposLib API"}

    def post_register(self, body: Any) -> Any:
        # Data that was posted before has made the queue, and then nothing is initialised any more.
        if self.queue is None:
            self.queue, self.trainer, self.step = [], body, body["starting_step"]
        return {"uuid": 1}

    def post_register_env(self, body: Any) -> Any:
        if not self.is_started:
            return {"status": "wait for trainer to start"}
        number = len([env for env in self.envs if env["desired_name"] == body["desired_name"]])
        self.envs.append(body | {"connected": True})
        name = f"{body['desired_name']}_{number}"
        return {
            "status": "success",
            "env_id": len(self.envs) - 1,
            "wandb_name": name,
            "starting_step": self.step,
        }

    def post_disconnect_env(self, body: Any) -> Any:
        self.envs[body["env_id"]]["connected"] = False
        return {"status": "success"}

    def get_info(self, body: Any) -> Any:
        return {key: self.trainer.get(key, -1) for key in ("batch_size", "max_token_len")}

    def post_scored_data(self, body: Any) -> Any:
        self.queue = self.queue if self.queue is not None else []
        known = ("tokens", "masks", "scores", "advantages", "messages", "generation_params")
        self.latest = {key: body.get(key) for key in (*known, "inference_logprobs", "overrides", "env_id")}
        self.queue.append(self.latest)
        return {"status": "received"}

    def post_scored_data_list(self, body: Any) -> Any:
        for group in body:
            self.post_scored_data(group)
        return {"status": "received", "groups_processed": len(body)}

    def get_batch(self, body: Any) -> Any:
        if not self.trainer or self.queue is None:
            return {"status": "error", "batch": []}
        self.is_started = True
        size = self.trainer["batch_size"]
        made = []
        while not self.ready and sum(len(group["tokens"]) for group in self.queue) >= size:
            batch: list[Any] = []
            while sum(len(group["tokens"]) for group in batch) < size:
                batch.append(self.queue.pop(0))
            made.append(batch)
            if sum(len(group["tokens"]) for group in self.queue) < size:
                self.ready, self.step = made, self.step + len(made)
        return {"batch": self.ready.pop() if self.ready else None}

    def get_status(self, body: Any) -> Any:
        return {"current_step": self.step, "queue_size": len(self.queue or ())}

    def get_status_env(self, body: Any) -> Any:
        queue = self.queue or []
        own = [len(group["tokens"]) for group in queue if group["env_id"] == body["env_id"]]
        size = max([self.envs[body["env_id"]]["group_size"], *own])
        total = sum(len(group["tokens"]) for group in queue)
        return {
            "current_step": self.step,
            "queue_size": total // size,
            "self_queue_size": sum(own) // size,
            "max_group_size": max([1, *[len(group["tokens"]) for group in queue]]),
            "env_weight": 1.0,
            "unallocated_fraction": 1.0,
        }

    def get_latest_example(self, body: Any) -> Any:
        return self.latest


class Handler(BaseHTTPRequestHandler):
    """The requests to a `Reference`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state = Reference()
    lock = threading.Lock()

    def do_GET(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            raw = gzip.decompress(raw)
        with self.lock:
            try:
                status, found = (
                    200,
                    self.state.answer(self.command, self.path, json.loads(raw) if raw else None),
                )
            except (LookupError, AttributeError) as error:
                status, found = 500, {"detail": repr(error)}
        answer = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


def main(kind: str, port: int) -> None:
    """Serve until the process is killed."""
    if kind == "reference":
        ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
        return
    import uvicorn
    from atroposlib.api import app

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
