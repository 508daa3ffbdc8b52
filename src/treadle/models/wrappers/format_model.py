"""A model whose tool calls are text: they are written into its transcript, and parsed out of its answers.

It wraps any model that handles only text: a completions server, or a chat endpoint used as plain text. Tools are
described in the system message, results are sent as text, and the model's own text is sent back unchanged. A call
that cannot be parsed is passed to the loop unchanged, so that the model is told what is wrong with it.
"""

from functools import partial

from msgspec.structs import replace

from treadle.core.tool_cache import ToolCache
from treadle.core.types import Completion, FinishReason, OutputMode, Request
from treadle.formats import AUTO, IncrementalParser, Parsed, detect, find_format, parse
from treadle.formats.text_transcript import DeltaReader, TranscriptWriter, calls_of, with_text
from treadle.models.protocol import Model, Watch, identity_of
from treadle.models.wrappers.wrapper import Wrapper


class FormatModel(Wrapper):
    """A model whose tool calls are text in one format. The instructions ask for answers that fit a schema."""

    output_mode = OutputMode.TEXT

    def __init__(
        self,
        inner: Model,
        format: str,
        *,
        begins_in_reasoning: bool | None = False,
    ) -> None:
        """Make a model that speaks `format`.

        `begins_in_reasoning` says whether the prompt ends with the opening tag of thinking; `None`: unknown.
        Raises: `ConfigError` for an unknown format, or if `auto` finds none for the model's name.
        """
        super().__init__(inner)
        self.format = detect(inner.name) if format == AUTO else format
        find_format(self.format)
        self._begins_in_reasoning = begins_in_reasoning
        self._writers = ToolCache(partial(TranscriptWriter, self.format))

    @property
    def identity(self) -> str:
        """The server, the model and the settings that answers depend on; see `identity_of`."""
        return f"{identity_of(self.inner)} {self.format}"

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the answer with the calls parsed out of its text; see `Model.infer`."""
        messages = request.messages.derive(self._writers.find(request.tools))
        # The ids of the inference before help to read the answer, but do not stand for these messages.
        prior = None if request.prior is None else replace(request.prior, messages=0)
        spoken = replace(request, messages=messages, tools=(), required_tool=None, prior=prior)
        if watch.on_delta is None:
            completion = await self.inner.infer(spoken, watch)
        else:
            reader = DeltaReader(self._parser(request), watch.on_delta)
            on_failure = reader.forget_before(watch.on_failure, lambda: self._parser(request))
            heard = replace(watch, on_delta=reader.add, on_failure=on_failure)
            completion = await self.inner.infer(spoken, heard)
            parsed = reader.close()
            if reader.text == completion.message.content:
                return self._read(completion, parsed)
        parsed = parse(
            completion.message.content,
            self.format,
            request.tools,
            begins_in_reasoning=self._begins_in_reasoning,
        )
        return self._read(completion, parsed)

    def _parser(self, request: Request) -> IncrementalParser:
        return IncrementalParser(self.format, request.tools, begins_in_reasoning=self._begins_in_reasoning)

    def _read(self, completion: Completion, parsed: Parsed) -> Completion:
        message = completion.message
        calls = calls_of(parsed, is_cut=completion.finish_reason is FinishReason.LENGTH)
        reasoning = parsed.reasoning
        if message.reasoning:
            reasoning = f"{message.reasoning}\n{reasoning}" if reasoning else message.reasoning
        read = replace(
            message,
            content=parsed.content,
            tool_calls=(*message.tool_calls, *calls),
            reasoning=reasoning,
            opaque=with_text(message, message.content),
        )
        reason = completion.finish_reason
        if calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return replace(completion, message=read, finish_reason=reason)
