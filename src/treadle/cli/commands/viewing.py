"""`treadle view` and `treadle report`: the page that shows runs, live and as one file."""

import contextlib
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import open_existing
from treadle.cli.terminal.output import flush, print_json, print_line, print_note, spinner, write_output
from treadle.core.errors import JournalError, RunNotFoundError
from treadle.journal.named_files import suggest_path
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.models.config.recipe import load_config
from treadle.runs.statuses import find_run

if TYPE_CHECKING:
    from treadle.viewer.viewed_data import ViewedData


def view(
    places: list[str] | None = None,
    journal: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    is_open: bool = True,
    is_json: bool = False,
) -> None:
    """Open a page in the browser that shows runs as they happen, datasets, rollouts, evaluations or topics.

    The page lists the runs of a journal, and shows their messages, calls, prompts, files and times. It can answer
    questions, approve calls, stop and fork runs, and talk to the agents of treadle.toml. It also
    shows the rows of a dataset, the scores of an evaluation while its samples are made, and the rollouts of a group
    side by side, down to their tokens. It compares the runs of two journals, two datasets or two evaluations. The
    address has a key, and nobody without it can ask the server. Ctrl-C ends it.

    Examples:
        treadle view
        treadle view evaluation/first evaluation/second --no-open
    """
    from treadle.viewer.data_pages import check_folder, find_kind
    from treadle.viewer.viewed_data import ViewedData

    given, journals = [Path(place) for place in places or ()], [] if journal is None else [journal]
    if 0 < len(given) <= 2 and not any(map(find_kind, given)):
        for path in given:
            check_folder(path)
        given, journals = [], list(dict.fromkeys(places or ()))
    data = ViewedData(given)
    with data.open_journals(journals) as opened:
        _serve(data, opened, host, port, is_open=is_open, is_json=is_json)


def _serve(
    data: "ViewedData", journals: Sequence[Journal], host: str, port: int, *, is_open: bool, is_json: bool
) -> None:
    """Serve the page until Ctrl-C. Its extra is not needed for an error about what it is to show."""
    from treadle.server.api_server import load_viewed, serve_api, settle_memory
    from treadle.viewer.bundle import read_bundle

    read_bundle()
    config = load_config()
    served = load_viewed(config, data)
    if config.file.agents and not served.config.file.agents:
        print_note(
            f"the agents of {str(config.path)!r} are left out, because the file is not trusted; look at it, and "
            "run `treadle models trust`"
        )

    def tell(url: str) -> None:
        settle_memory()
        address = f"{url}/view#token={served.token}"
        if is_json:
            print_json({"url": address})
        else:
            print_line(address, "bold")
            print_note("Ctrl-C ends the page")
        flush()
        if is_open and not is_json:
            webbrowser.open(address)

    with contextlib.suppress(KeyboardInterrupt):
        first, *others = journals
        execute(serve_api(served, first, host, port, tell, other=others[0] if others else None))


def report(runs: list[str] | None = None, journal: str | None = None, out: Path | None = None) -> None:
    """Write runs, datasets, rollouts, or evaluations as one HTML file that works from disk.

    Examples:
        treadle report last --out run.html
        treadle report evaluation --out evaluation.html
    """
    from treadle.viewer.bundle import check_built, encode_bundle, escape_part
    from treadle.viewer.data_pages import check_folder, find_kind, make_page
    from treadle.viewer.run_view import embed_runs
    from treadle.viewer.token_views import embed_tokens
    from treadle.viewer.viewed_data import ViewedData

    paths = [Path(text) for text in runs or ()]
    if paths and None not in map(find_kind, paths):
        ViewedData(paths)  # its error says what can be shown together
        check_built()
        with spinner("reading"):
            page = make_page(*paths, journal=journal)
    else:
        for path in paths:
            check_folder(path)
        with _open(journal, runs or ()) as opened:
            try:
                ids = [_find_run(opened, text) for text in runs or ["last"]]
            except RunNotFoundError:
                if any(path.exists() for path in paths):
                    ViewedData(paths)
                raise
            infos = opened.runs(RunFilter(run_ids=ids))
            title = infos[0].title or ids[0]
            start = f"#/run/{escape_part(ids[0])}" if len(ids) == 1 else "#/runs"
            answers = embed_runs(opened, infos) | embed_tokens(opened, ids)
            page = encode_bundle(title, start, answers)
    write_output(page, out)
    if out is not None:
        print_line(str(out))


def _open(journal: str | None, names: Sequence[str]) -> Journal:
    """Return the journal of the named runs. Raises: `JournalError`, which says if a name is no path either."""
    try:
        return open_existing(journal)
    except JournalError as error:
        absent = next((name for name in names if not Path(name).exists()), None)
        if absent is None:
            raise
        raise JournalError(f"{error}; there is no file or folder {absent!r} either") from error


def _find_run(opened: Journal, text: str) -> str:
    """Return the id of a run. Raises: `RunNotFoundError`, which names a path that may be meant."""
    try:
        return find_run(opened, text)
    except RunNotFoundError as error:
        otherwise = "" if Path(text).exists() else "there is no such file or folder either"
        raise RunNotFoundError(f"{error}{suggest_path(text, otherwise)}") from error
