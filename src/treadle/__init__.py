"""Treadle runs tool-using LLM agents; every run is a durable, replayable, training-ready trajectory."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.agent.agent import Agent
    from treadle.agent.run_stream import RunStream
    from treadle.agent.session import Session
    from treadle.core.asking import Answer, Question
    from treadle.core.errors import (
        ConfigError,
        ExportError,
        JournalError,
        LeaseHeldError,
        LeaseLostError,
        ProviderError,
        ReplayDivergence,
        RetryWithMessage,
        RunExistsError,
        RunNotFoundError,
        SandboxError,
        ToolError,
        TreadleError,
        UntrustedError,
    )
    from treadle.core.events.narrowing import Ephemeral, Event
    from treadle.core.policy import Approval, InDoubt, Policy, ToolLimits
    from treadle.core.replay import Replay
    from treadle.core.types import (
        Effect,
        Fault,
        FinishReason,
        Message,
        Option,
        Role,
        StopReason,
        ToolCall,
        ToolResult,
        ToolSpec,
        Usage,
    )
    from treadle.journal.registry import open_journal
    from treadle.journal.run_info import RunFilter, RunInfo
    from treadle.knowledge.personas.persona import Persona
    from treadle.models.config.recipe import model
    from treadle.models.scripted import ScriptedModel
    from treadle.models.wire.provider import Price
    from treadle.runs.ensure import Batch
    from treadle.runs.options import RunContext
    from treadle.runs.run import Run
    from treadle.runs.task import Grade, Task
    from treadle.tasks import load_task, task_set
    from treadle.tools.context import ToolContext
    from treadle.tools.function.decorator import tool
    from treadle.tools.protocol import ApprovalRequest, Attachment, Decision, ToolOutput
    from treadle.trajectory.turns import EventLogger, turns

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Answer",
    "Approval",
    "ApprovalRequest",
    "Attachment",
    "Batch",
    "ConfigError",
    "Decision",
    "Effect",
    "Ephemeral",
    "Event",
    "EventLogger",
    "ExportError",
    "Fault",
    "FinishReason",
    "Grade",
    "InDoubt",
    "JournalError",
    "LeaseHeldError",
    "LeaseLostError",
    "Message",
    "Option",
    "Persona",
    "Policy",
    "Price",
    "ProviderError",
    "Question",
    "Replay",
    "ReplayDivergence",
    "RetryWithMessage",
    "Role",
    "Run",
    "RunContext",
    "RunExistsError",
    "RunFilter",
    "RunInfo",
    "RunNotFoundError",
    "RunStream",
    "SandboxError",
    "ScriptedModel",
    "Session",
    "StopReason",
    "Task",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolLimits",
    "ToolOutput",
    "ToolResult",
    "ToolSpec",
    "TreadleError",
    "UntrustedError",
    "Usage",
    "load_task",
    "model",
    "open_journal",
    "task_set",
    "tool",
    "turns",
]


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
