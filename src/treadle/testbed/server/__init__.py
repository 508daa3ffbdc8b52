"""A mock server that speaks OpenAI's chat completions, for trials without a key, demonstrations and tests.

Its model `oracle` solves any task of the task set `files`; `oracle:0.3` makes a mistake in three of ten steps.
`teacher` plays the roles of a dataset's generation. Every other name is an `EchoModel`. The server keeps nothing
between requests.
"""

from treadle.testbed.server.oracle_app import FailureMode, ServerSettings
from treadle.testbed.server.serving import OracleServer, serve

__all__ = ["FailureMode", "OracleServer", "ServerSettings", "serve"]
