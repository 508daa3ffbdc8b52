"""What `treadle mock` does."""

import asyncio
import sys

import msgspec

from treadle.cli.terminal.execute import call_at_end_of_stdin, execute
from treadle.cli.terminal.output import print_lines, print_note, stdout, write_command
from treadle.teacher.server import ServerSettings, serve


def serve_until_stopped(
    host: str, port: int, settings: ServerSettings, *, is_json: bool, ends_with_stdin: bool
) -> None:
    """Serve until Ctrl-C. Raises: `ConfigError` if the port cannot be had."""

    async def work() -> None:
        server = await serve(host, port, settings)
        try:
            _announce(server.url, is_json=is_json)
            stopped = asyncio.Event()
            if ends_with_stdin:
                call_at_end_of_stdin(asyncio.get_running_loop(), stopped.set)
            await stopped.wait()
        finally:
            await server.close()

    execute(work())


def _announce(url: str, *, is_json: bool) -> None:
    if is_json:
        print_lines([msgspec.json.encode({"base_url": url})])
        return
    stdout().print(url, style="bold")
    sys.stdout.flush()
    command = write_command(
        "run", "--task", "files:csv_sum-0001", "--model", "openai:oracle", "--base-url", url
    )
    print_note(f"try: {command}")
    print_note("Ctrl-C stops it")
