"""`treadle view` and `treadle report`: the page that shows runs, live and as one file."""

import contextlib
import webbrowser
from contextlib import closing
from pathlib import Path

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import open_existing
from treadle.cli.terminal.output import flush, print_bytes, print_json, print_note, stdout
from treadle.export.whole import write_whole
from treadle.journal.run_info import RunFilter
from treadle.models.config.recipe import load_config
from treadle.runs.statuses import find_run


def view(
    place: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    is_open: bool = True,
    is_json: bool = False,
) -> int:
    """Open a page in the browser that shows runs as they happen.

    The page lists the runs of a journal, and shows their messages, calls, prompts, files and times. It can answer
    questions, approve calls, stop and fork runs, and talk to the agents of treadle.toml. The address has a key, and
    nobody without it can ask the server. Ctrl-C ends it.

    Examples:
        treadle view
        treadle view dataset/journal.db --no-open
    """
    from treadle.server.api_server import load_viewed, serve_api
    from treadle.viewer.bundle import read_bundle

    read_bundle()
    served = load_viewed(load_config())

    def tell(url: str) -> None:
        address = f"{url}/view#token={served.token}"
        if is_json:
            print_json({"url": address})
        else:
            stdout().print(address, style="bold", soft_wrap=True, highlight=False)
            print_note("Ctrl-C ends the page")
        flush()
        if is_open and not is_json:
            webbrowser.open(address)

    with closing(open_existing(place)) as opened, contextlib.suppress(KeyboardInterrupt):
        execute(serve_api(served, opened, host, port, tell))
    return ExitCode.DONE


def report(runs: list[str] | None = None, journal: str | None = None, out: Path | None = None) -> int:
    """Write runs as one HTML file that works from disk.

    Examples:
        treadle report last > run.html
        treadle report 1a1fb3a3 2b2c0d1e --out runs.html
    """
    from treadle.viewer.bundle import encode_bundle
    from treadle.viewer.run_view import embed_runs

    with closing(open_existing(journal)) as opened:
        ids = [find_run(opened, text) for text in runs or ["last"]]
        infos = opened.runs(RunFilter(run_ids=ids))
        title = infos[0].title or ids[0]
        start = f"#/run/{ids[0]}" if len(ids) == 1 else "#/runs"
        page = encode_bundle(title, start, embed_runs(opened, infos))
    if out is None:
        print_bytes(page)
    else:
        write_whole([page], out)
    return ExitCode.DONE
