"""What a server counts: figures for Prometheus at `/metrics`, and a line of JSON for each request.

Neither has a key, a header, a query or a body. The text form is that of Prometheus, version 0.0.4.
"""

import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable
from typing import Any

import msgspec

from treadle.server.admission.access import ApiCaller, Receive, Scope, Send
from treadle.server.run_host import RunHost

REQUEST_LOG = "treadle.server.requests"
"""The logger that gets a line of JSON for each request."""
_PLACES = frozenset(("/v1/chat/completions", "/v1/messages", "/v1/responses", "/mcp", "/view"))
"""The paths that are answered without a route."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Metrics:
    """ASGI middleware around all others, which measures requests, and the text that shows what it has counted."""

    def __init__(self, app: Any, host: RunHost) -> None:
        self._app = app
        self._host = host
        self._log = logging.getLogger(REQUEST_LOG)
        self.in_flight = 0
        self._counts: dict[tuple[str, str, int], int] = defaultdict(int)
        """How many requests were answered, by method, route and status."""
        self._buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(_SECONDS) + 1))
        self._sums: dict[str, float] = defaultdict(float)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        def watched(message: Any) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        self.in_flight += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            self.in_flight -= 1
            self._note(scope, status, time.perf_counter() - begin)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or _place_of(scope["path"])
        self._counts[scope["method"], route, status] += 1
        self._buckets[route][bisect_left(_SECONDS, seconds)] += 1
        self._sums[route] += seconds
        if self._log.isEnabledFor(logging.INFO):
            caller: ApiCaller | None = scope.get("state", {}).get("caller")
            line = {
                "at": time.time(),
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status,
                "seconds": round(seconds, 6),
                "key": None if caller is None else caller.name,
            }
            self._log.info(msgspec.json.encode(line).decode())

    def write(self) -> str:
        """Return what was counted, in the text form of Prometheus."""
        lines = _head("requests_total", "counter")
        for (method, route, status), count in sorted(self._counts.items()):
            lines.append(
                f'treadle_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
            )
        lines += _head("request_seconds", "histogram")
        for route, buckets in sorted(self._buckets.items()):
            total = 0
            for edge, count in zip((*_SECONDS, "+Inf"), buckets, strict=True):
                total += count
                lines.append(f'treadle_request_seconds_bucket{{route="{route}",le="{edge}"}} {total}')
            lines.append(f'treadle_request_seconds_sum{{route="{route}"}} {self._sums[route]}')
            lines.append(f'treadle_request_seconds_count{{route="{route}"}} {total}')
        gauges = {
            "requests_in_flight": self.in_flight,
            "runs_driven": self._host.driven,
            "is_ready": int(self._host.fault is None),
        }
        for name, value in gauges.items():
            lines += [*_head(name, "gauge"), f"treadle_{name} {value}"]
        return "\n".join([*lines, ""])


_HELP = {
    "requests_total": "Requests that were answered, by method, route and status.",
    "request_seconds": "How long requests took until the end of their answers, by route.",
    "requests_in_flight": "Requests that are being answered.",
    "runs_driven": "Turns and interrupted runs that this process works on.",
    "is_ready": "1 if the server takes requests, and 0 if not.",
}


def _head(name: str, kind: str) -> list[str]:
    """Return the lines before the values of a figure."""
    return [f"# HELP treadle_{name} {_HELP[name]}", f"# TYPE treadle_{name} {kind}"]


def log_requests() -> None:
    """Write the lines about requests to standard error."""
    log = logging.getLogger(REQUEST_LOG)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.INFO)


def _place_of(path: str) -> str:
    """Return a name for a path that no route has: the path only if it is a known place, so that there are few."""
    return path if path in _PLACES else "other"
