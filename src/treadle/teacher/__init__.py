"""The oracle, a model that solves the built-in tasks by acting on what it observes, and its server."""

from treadle.teacher.oracle import OracleModel, oracle_for

__all__ = ["OracleModel", "oracle_for"]
