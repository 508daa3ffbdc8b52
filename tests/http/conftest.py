"""Each asynchronous test of the room runs on both kinds of event loops."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the event loops that a test runs on."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
