"""The events of a run, their codec and their version.

An `Event` is one record of a journal. Its body is one of a fixed set of structs, told apart by the field `type`.
There is a file for each family of bodies: `run`, `turn`, `inference`, `tool` and `asking`. `codec` reads and writes
them, `body` also has what is streamed and never journalled, and `narrowing` has the types that type checkers see.
Other code imports the package as `e`.

To add a type of event: add its struct to the file of its family, to `DurableBody` in `codec`, to `narrowing`, to
`treadle.events`, and its handler to `core.state`. A field that is added to a body must be optional.
"""

from treadle.core.events.asking import ApprovalDecided as ApprovalDecided
from treadle.core.events.asking import ApprovalRequested as ApprovalRequested
from treadle.core.events.asking import QuestionAnswered as QuestionAnswered
from treadle.core.events.asking import QuestionAsked as QuestionAsked
from treadle.core.events.body import VERSION as VERSION
from treadle.core.events.body import Body as Body
from treadle.core.events.body import BodyWithContents as BodyWithContents
from treadle.core.events.body import Delta as Delta
from treadle.core.events.body import ReasoningDelta as ReasoningDelta
from treadle.core.events.body import ServerCallDelta as ServerCallDelta
from treadle.core.events.body import TextDelta as TextDelta
from treadle.core.events.body import ToolCallDelta as ToolCallDelta
from treadle.core.events.body import ToolProgress as ToolProgress
from treadle.core.events.body import is_since as is_since
from treadle.core.events.codec import EVENT_TYPES as EVENT_TYPES
from treadle.core.events.codec import DurableBody as DurableBody
from treadle.core.events.codec import Ephemeral as Ephemeral
from treadle.core.events.codec import Event as Event
from treadle.core.events.codec import decode_body as decode_body
from treadle.core.events.codec import decode_line as decode_line
from treadle.core.events.codec import digests_of as digests_of
from treadle.core.events.codec import encode_body as encode_body
from treadle.core.events.codec import encode_lines as encode_lines
from treadle.core.events.inference import InferenceCompleted as InferenceCompleted
from treadle.core.events.inference import InferenceFailed as InferenceFailed
from treadle.core.events.inference import InferenceStarted as InferenceStarted
from treadle.core.events.run import LEFT as LEFT
from treadle.core.events.run import SET_ASIDE as SET_ASIDE
from treadle.core.events.run import Noted as Noted
from treadle.core.events.run import Rewarded as Rewarded
from treadle.core.events.run import RunFinished as RunFinished
from treadle.core.events.run import RunPaused as RunPaused
from treadle.core.events.run import RunResumed as RunResumed
from treadle.core.events.run import RunStarted as RunStarted
from treadle.core.events.run import read_version_1 as read_version_1
from treadle.core.events.tool import SnapshotTaken as SnapshotTaken
from treadle.core.events.tool import ToolCompleted as ToolCompleted
from treadle.core.events.tool import ToolStarted as ToolStarted
from treadle.core.events.turn import ContextCompacted as ContextCompacted
from treadle.core.events.turn import MessageInjected as MessageInjected
from treadle.core.events.turn import TurnCompleted as TurnCompleted
from treadle.core.events.turn import TurnStarted as TurnStarted
