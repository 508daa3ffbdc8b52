"""Tokens: the ids that engines sampled, read from the journals of runs as branches."""

from treadle.trajectory.tokens.nodes import Node
from treadle.trajectory.tokens.token_graph import Conservation, TokenGraph, load_tokens, read_tokens
from treadle.trajectory.tokens.trajectories import (
    Decode,
    Decoders,
    Drift,
    DriftReport,
    Span,
    TokenGrade,
    Trajectory,
)

__all__ = [
    "Conservation",
    "Decode",
    "Decoders",
    "Drift",
    "DriftReport",
    "Node",
    "Span",
    "TokenGrade",
    "TokenGraph",
    "Trajectory",
    "load_tokens",
    "read_tokens",
]
