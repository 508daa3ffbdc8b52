"""Headless Chromium for tests, driven over the pipes of its DevTools protocol.

Source: Chrome DevTools Protocol 1.3; with `--remote-debugging-pipe`, messages end with a zero byte.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process,PaintHolding,BackForwardCache,Translate,MediaRouter",
    "--disable-extensions",
    "--process-per-site",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
_SECONDS = 60.0


class Chromium:
    """A browser with one page. What the page logs and requests is recorded."""

    def __init__(self) -> None:
        assert PROGRAM is not None
        self.requests: list[str] = []
        """The addresses that the page has asked for."""
        self.complaints: list[str] = []
        """The errors, warnings and exceptions of the page."""
        self._folder = tempfile.mkdtemp()
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()

        def use_pipes() -> None:
            # Copies with other numbers, because one of the pipes may be number 3 or 4 itself.
            commands, answers = (
                fcntl.fcntl(read_commands, fcntl.F_DUPFD, 10),
                fcntl.fcntl(write_answers, fcntl.F_DUPFD, 10),
            )
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        self._process = subprocess.Popen(
            [PROGRAM, *_FLAGS, f"--user-data-dir={self._folder}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=use_pipes,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(item["targetId"] for item in targets if item["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """Send a command, and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def open(self, page: Path | str, width: int = 1200, height: int = 900, *, is_dark: bool = False) -> None:
        """Open a file or an address, and wait until it is loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = "dark" if is_dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        address = page.as_uri() if isinstance(page, Path) else page
        if self.evaluate("location.href").partition("#")[0] == address.partition("#")[0]:
            # A page whose address differs only after the # would not be loaded again.
            self._load("about:blank")
        self._load(address)

    def _load(self, address: str) -> None:
        self.send("Page.navigate", url=address)
        self.wait_loaded()

    def wait_loaded(self) -> None:
        """Wait until the page is loaded, also again by what the last command did in it."""
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, *, is_whole: bool = True) -> bytes:
        """Return the page as a PNG."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        return base64.b64decode(found["data"])

    def close(self) -> None:
        """End the browser."""
        os.close(self._commands)
        self._process.terminate()
        self._process.wait(_SECONDS)
        os.close(self._answers)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _receive(self) -> dict[str, Any]:
        """Return the next message of the browser, and note what the page did."""
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._answers, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._rest += data
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", params)))
        elif message.get("method") == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif message.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        return message
