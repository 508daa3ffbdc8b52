"""Random transcripts of runs, and a model that counts the tokens of its prompts and refuses long ones."""

from hypothesis import strategies as st
from msgspec.structs import replace

from treadle import ScriptedModel, tool
from treadle.core.errors import ContextOverflowError
from treadle.core.prompts.estimates import weigh_message, weigh_tools
from treadle.core.types import UNREPORTED, Message, Role, ToolCall, Usage
from treadle.models import call

TEXT = "The handbook says that the river rises in the hills and reaches the sea by noon. "
SUMMARY = "You write the memory"
"""How the request for a summary begins."""


def is_summary_request(request):
    return request.messages[0].content.startswith(SUMMARY)


@tool(effect="pure")
async def look_up(topic: str) -> str:
    """Look a topic up."""
    return f"{topic}: {TEXT * 24}"


def answer(request):
    """Call the tool once in each turn, and say what a summary holds."""
    if is_summary_request(request):
        return f"They talked about rivers, with {len(request.messages[-1].content)} characters."
    if request.messages[-1].role is Role.TOOL:
        return "I have looked it up."
    return [call("look_up", {"topic": "rivers"})]


class Counting(ScriptedModel):
    """A model that counts tokens as `core.tokens` does, times `rate`, and refuses prompts over its `window`."""

    def __init__(self, answers=answer, *, window=None, rate=0.7, tells_usage=True, **options):
        super().__init__(answers, **options)
        self.window, self.rate, self.tells_usage = window, rate, tells_usage
        self.refused = 0
        self.sizes = []

    async def infer(self, request, watch):
        size = weigh_tools(request.tools) + sum(weigh_message(item) for item in request.messages)
        size = int(size * self.rate)
        if self.window is not None and size > self.window:
            self.refused += 1
            raise ContextOverflowError(f"the prompt has {size} tokens, and the window {self.window}")
        done = await super().infer(request, watch)
        if not is_summary_request(request):
            self.sizes.append(size)
        usage = Usage(size, int(weigh_message(done.message) * self.rate)) if self.tells_usage else UNREPORTED
        return replace(done, usage=usage)


texts = st.sampled_from(
    ["", "ja", "a few words", TEXT * 8, "日本語の文章" * 40, "x7Qz" * 200, '{"a": [1, 2, 3]}' * 30]
)


@st.composite
def transcripts(draw):
    """Return a transcript of a run, the position of its newest turn's message, and whether that turn is open."""
    messages = [Message(Role.SYSTEM, draw(texts))] if draw(st.booleans()) else []
    turn_at, calls = 0, 0
    turns = draw(st.integers(1, 6))
    is_open = draw(st.booleans())
    for turn in range(turns):
        turn_at = len(messages)
        messages.append(Message(Role.USER, f"{turn} {draw(texts)}"))
        for _ in range(draw(st.integers(0, 4))):
            ids = [f"c{calls + number}" for number in range(draw(st.integers(1, 3)))]
            calls += len(ids)
            messages.append(
                Message(Role.ASSISTANT, draw(texts), tuple(ToolCall(item, "look_up", "{}") for item in ids))
            )
            messages += [Message(Role.TOOL, draw(texts), call_id=item, name="look_up") for item in ids]
        if turn < turns - 1 or not is_open:
            messages.append(Message(Role.ASSISTANT, f"answer {turn} {draw(texts)}"))
    return messages, turn_at, is_open
