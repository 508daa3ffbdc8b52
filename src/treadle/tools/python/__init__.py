"""The tool `python`: code in the Monty sandbox, with the run's files and its other tools."""

from treadle.tools.python.interpreter import Python, python

__all__ = ["Python", "python"]
