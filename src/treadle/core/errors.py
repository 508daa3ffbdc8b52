"""The exceptions of Treadle. Each is also a built-in exception of the fitting kind, and all can be pickled.

TreadleError
├── ConfigError (ValueError)            an argument or a configuration is wrong
├── ProviderError (RuntimeError)        a model's server failed
│   ├── RateLimitError                  429; `retry_after_seconds`
│   ├── ServerError                     5xx, 529, or an answer that cannot be read
│   ├── TransportError (ConnectionError) no answer, or an incomplete one
│   │   └── ProviderTimeoutError (TimeoutError)
│   ├── AuthenticationError             401, 403
│   ├── RequestError                    any other 4xx
│   ├── ContextOverflowError            the prompt is too long
│   ├── UnsupportedPartError            a message has a part that the dialect cannot send
│   └── RefusedError                    the provider's filter refused the prompt
├── ToolError (RuntimeError)            a tool failed; raise it with a text for the model
├── JournalError (RuntimeError)         the store failed or refused
│   ├── RunNotFoundError (LookupError)
│   ├── RunExistsError
│   ├── LeaseHeldError                  another process drives the run
│   └── LeaseLostError                  another process took the run over
├── SandboxError (OSError)              a path outside the root, no such file, …
├── ExportError (ValueError)            a row format cannot hold the run
├── FormatError (ValueError)            a text format cannot hold the message
└── ReplayDivergence (AssertionError)   a decision differs from the journal
"""


class TreadleError(Exception):
    """The base of all exceptions that Treadle raises deliberately."""


class ConfigError(TreadleError, ValueError):
    """An argument, a setting or a configuration file that cannot be used."""


class ProviderError(TreadleError, RuntimeError):
    """A failure of a model's server, or an error that it answered."""

    is_retryable = False
    """True if the same request may succeed later."""

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; `None` if no answer came."""
        self.retry_after_seconds = retry_after_seconds
        """How long the server asked to wait; `None` if it did not say."""
        self.model: str | None = None
        """The name of the model that failed; `None` if only one model was asked."""

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
    """A server's request to slow down (status 429)."""

    is_retryable = True


class ServerError(ProviderError):
    """A failure within the server (status 5xx or 529), or an answer that cannot be read."""

    is_retryable = True


class TransportError(ProviderError, ConnectionError):
    """A failure of the connection: no answer came, or it was incomplete."""

    is_retryable = True


class ProviderTimeoutError(TransportError, TimeoutError):
    """An answer that did not come in time."""


class AuthenticationError(ProviderError):
    """An API key that is missing, wrong or not allowed (status 401 or 403)."""


class RequestError(ProviderError):
    """A request that the server refuses and would refuse again (any other status 4xx)."""


class ContextOverflowError(RequestError):
    """A prompt that is longer than the model's context."""


class UnsupportedPartError(RequestError):
    """A message part that the model's dialect cannot send. It is raised before anything is sent."""


class RefusedError(RequestError):
    """A prompt that the provider's filter refused."""


class ToolError(TreadleError, RuntimeError):
    """A failure of a tool. The model reads its message."""


class JournalError(TreadleError, RuntimeError):
    """A failure or a refusal of the store."""


class RunNotFoundError(JournalError, LookupError):
    """A run id that the journal does not hold."""


class RunExistsError(JournalError):
    """A run id for a new run that the journal already holds."""


class LeaseHeldError(JournalError):
    """A run that another process is driving."""


class LeaseLostError(JournalError):
    """A run that another process took over; nothing more that this process appends is written."""


class SandboxError(TreadleError, OSError):
    """A failure or a refusal of a sandbox."""


class ExportError(TreadleError, ValueError):
    """A run that cannot be written in the requested row format."""


class FormatError(TreadleError, ValueError):
    """A message that a text format of tool calls cannot hold, or that would be parsed to a different message."""


class ReplayDivergence(TreadleError, AssertionError):  # noqa: N818
    """A decision that differs from the one in the journal."""

    def __init__(self, seq: int, expected: str, actual: str) -> None:
        super().__init__(seq, expected, actual)
        self.seq = seq
        """The number of the first event that differs."""
        self.expected = expected
        """The event in the journal, in words."""
        self.actual = actual
        """What replay decided, in words."""

    def __str__(self) -> str:
        return f"first divergence at seq {self.seq}: the journal has {self.expected}, replay decided {self.actual}"
