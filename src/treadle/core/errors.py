"""The exceptions of Treadle. Each is also a built-in exception of the fitting kind, and all can be pickled.

TreadleError
├── ConfigError (ValueError)            an argument or a configuration is wrong
│   ├── MistakesError                   several mistakes, one on each line
│   └── UserCodeError                   a reward, a check or a filter of the user has a mistake
├── ProviderError (RuntimeError)        a model's server failed
│   ├── RateLimitError                  429; `retry_after_seconds`
│   ├── ServerError                     5xx, 529, or an answer that cannot be read
│   ├── TransportError (ConnectionError) no answer, or an incomplete one
│   │   ├── ProviderTimeoutError (TimeoutError)
│   │   ├── HandshakeError              no TLS: the certificate is not trusted, …
│   │   └── LimitReachedError           a job sends no more requests: a limit, or it is to stop
│   ├── AuthenticationError             401, 403
│   ├── RequestError                    any other 4xx
│   ├── UnavailableError                402, 404: no credit is left, or there is no such model
│   ├── ContextOverflowError            the prompt is too long
│   ├── UnsupportedPartError            a message has a part that the dialect cannot send
│   └── RefusedError                    the provider's filter refused the prompt
├── ToolError (RuntimeError)            a tool failed; raise it with a text for the model
│   ├── NoResultError                   the tool's server, sandbox or agent is lost
│   ├── NotAskedError                   a tool's question is not put to the user
│   └── RetryWithMessage                the model should call the tool again, in another way
├── JournalError (RuntimeError)         the store failed or refused
│   ├── RunNotFoundError (LookupError)
│   ├── RunExistsError
│   ├── LeaseHeldError                  another process drives the run
│   ├── LeaseLostError                  another process took the run over
│   ├── UntrustedError                  the run comes from elsewhere; `demands`
│   └── MemoryRefusedError              the policy of the memory refuses a write
├── WorkerError (RuntimeError)          a worker process could not be started, or died
├── ScoringError (RuntimeError)         a scorer failed, so that there is no reward
├── SandboxError (OSError)              a path outside the root, no such file, …
├── ExportError (ValueError)            a row format cannot hold the run
├── PublishError (RuntimeError)         a service for datasets refused an upload or failed
├── FormatError (ValueError)            a text format cannot hold the message
└── ReplayDivergence (AssertionError)   a decision differs from the journal
"""


class TreadleError(Exception):
    """The base of all exceptions that Treadle raises deliberately."""


class ConfigError(TreadleError, ValueError):
    """Raised if an argument, a setting or a configuration file cannot be used."""


class MistakesError(ConfigError):
    """Raised if a configuration has several mistakes. The message has a line for each."""


class ProviderError(TreadleError, RuntimeError):
    """Raised if a model's server fails or answers with an error."""

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
        self.was_sent = True
        """False if the server certainly got no request, because there was no connection."""

    @property
    def may_be_billed(self) -> bool:
        """True if the server may charge for the request: it may have answered, but the answer was lost."""
        if isinstance(self, TransportError):
            return self.was_sent
        return isinstance(self, ServerError) and self.status is not None and self.status < 300


def retold(error: ProviderError, message: str) -> ProviderError:
    """Return an error with the same properties and another message."""
    told = type(error)(message, status=error.status, retry_after_seconds=error.retry_after_seconds)
    told.model, told.was_sent = error.model, error.was_sent
    return told


class RateLimitError(ProviderError):
    """Raised if a server asks to slow down (status 429)."""

    is_retryable = True


class ServerError(ProviderError):
    """Raised if a server fails (status 5xx or 529), or its answer cannot be read."""

    is_retryable = True


class TransportError(ProviderError, ConnectionError):
    """Raised if a connection fails: no answer came, or it was incomplete."""

    is_retryable = True


class ProviderTimeoutError(TransportError, TimeoutError):
    """Raised if an answer does not come in time."""


class HandshakeError(TransportError):
    """Raised if a server is not trusted or does not speak TLS, which no other attempt changes."""

    is_retryable = False


class LimitReachedError(TransportError):
    """Raised instead of sending a request that would exceed a limit of its job, or that failed and would be sent
    again after the job was asked to stop."""

    is_retryable = False

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message, status=status, retry_after_seconds=retry_after_seconds)
        self.was_sent = False


class AuthenticationError(ProviderError):
    """Raised if an API key is missing, wrong or not allowed (status 401 or 403)."""


class RequestError(ProviderError):
    """Raised if a server refuses a request and would refuse it again (any other status 4xx)."""


class UnavailableError(RequestError):
    """Raised if a server has nothing for this account or model: no credit (402), or no such model (404)."""


class ContextOverflowError(RequestError):
    """Raised if a prompt is longer than the model's context."""


class UnsupportedPartError(RequestError):
    """Raised, before anything is sent, if the model's dialect cannot send a part of a message."""


class RefusedError(RequestError):
    """Raised if the provider's filter refuses a prompt."""


class ToolError(TreadleError, RuntimeError):
    """Raised if a tool fails. The model reads its message."""


class NoResultError(ToolError):
    """Raised if a call has no result of its tool: its server, sandbox or agent is lost or does not answer."""


class NotAskedError(ToolError):
    """Raised by `ToolContext.ask` if the policy allows no more questions, or nobody can be asked."""


class RetryWithMessage(ToolError):  # noqa: N818
    """Raised by a tool if the model should call it again, in the way that the message says.

    `tool(max_retries=...)` limits how often that may happen in a row.
    """


class JournalError(TreadleError, RuntimeError):
    """Raised if the store fails or refuses an operation."""


class RunNotFoundError(JournalError, LookupError):
    """Raised if the journal has no run with the given id."""


class RunExistsError(JournalError):
    """Raised if the id of a new run is already in the journal."""


class LeaseHeldError(JournalError):
    """Raised if another process drives the run."""


class LeaseLostError(JournalError):
    """Raised if another process took the run over. Nothing more that this process appends is written."""


class UntrustedError(JournalError):
    """Raised if a run or a persona comes from elsewhere and the user has not said that it is trusted."""

    def __init__(self, run: str, demands: tuple[str, ...], why: str = "") -> None:
        super().__init__(run, demands, why)
        self.run = run
        """The name of the run, of an agent spec of it, or of the file of a persona, for the message."""
        self.why = (
            why or "was imported, or its file was written by another user, machine or version of Treadle,"
        )
        """The reason why it is not trusted, as the middle of a sentence."""
        self.demands = demands
        """What using the run would start, import, open, ask and send: phrases that begin with a verb."""

    def __str__(self) -> str:
        return self.explain("pass trust=True")

    def explain(self, remedy: str) -> str:
        """Return the message; `remedy` is what to do to trust the run."""
        listed = "; ".join(dict.fromkeys(self.demands)) or "nothing"
        return (
            f"{self.run} {self.why} and is not trusted. Using it would: {listed}. If you trust it, {remedy}"
        )


class MemoryRefusedError(JournalError):
    """Raised if the policy of the memory does not allow this author to make this change."""


class WorkerError(TreadleError, RuntimeError):
    """Raised if the processes that drive runs cannot be started, or die again and again."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.place = place
        """The line of the user's code that failed; empty if it is not known."""


class ScoringError(TreadleError, RuntimeError):
    """Raised if a scorer fails. The run then has no reward, which is not the same as a reward of 0."""


class UserCodeError(ConfigError, ScoringError):
    """Raised if code of the user has a mistake: a reward, a check, a filter. The message says in which line."""


class SandboxError(TreadleError, OSError):
    """Raised if a sandbox fails or refuses an operation."""


class ExportError(TreadleError, ValueError):
    """Raised if a run cannot be written in the requested row format."""


class PublishError(TreadleError, RuntimeError):
    """Raised if a service for datasets refuses an upload, or cannot be reached."""


class FormatError(TreadleError, ValueError):
    """Raised if a text format of tool calls cannot express a message, or would parse it to a different one."""


class ReplayDivergence(TreadleError, AssertionError):  # noqa: N818
    """Raised if a decision differs from the one in the journal."""

    def __init__(self, seq: int, expected: str, actual: str) -> None:
        super().__init__(seq, expected, actual)
        self.seq = seq
        """The number of the first event that differs."""
        self.expected = expected
        self.actual = actual
        """What replay decided, in words."""

    def __str__(self) -> str:
        return f"first divergence at seq {self.seq}: the journal has {self.expected}, replay decided {self.actual}"
