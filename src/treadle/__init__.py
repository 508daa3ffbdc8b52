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

_WHERE = {
    "Agent": "treadle.agent.agent",
    "Answer": "treadle.core.asking",
    "Approval": "treadle.core.policy",
    "ApprovalRequest": "treadle.tools.protocol",
    "Attachment": "treadle.tools.protocol",
    "Batch": "treadle.runs.ensure",
    "ConfigError": "treadle.core.errors",
    "Decision": "treadle.tools.protocol",
    "Effect": "treadle.core.types",
    "Ephemeral": "treadle.core.events.narrowing",
    "Event": "treadle.core.events.narrowing",
    "EventLogger": "treadle.trajectory.turns",
    "ExportError": "treadle.core.errors",
    "Fault": "treadle.core.types",
    "FinishReason": "treadle.core.types",
    "Grade": "treadle.runs.task",
    "InDoubt": "treadle.core.policy",
    "JournalError": "treadle.core.errors",
    "LeaseHeldError": "treadle.core.errors",
    "LeaseLostError": "treadle.core.errors",
    "Message": "treadle.core.types",
    "Persona": "treadle.knowledge.personas.persona",
    "Policy": "treadle.core.policy",
    "Option": "treadle.core.types",
    "Price": "treadle.models.wire.provider",
    "ProviderError": "treadle.core.errors",
    "Question": "treadle.core.asking",
    "Replay": "treadle.core.replay",
    "ReplayDivergence": "treadle.core.errors",
    "RetryWithMessage": "treadle.core.errors",
    "Role": "treadle.core.types",
    "Run": "treadle.runs.run",
    "RunContext": "treadle.runs.options",
    "RunExistsError": "treadle.core.errors",
    "RunFilter": "treadle.journal.run_info",
    "RunInfo": "treadle.journal.run_info",
    "RunNotFoundError": "treadle.core.errors",
    "RunStream": "treadle.agent.run_stream",
    "SandboxError": "treadle.core.errors",
    "ScriptedModel": "treadle.models.scripted",
    "Session": "treadle.agent.session",
    "StopReason": "treadle.core.types",
    "Task": "treadle.runs.task",
    "ToolCall": "treadle.core.types",
    "ToolContext": "treadle.tools.context",
    "ToolError": "treadle.core.errors",
    "ToolLimits": "treadle.core.policy",
    "ToolOutput": "treadle.tools.protocol",
    "ToolResult": "treadle.core.types",
    "ToolSpec": "treadle.core.types",
    "TreadleError": "treadle.core.errors",
    "UntrustedError": "treadle.core.errors",
    "Usage": "treadle.core.types",
    "load_task": "treadle.tasks",
    "model": "treadle.models.config.recipe",
    "open_journal": "treadle.journal.registry",
    "task_set": "treadle.tasks",
    "tool": "treadle.tools.function.decorator",
    "turns": "treadle.trajectory.turns",
}

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

    return load_name(__name__, name, _WHERE)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
