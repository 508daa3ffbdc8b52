"""Why the turn of a client has ended without an answer, as the client is told."""

from treadle.core.errors import RateLimitError
from treadle.core.state import Ending
from treadle.core.texts.hiding import hide_servers
from treadle.core.types import StopReason
from treadle.server.admission.access import RequestRefused

NO_RETRY = {"x-should-retry": "false"}
"""The header that keeps the SDKs of the APIs from asking again."""
_BUDGETS = (StopReason.MAX_COST, StopReason.MAX_TOKENS, StopReason.MAX_TOOL_CALLS, StopReason.MAX_STEPS)


class NoAnswerError(RequestRefused):
    """Raised if there is no answer, with what the client is told."""

    def __init__(
        self, message: str, status: int, code: str, after_seconds: float | None = None, attempts: int = 1
    ) -> None:
        """Make an error. The message is one of `hide_servers`, and the run has made so many `attempts`."""
        headers = {} if after_seconds is None else {"retry-after": f"{after_seconds:.0f}"}
        # Otherwise the clients would multiply the attempts.
        super().__init__(status, message, code, headers | (NO_RETRY if attempts > 1 else {}))


def explain_ending(ending: Ending, *, hides_models: bool = True) -> NoAnswerError:
    """Return the error for a turn that ended without an answer. See `hide_servers`."""
    failure, message = ending.failure, ending.error or f"the run stopped: {ending.stop_reason}"
    message = hide_servers(message, hides_models=hides_models)
    if ending.stop_reason in _BUDGETS:
        return NoAnswerError(message, 429, "budget_exceeded")
    if ending.stop_reason is StopReason.CONTEXT_OVERFLOW:
        return NoAnswerError(message, 400, "context_length_exceeded")
    status = None if failure is None else failure.status
    if failure is not None and status is None and failure.error_type == RateLimitError.__name__:
        status = 429  # it was not sent, because the server had asked to wait
    if status in (401, 403):
        message = (
            "the model's server refused the key of this server; its operator finds the reason in the run"
        )
    if failure is None or status in (None, 401, 403) or not 400 <= (status or 0) < 600:
        is_users = failure is not None and failure.error_type in ("ConfigError", "UnsupportedPartError")
        status = 400 if is_users else 502
    attempts = (None, 1) if failure is None else (failure.retry_after_seconds, failure.attempt)
    return NoAnswerError(message, status or 502, "provider_error", *attempts)
