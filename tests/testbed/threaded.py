"""The mock server on a thread of its own, for tests that block."""

import asyncio
import threading
from types import TracebackType
from typing import Self

from treadle.testbed.server.oracle_app import OracleApp
from treadle.testbed.server.serving import ServerConnection


class ThreadedServer:
    """A server for an application, which runs within `with`."""

    def __init__(self, app: OracleApp) -> None:
        self.connections = 0
        """How many connections were opened."""
        self.url = ""
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def _connect(self) -> ServerConnection:
        self.connections += 1
        return ServerConnection(self._app, set())

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(
            self._loop.create_server(self._connect, "127.0.0.1", 0, backlog=1024), self._loop
        )
        self.url = f"http://127.0.0.1:{listening.result().sockets[0].getsockname()[1]}/v1"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
