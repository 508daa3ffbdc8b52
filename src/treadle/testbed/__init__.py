"""The built-in models: the oracle, which solves the built-in tasks, the teacher, which plays all roles in the
generation of a dataset, and their server."""

from treadle.testbed.oracle import OracleModel, named_oracle, oracle_for

__all__ = ["OracleModel", "named_oracle", "oracle_for"]
