"""Treadle runs tool-using LLM agents; every run is a durable, replayable, training-ready trajectory."""

# Not imported from `typing`: that would take longest of what a Ctrl-C can meet before a command begins.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from treadle.agent.agent import Agent as Agent
    from treadle.agent.run_stream import RunStream as RunStream
    from treadle.agent.session import Session as Session
    from treadle.core.asking import Answer as Answer
    from treadle.core.asking import Question as Question
    from treadle.core.errors import ConfigError as ConfigError
    from treadle.core.errors import ExportError as ExportError
    from treadle.core.errors import JournalError as JournalError
    from treadle.core.errors import LeaseHeldError as LeaseHeldError
    from treadle.core.errors import LeaseLostError as LeaseLostError
    from treadle.core.errors import ProviderError as ProviderError
    from treadle.core.errors import ReplayDivergence as ReplayDivergence
    from treadle.core.errors import RetryWithMessage as RetryWithMessage
    from treadle.core.errors import RunExistsError as RunExistsError
    from treadle.core.errors import RunNotFoundError as RunNotFoundError
    from treadle.core.errors import SandboxError as SandboxError
    from treadle.core.errors import ToolError as ToolError
    from treadle.core.errors import TreadleError as TreadleError
    from treadle.core.errors import UntrustedError as UntrustedError
    from treadle.core.events.narrowing import Ephemeral as Ephemeral
    from treadle.core.events.narrowing import Event as Event
    from treadle.core.policy import Approval as Approval
    from treadle.core.policy import InDoubt as InDoubt
    from treadle.core.policy import Policy as Policy
    from treadle.core.policy import ToolLimits as ToolLimits
    from treadle.core.replay import Replay as Replay
    from treadle.core.types import Effect as Effect
    from treadle.core.types import Fault as Fault
    from treadle.core.types import FinishReason as FinishReason
    from treadle.core.types import Message as Message
    from treadle.core.types import Option as Option
    from treadle.core.types import Role as Role
    from treadle.core.types import StopReason as StopReason
    from treadle.core.types import ToolCall as ToolCall
    from treadle.core.types import ToolResult as ToolResult
    from treadle.core.types import ToolSpec as ToolSpec
    from treadle.core.types import Usage as Usage
    from treadle.journal.registry import open_journal as open_journal
    from treadle.journal.run_info import RunFilter as RunFilter
    from treadle.journal.run_info import RunInfo as RunInfo
    from treadle.knowledge.personas.persona import Persona as Persona
    from treadle.models.config.recipe import model as model
    from treadle.models.scripted import ScriptedModel as ScriptedModel
    from treadle.models.wire.provider import Price as Price
    from treadle.runs.ensure import Batch as Batch
    from treadle.runs.options import RunContext as RunContext
    from treadle.runs.run import Run as Run
    from treadle.runs.task import Grade as Grade
    from treadle.runs.task import Task as Task
    from treadle.tasks import load_task as load_task
    from treadle.tasks import task_set as task_set
    from treadle.tools.context import ToolContext as ToolContext
    from treadle.tools.function.decorator import tool as tool
    from treadle.tools.protocol import ApprovalRequest as ApprovalRequest
    from treadle.tools.protocol import Attachment as Attachment
    from treadle.tools.protocol import Decision as Decision
    from treadle.tools.protocol import ToolOutput as ToolOutput
    from treadle.trajectory.turns import EventLogger as EventLogger
    from treadle.trajectory.turns import turns as turns

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name)


def __dir__() -> list[str]:
    from treadle.core.registry import load_name

    return sorted({*globals(), *load_name(__name__, "__all__")})
