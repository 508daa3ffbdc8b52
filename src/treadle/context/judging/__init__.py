"""Judgements about a message, made before or after a model is asked. They are pure functions of the text."""

from treadle.context.judging.boilerplate import is_boilerplate
from treadle.context.judging.difficulty import rate_difficulty
from treadle.context.judging.identity import is_identity_sensitive

__all__ = ["is_boilerplate", "is_identity_sensitive", "rate_difficulty"]
