"""The error tree: one class per boundary crossed, each also a fitting built-in, all picklable.

TreadleError
├── ConfigError (ValueError)            what the caller wrote is wrong
├── ProviderError (RuntimeError)        a model's server
│   ├── RateLimitError                  429; `retry_after_seconds`
│   ├── ServerError                     5xx, 529, or an answer that makes no sense
│   ├── TransportError (ConnectionError) no answer, or one cut off
│   │   └── ProviderTimeoutError (TimeoutError)
│   ├── AuthenticationError             401, 403
│   ├── RequestError                    any other 4xx
│   ├── ContextOverflowError            the prompt does not fit
│   ├── UnsupportedPartError            a message has a part that the dialect cannot send
│   └── RefusedError                    the provider's filter refused the prompt
├── ToolError (RuntimeError)            a tool; raise it for an error the model should read
├── JournalError (RuntimeError)         the store
│   ├── RunNotFoundError (LookupError)
│   ├── RunExistsError
│   ├── LeaseHeldError                  another process drives the run
│   └── LeaseLostError                  another process took the run over
├── SandboxError (OSError)              a path outside the root, no such file, …
├── ExportError (ValueError)            a run that a format cannot carry
├── FormatError (ValueError)            a message that a text format cannot carry
└── ReplayDivergence (AssertionError)   a decision that differs from the journal
"""


class TreadleError(Exception):
    """Root of all errors that Treadle raises on purpose."""


class ConfigError(TreadleError, ValueError):
    """What the caller wrote cannot be used as it is."""


class ProviderError(TreadleError, RuntimeError):
    """A model's server failed or answered with an error."""

    is_retryable = False
    """Whether the same request may succeed later."""

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status, `None` if no answer came."""
        self.retry_after_seconds = retry_after_seconds
        """How long the server asked to wait; `None`: it did not say."""
        self.model: str | None = None
        """Which model failed, where several were asked."""

    def __reduce__(self) -> tuple[object, ...]:
        fields = (str(self), self.status, self.retry_after_seconds, self.model)
        return (_rebuild_provider_error, (type(self), *fields))


def _rebuild_provider_error(
    kind: type[ProviderError],
    message: str,
    status: int | None,
    retry_after_seconds: float | None,
    model: str | None,
) -> ProviderError:
    error = kind(message, status=status, retry_after_seconds=retry_after_seconds)
    error.model = model
    return error


class RateLimitError(ProviderError):
    """The server asks to slow down (429)."""

    is_retryable = True


class ServerError(ProviderError):
    """The server failed (5xx, 529), or its answer makes no sense."""

    is_retryable = True


class TransportError(ProviderError, ConnectionError):
    """No answer came, or it was cut off."""

    is_retryable = True


class ProviderTimeoutError(TransportError, TimeoutError):
    """No answer came in time."""


class AuthenticationError(ProviderError):
    """The key is missing, wrong or not allowed (401, 403)."""


class RequestError(ProviderError):
    """The server refuses this request, and would again (other 4xx)."""


class ContextOverflowError(RequestError):
    """The prompt is longer than the model's context."""


class UnsupportedPartError(RequestError):
    """A message has a part that the model's dialect cannot send; nothing was sent."""


class RefusedError(RequestError):
    """The provider's filter refused the prompt."""


class ToolError(TreadleError, RuntimeError):
    """A tool failed. Its message is what the model reads."""


class JournalError(TreadleError, RuntimeError):
    """The store failed or refused."""


class RunNotFoundError(JournalError, LookupError):
    """The journal holds no such run."""


class RunExistsError(JournalError):
    """The journal already holds a run of this id."""


class LeaseHeldError(JournalError):
    """Another process is driving the run."""


class LeaseLostError(JournalError):
    """Another process took the run over; nothing more of this one is written."""


class SandboxError(TreadleError, OSError):
    """A sandbox refused or failed."""


class ExportError(TreadleError, ValueError):
    """A run cannot be written in the format asked for."""


class FormatError(TreadleError, ValueError):
    """A message cannot be written in a text format of tool calls, or would be read otherwise."""


class ReplayDivergence(TreadleError, AssertionError):  # noqa: N818
    """A decision differs from the one in the journal."""

    def __init__(self, seq: int, expected: str, actual: str) -> None:
        super().__init__(seq, expected, actual)
        self.seq = seq
        """The first event that differs."""
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f"first divergence at seq {self.seq}: the journal has {self.expected}, replay decided {self.actual}"
