"""Fixtures: the command, and the servers that it talks to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import Cli, Oracle, RealCli
from tests.cli.scripted import Answer, Script, Scripted


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def real_cli(tmp_path: Path) -> RealCli:
    return RealCli(tmp_path)


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    server = Oracle(tmp_path_factory.mktemp("oracle"))
    yield server
    server.stop()


@pytest.fixture
def script() -> Iterator[Script]:
    servers: list[Scripted] = []

    def begin(answer: Answer) -> Scripted:
        servers.append(Scripted(answer))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()
