"""The start and the end of `treadle serve`."""

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.journal.protocol import Journal
from treadle.models.config.recipe import Config, load_config
from treadle.models.config.tables import ConfigFile, KeyTable, ServeTable
from treadle.models.config.toml_file import REMEDY
from treadle.server.admission.access import LOCAL_HOSTS
from treadle.server.listening import listen, serve_app
from treadle.viewer.viewed_data import ViewedData

STOP_SECONDS = 30.0
"""How long requests may take to end when the server stops."""


class Served(Struct, frozen=True):
    """What a server offers."""

    config: Config
    names: tuple[str, ...]
    token: str | None = None
    """The key of the page, if only the page may ask; `None`: the keys of the configuration."""
    viewed: ViewedData | None = None
    """The datasets, rollouts or topics that the page shows beside runs."""


def load_served(path: Path | None, model: str | None) -> Served:
    """Return what is served: the agents and models of a configuration, and `model`.

    Raises: `ConfigError` if there is nothing to serve, or if the configuration was found and its agents need trust.
    """
    require("fastapi", "serve")
    require("python_multipart", "serve")
    from treadle.server.catalog import names_of

    config = load_config(path)
    if path is None and config.file.agents and not config.is_trusted:
        raise ConfigError(
            f"{str(config.path)!r} was found, and has agents, which may start programs; {REMEDY}"
        )
    if model is not None:
        file = config.file.model_copy(update={"model": model})
        config = Config(file, config.path, config.notices)
    return Served(config, names_of(config, model))


def load_viewed(config: Config, viewed: ViewedData) -> Served:
    """Return what `treadle view` serves: the agents of the configuration, if it may be used, to a page with a key.

    A configuration that was found and needs trust is left out.
    """
    require("fastapi", "serve")
    from treadle.server.admission.access import new_key
    from treadle.server.catalog import names_of
    from treadle.server.run_host import VIEWED

    token, hashed = new_key()
    is_usable = not config.file.agents or config.is_trusted or config.path is None
    file = config.file if is_usable else ConfigFile()
    key = KeyTable(sha256=hashed, scopes=["run", "read", "admin"])
    used = Config(file.model_copy(update={"serve": ServeTable(keys={VIEWED: key})}), config.path)
    try:
        names = names_of(used, None)
    except ConfigError:
        names = ()
    return Served(used, names, token, viewed)


async def serve_api(
    served: Served,
    journal: Journal,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    on_fault: Callable[[str], None] | None = None,
    other: Journal | None = None,
) -> None:
    """Serve until the caller cancels this; then pause what is under way. `on_ready` gets the address, and
    `on_fault` before that what keeps an agent or model from being used. The page also shows the runs of `other`.

    Raises: `ConfigError` if the address cannot be used, or is not of this machine and there are no keys; with
    `on_fault`, also if no agent and no model can be used.
    """
    from treadle.server.api import make_api
    from treadle.server.catalog import AgentCatalog
    from treadle.server.metrics import log_requests
    from treadle.server.run_host import SERVED, VIEWED, RunHost

    table = served.config.file.serve
    if not table.keys and host not in LOCAL_HOSTS:
        raise ConfigError(
            f"without keys, the server listens only on this machine, and {host!r} is another address: make a key "
            "with `treadle serve --new-key NAME`"
        )
    listener, url = listen(host, port)
    queue = SERVED if served.token is None else VIEWED

    def make_host(store: Journal) -> RunHost:
        catalog = AgentCatalog(served.config, store, served.names)
        return RunHost(store, catalog, window=table.window, queue=queue)

    runs = make_host(journal)
    more = None if other is None else make_host(other)
    if on_fault is not None:
        # This makes the agents. The host gives the catalog its hooks, so it is made before.
        faults = runs.catalog.faults()
        if len(faults) == len(served.names):
            listener.close()
            raise ConfigError(f"nothing can be served: {'; '.join(faults)}")
        for fault in faults:
            on_fault(fault)
    api = make_api(runs, table, host, served.viewed, more)

    async def close() -> None:
        await asyncio.gather(*[one.close() for one in (runs, more) if one is not None])

    if table.logs_requests:
        log_requests()
    # Streams end when their runs are paused.
    await serve_app(api, listener, lambda: on_ready(url), close, STOP_SECONDS, table.body_timeout_seconds)


def settle_memory() -> None:
    """Keep the garbage collector from visiting the 150,000 objects that a server has before its first request, and
    from working within each request.

    To visit them takes up to 0.1 s, in which no request is answered, and a tenth of the time of a request is the
    collector's if it works after each 700 objects. This is for a process that does nothing but serve, once it is
    ready: what is garbage in another process would stay.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
