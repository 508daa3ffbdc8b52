"""The types of events and deltas that listeners, streams and journals give.

An event has `run_id`, `seq`, `at` and `type`, and the attributes of its body. It is an instance of its body's
type: `if event.type == "tool_completed"` and `isinstance(event, ToolCompleted)` both tell a type checker which
attributes it has.
"""

from treadle.core.events import ApprovalDecided as ApprovalDecided
from treadle.core.events import ApprovalRequested as ApprovalRequested
from treadle.core.events import ContextCompacted as ContextCompacted
from treadle.core.events import InferenceCompleted as InferenceCompleted
from treadle.core.events import InferenceFailed as InferenceFailed
from treadle.core.events import InferenceStarted as InferenceStarted
from treadle.core.events import MessageInjected as MessageInjected
from treadle.core.events import Noted as Noted
from treadle.core.events import QuestionAnswered as QuestionAnswered
from treadle.core.events import QuestionAsked as QuestionAsked
from treadle.core.events import ReasoningDelta as ReasoningDelta
from treadle.core.events import Rewarded as Rewarded
from treadle.core.events import RunFinished as RunFinished
from treadle.core.events import RunPaused as RunPaused
from treadle.core.events import RunResumed as RunResumed
from treadle.core.events import RunStarted as RunStarted
from treadle.core.events import ServerCallDelta as ServerCallDelta
from treadle.core.events import SnapshotTaken as SnapshotTaken
from treadle.core.events import TextDelta as TextDelta
from treadle.core.events import ToolCallDelta as ToolCallDelta
from treadle.core.events import ToolCompleted as ToolCompleted
from treadle.core.events import ToolProgress as ToolProgress
from treadle.core.events import ToolStarted as ToolStarted
from treadle.core.events import TurnCompleted as TurnCompleted
from treadle.core.events import TurnStarted as TurnStarted
from treadle.core.events.narrowing import Ephemeral as Ephemeral
from treadle.core.events.narrowing import Event as Event
from treadle.core.events.narrowing import Item as Item
