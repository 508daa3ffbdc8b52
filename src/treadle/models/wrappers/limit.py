"""A model whose requests wait for a limiter."""

from treadle.core.estimates import CHARS_PER_TOKEN
from treadle.core.types import Completion, Message, Request
from treadle.models.protocol import Model, RateLimits, Watch
from treadle.models.wrappers.limiter import Limiter
from treadle.models.wrappers.wrapper import Wrapper

_LEAST_SECONDS = 1.0
"""The shortest wait that is reported."""


class LimitModel(Wrapper):
    """A model whose requests wait for a limiter."""

    CHANGES_ANSWERS = False

    def __init__(self, inner: Model, *, limiter: Limiter) -> None:
        super().__init__(inner)
        self.limiter = limiter

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the inner model's answer, once the limiter admits the request; see `Model.infer`."""
        limiter = self.limiter
        if (held_seconds := limiter.held_seconds) >= _LEAST_SECONDS:
            self._tell(held_seconds, watch)
        permit = await limiter.admit(_count(request) if limiter.counts_tokens else 0, watch.left_seconds)

        def hear(limits: RateLimits) -> None:
            limiter.hear(limits)
            if watch.on_rate_limits is not None:
                watch.on_rate_limits(limits)

        try:
            completion = await self.inner.infer(
                request,
                Watch(
                    watch.on_delta, watch.on_failure, hear, left_seconds=watch.left_seconds, held=watch.held
                ),
            )
        except BaseException as error:
            limiter.finish(permit, error=error)
            raise
        limiter.finish(permit, usage=completion.usage, is_answered=True)
        return completion

    def _tell(self, held_seconds: float, watch: Watch) -> None:
        """Report that the request waits because the server asked for it. A wait that is too long fails in
        `admit`."""
        is_late = watch.left_seconds is not None and held_seconds > watch.left_seconds
        if watch.on_failure is not None and not is_late:
            watch.on_failure(self.limiter.explain_wait(held_seconds), 1, held_seconds)


def _count(request: Request) -> int:
    """Return an estimate of the tokens of a request."""
    _, chars = request.messages.scan(_add_chars, 0)
    return (chars + sum(len(str(tool.parameters)) for tool in request.tools)) // CHARS_PER_TOKEN + 1


def _add_chars(chars: int, message: Message) -> tuple[int, None]:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return chars + len(message.content) + len(message.reasoning or "") + calls + 16, None
