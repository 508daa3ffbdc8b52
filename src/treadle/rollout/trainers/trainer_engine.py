"""The engine of a trainer as a model: it is called with token ids within the trainer's process."""

import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from treadle.core.errors import ConfigError, ContextOverflowError, ExportError, ServerError, TreadleError
from treadle.core.tokens.logprobs_mode import LogprobsMode
from treadle.core.tokens.routed_experts import RoutedExperts
from treadle.core.tokens.token_record import SamplingMask
from treadle.core.types import Json, Settings
from treadle.models.protocol import Watch
from treadle.models.tokens.engines.http_engine import make_generated
from treadle.models.tokens.protocol import Generated, PromptIds
from treadle.models.tokens.token_model import TokenModel
from treadle.renderers.protocol import Renderer
from treadle.renderers.registry import load_renderer
from treadle.trajectory.tokens.trajectories import Span

Ask: TypeAlias = Callable[[list[int], dict[str, Json]], Awaitable[Mapping[str, Any]]]
"""A function of the ids of a prompt and the sampling parameters, in vLLM's names. It returns the arguments of
`make_generated`: `ids`, `logprobs`, `finish` (`stop`, `length`, `abort`, or `None` if the engine does not tell the
first two apart), and further ones."""


class TrainerEngine:
    """A trainer's engine for the answers of one rollout."""

    def __init__(
        self,
        name: str,
        ask: Ask,
        params: Mapping[str, Json],
        *,
        prompt_tokens: int,
        context_tokens: int,
        response_tokens: int | None = None,
        logprobs_mode: LogprobsMode | None = None,
    ) -> None:
        """Make an engine.

        `params` are the trainer's sampling parameters. The trainer takes prompts of `prompt_tokens`, and sequences
        of `context_tokens` with at most `response_tokens` from the first sampled token on. `logprobs_mode` says
        what the engine's log probabilities are of; `None` if it is not known.
        """
        self.name = name
        self._ask = ask
        self._params = dict(params)
        self._mode = logprobs_mode
        self._longest_prompt = prompt_tokens
        self._context_tokens = context_tokens
        self._response_tokens = context_tokens if response_tokens is None else response_tokens
        self._prompt_tokens: int | None = None
        """The size of the shortest prompt so far."""
        self.seconds = 0.0
        """How long the engine has worked on answers."""

    def model(self, renderer: Renderer) -> TokenModel:
        """Return the model of the rollout, which records the sampling parameters as its settings."""
        settings = read_params(self._params, self._mode)
        return TokenModel(self, renderer, settings=settings, context_tokens=self._context_tokens)

    async def generate(
        self, prompt_ids: Sequence[int], settings: Settings, stop_token_ids: Sequence[int], watch: Watch
    ) -> Generated:
        """Return what the trainer's engine samples; see `TokenEngine.generate`.

        Raises: `ContextOverflowError` if the trainer takes no more tokens of this rollout; `ServerError` if the
        engine fails.
        """
        prompt = PromptIds.of(prompt_ids)
        self._prompt_tokens = min(len(prompt), self._prompt_tokens or len(prompt))
        if self._prompt_tokens > self._longest_prompt:
            raise ConfigError(
                f"the prompt of a rollout has {len(prompt):,} tokens, and the trainer takes "
                f"{self._longest_prompt:,}; raise its longest prompt, or leave the row out"
            )
        begun = len(prompt) - self._prompt_tokens
        limit = min(self._response_tokens - begun, self._context_tokens - len(prompt))
        if limit < 1:
            raise ContextOverflowError(
                f"the rollout has {len(prompt):,} tokens, {begun:,} of them after its prompt, and the trainer "
                f"takes {self._context_tokens:,} and {self._response_tokens:,}"
            )
        if settings.max_output_tokens is not None:
            limit = min(limit, settings.max_output_tokens)
        asked = {**self._params, "max_tokens": limit, "stop_token_ids": list(stop_token_ids)}
        begin = time.monotonic()
        try:
            told = dict(await self._ask(list(prompt), asked))
            ids = list(told.pop("ids"))
            if told["finish"] is None:
                is_cut = len(ids) >= limit and ids[-1] not in stop_token_ids
                told["finish"] = "length" if is_cut else "stop" if ids else "abort"
            return make_generated(ids, counted=len(ids), prompt=(prompt, None), engine=self.name, **told)
        except TreadleError:
            raise
        except Exception as error:
            raise ServerError(f"{self.name} failed: {type(error).__name__}: {error}") from error
        finally:
            self.seconds += time.monotonic() - begin


def read_array(found: Any) -> RoutedExperts | None:
    """Return the routed experts in an array or nested lists of a trainer, of the shape [tokens, layers, chosen]."""
    if found is None:
        return None
    import numpy as np

    array = np.asarray(found).astype("<i4")
    rows, layers, chosen = array.shape
    return RoutedExperts.of(rows, layers, chosen, 4, array.tobytes())


def write_array(experts: RoutedExperts | None) -> Any:
    """Return routed experts as an array of numpy, as trainers take them."""
    if experts is None:
        return None
    import numpy as np

    shape = experts.end, experts.layers, experts.chosen
    return np.frombuffer(experts.data, f"<u{experts.width}").astype("int16").reshape(shape)


def read_support(found: Any) -> SamplingMask:
    """Return the sampling mask in an array of a trainer, of the shape [tokens, width], whose rows end with -1."""
    import numpy as np

    array = np.asarray(found).astype("<i4")
    is_id = array >= 0
    return SamplingMask(array[is_id].tobytes(), is_id.sum(1).astype("<i4").tobytes())


def write_support(spans: Sequence[Span], begin: int, end: int, width: int) -> Any:
    """Return the sampling masks of the positions from `begin` to `end` as `read_support` takes them, an array of
    numpy. Positions without a mask have only -1. Raises: `ExportError` for a mask of more than `width` tokens."""
    import numpy as np

    array = np.full((end - begin, width), -1, "int32")
    for span in spans:
        if span.sampling_mask is None or span.end <= begin:
            continue
        counts = np.frombuffer(span.sampling_mask.counts, "<i4")
        if counts.max(initial=0) > width:
            raise ExportError(
                f"a token of run {span.run_id!r} was chosen from {counts.max()} tokens, and the trainer takes the "
                f"{width} of its top_k"
            )
        rows = np.full((len(counts), width), -1, "int32")
        rows[np.arange(width) < counts[:, None]] = np.frombuffer(span.sampling_mask.token_ids, "<i4")
        first = max(span.start, begin)
        array[first - begin : span.end - begin] = rows[first - span.start :]
    return array


def read_params(params: Mapping[str, Json], mode: LogprobsMode | None) -> Settings:
    """Return a trainer's sampling parameters as settings. `mode` says what its log probabilities are of."""
    given = {key: value for key, value in params.items() if value is not None}
    stop = given.pop("stop", None)
    given.pop("logprobs", None)
    return Settings(
        temperature=given.pop("temperature", None),
        top_p=given.pop("top_p", None),
        max_output_tokens=given.pop("max_tokens", None),
        seed=given.pop("seed", None),
        stop=(stop,) if isinstance(stop, str) else tuple(stop) if stop else None,
        logprobs=True,
        logprobs_mode=mode,
        extra=given or None,
    )


@lru_cache(maxsize=4)
def renderer_of(tokenizer: Any, name: str | None = None) -> Renderer:
    """Return the renderer called `name`, by default that of a tokenizer of transformers and its chat template.

    Raises: `ConfigError` if the tokenizer has no chat template, or none that can be used.
    """
    if name is not None:
        return load_renderer(name)
    with tempfile.TemporaryDirectory(prefix="treadle-tokenizer-") as folder:
        tokenizer.save_pretrained(folder)
        if not (Path(folder) / "tokenizer.json").is_file():
            raise ConfigError(
                f"the tokenizer {type(tokenizer).__name__} has no tokenizer.json; give a renderer, such as "
                "family:qwen3"
            )
        return load_renderer(f"hf:{folder}")
