"""Tokens: the ids that engines sampled, read from the journals of runs as branches."""

from treadle.trajectory.tokens.nodes import Node as Node
from treadle.trajectory.tokens.token_graph import Conservation as Conservation
from treadle.trajectory.tokens.token_graph import TokenGraph as TokenGraph
from treadle.trajectory.tokens.token_graph import load_tokens as load_tokens
from treadle.trajectory.tokens.token_graph import read_tokens as read_tokens
from treadle.trajectory.tokens.trajectories import Decode as Decode
from treadle.trajectory.tokens.trajectories import Decoders as Decoders
from treadle.trajectory.tokens.trajectories import Drift as Drift
from treadle.trajectory.tokens.trajectories import DriftReport as DriftReport
from treadle.trajectory.tokens.trajectories import Span as Span
from treadle.trajectory.tokens.trajectories import TokenGrade as TokenGrade
from treadle.trajectory.tokens.trajectories import Trajectory as Trajectory
