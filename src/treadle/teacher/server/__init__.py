"""The oracle as a server that speaks OpenAI's chat completions, for demonstrations, tests and benchmarks.

Its model `oracle` solves any task of the task set `files`, over any number of connections. It keeps nothing between
requests. The model `oracle:0.3` makes a mistake in three of ten steps.
"""

from treadle.teacher.server.app import ServerSettings
from treadle.teacher.server.connection import OracleServer, serve

__all__ = ["OracleServer", "ServerSettings", "serve"]
