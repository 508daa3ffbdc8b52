"""The length of what a run's model wrote."""

from treadle.core.errors import ConfigError
from treadle.scoring.protocol import Score, Subject


class LengthScorer:
    """A reward of 1 up to `max_tokens` output tokens, falling evenly to 0 at `zero_tokens`.

    Source: the soft penalty for overlong answers of DAPO (arXiv 2503.14476, section 3.4), shifted to 0..1.
    """

    def __init__(self, name: str = "length", *, max_tokens: int, zero_tokens: int | None = None) -> None:
        """Make a scorer. `zero_tokens` is twice `max_tokens` unless it is given. Raises: `ConfigError`."""
        zero_tokens = 2 * max_tokens if zero_tokens is None else zero_tokens
        if not 0 < max_tokens < zero_tokens:
            raise ConfigError(
                f"the reward {name!r} has max_tokens {max_tokens!r} and zero_tokens {zero_tokens!r}; give positive "
                "numbers, the second one larger"
            )
        self.name = name
        self._max_tokens = max_tokens
        self._zero_tokens = zero_tokens

    async def score(self, subject: Subject) -> Score | None:
        """See `Scorer.score`."""
        tokens = subject.run.usage.output_tokens
        over = (tokens - self._max_tokens) / (self._zero_tokens - self._max_tokens)
        return Score(min(1.0, max(0.0, 1.0 - over)), f"{tokens:,} output tokens")
