"""Models of transformers in this process, `hf:FOLDER`: exact token ids and logprobs, and no server.

Requests that wait at the same time are sampled as one batch, in a thread of the network. The log probabilities are
those of the distribution that was sampled from, after temperature, top-k and top-p.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from msgspec import Struct, field
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ContextOverflowError, ServerError
from treadle.core.registry import check_options, require
from treadle.core.tokens.logprobs_mode import LogprobsMode
from treadle.core.tokens.packed import pack_ids, pack_logprobs
from treadle.core.types import FinishReason, Settings
from treadle.journal.named_files import suggest_path
from treadle.models.protocol import Watch
from treadle.models.tokens.protocol import Generated
from treadle.models.tokens.token_model import TokenModel
from treadle.renderers.registry import load_renderer
from treadle.renderers.tokenizer import FileTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treadle.models.config.bare import ModelConfig
    from treadle.renderers.protocol import Renderer

_PACKAGES = "torch transformers"
_OPTIONS = frozenset(("adapter", "batch_size", "device", "dtype", "format", "renderer"))
_EXTRA = frozenset(("top_k",))
_USUAL_TOKENS = 2048
"""The longest answer if neither the settings nor the model have a limit."""
_STOP_WINDOW = 64
"""How many of the newest ids are searched for a text that ends the answer."""


class _Sampling(Struct, eq=False):
    """One answer while it is sampled."""

    prompt: list[int]
    limit: int
    settings: Settings
    ends: frozenset[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None
    tell: Callable[[int], None] | None = None
    is_left: bool = False
    """True if nobody waits for the answer any more."""
    made: Future[None] = field(default_factory=Future)
    draws: Any = None

    @property
    def is_done(self) -> bool:
        return self.is_left or self.finish is not None


class Network:
    """A causal language model of transformers, and the thread that samples from it."""

    def __init__(self, network: Any, *, batch_size: int = 8) -> None:
        """Keep a model of transformers on its device. `batch_size` is how many answers are sampled at a time."""
        self.network = network
        self.batch_size = batch_size
        config = getattr(network.config, "text_config", None) or network.config
        found = getattr(config, "max_position_embeddings", None)
        self.context_tokens: int | None = found if isinstance(found, int) and found > 0 else None
        # A model with an adapter takes any argument, and hands it to the model within.
        inner = network.get_base_model() if hasattr(network, "get_base_model") else network
        taken = inspect.signature(inner.forward).parameters
        self._more = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        self._cache = "cache" if "cache" in taken else "past_key_values"
        """The name of the cache, which transformers 5 has changed."""
        self._waiting: deque[_Sampling] = deque()
        self._thread = ThreadPoolExecutor(1, "treadle-network")

    async def sample(self, asked: _Sampling) -> None:
        """Sample an answer into `asked`. A cancellation leaves the batch."""
        self._waiting.append(asked)
        self._thread.submit(self._work)
        try:
            await asyncio.wrap_future(asked.made)
        finally:
            asked.is_left = True

    def _work(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(self.batch_size, len(self._waiting)))]
        batch = [item for item in batch if not item.is_done]
        try:
            if batch:
                self._sample(batch)
            error = None
        except Exception as raised:
            error = ServerError(
                f"transformers failed: {raised!r:.500}; give a smaller batch_size if memory ran out"
            )
        for item in batch:
            if item.made.set_running_or_notify_cancel():
                item.made.set_result(None) if error is None else item.made.set_exception(error)

    @contextmanager
    def _evaluating(self) -> "Iterator[None]":
        """Sample without dropout and gradients, also from a model under training."""
        torch = require("torch", install=_PACKAGES)
        was_training = self.network.training
        self.network.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.network.train(was_training)

    def _sample(self, batch: list[_Sampling]) -> None:
        torch = require("torch", install=_PACKAGES)
        device, width = self.network.device, max([len(item.prompt) for item in batch])
        padding = [width - len(item.prompt) for item in batch]
        fresh = torch.tensor([[0] * pad + item.prompt for pad, item in zip(padding, batch, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding])
        fresh, mask = fresh.to(device), mask.to(device)
        for item in batch:
            if item.settings.seed is not None:
                item.draws = torch.Generator().manual_seed(
                    crc32(f"{item.settings.seed} {item.prompt}".encode())
                )
        cache = None
        with self._evaluating():
            while True:
                places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -fresh.shape[1] :]
                seen = self.network(
                    input_ids=fresh,
                    attention_mask=mask,
                    position_ids=places,
                    use_cache=True,
                    **{self._cache: cache},
                    **self._more,
                )
                cache = seen[self._cache]
                logits_S = seen.logits[:, -1].float().cpu()
                newest = [
                    0 if item.is_done else _draw(torch, item, logits)
                    for item, logits in zip(batch, logits_S, strict=True)
                ]
                if all(item.is_done for item in batch):
                    return
                fresh = torch.tensor(newest, device=device)[:, None]
                mask = torch.cat([mask, torch.ones_like(fresh)], -1)


def _draw(torch: Any, item: _Sampling, logits: Any) -> int:
    """Sample the next id of an answer, whose logits have the shape [V]."""
    settings, scaled = item.settings, logits
    temperature = 1.0 if settings.temperature is None else settings.temperature
    top_k, top_p = int((settings.extra or {}).get("top_k") or 0), settings.top_p
    if temperature == 0:
        top_k = 1
    else:
        scaled = logits / temperature
    if top_k > 0:
        best = scaled.topk(min(top_k, len(scaled)))
        scaled = torch.full_like(scaled, -torch.inf).scatter(0, best.indices, best.values)
    if top_p is not None and top_p < 1:
        ordered, places = scaled.sort(descending=True)
        odds = ordered.softmax(-1)
        # The first id stays, also if it alone has more than top-p.
        ordered[(odds.cumsum(-1) - odds) >= max(top_p, 1e-9)] = -torch.inf
        scaled = torch.full_like(scaled, -torch.inf).scatter(0, places, ordered)
    logprobs = scaled.log_softmax(-1)
    number = int(torch.multinomial(logprobs.exp(), 1, generator=item.draws))
    item.ids.append(number)
    item.logprobs.append(float(logprobs[number]))
    if item.tell is not None:
        item.tell(number)
    if number in item.ends:
        item.finish = FinishReason.STOP
    elif len(item.ids) >= item.limit:
        item.finish = FinishReason.LENGTH
    return number


class InProcessEngine:
    """An engine that samples from a network of this process; see `TokenEngine`."""

    def __init__(
        self,
        name: str,
        network: Network,
        decode: Callable[[Sequence[int]], str],
        *,
        weight_version: str | None = None,
    ) -> None:
        """Make an engine. `decode` returns the text of ids, in which texts that end an answer are searched for."""
        self.name = name
        self._network = network
        self._decode = decode
        self._weight_version = weight_version
        self.own_decode: Callable[[Sequence[int]], str] | None = None
        """What the model's own tokenizer decodes ids with, if a renderer was given; `None` if it is not known."""

    async def find_text(self, token_ids: Sequence[int]) -> str | None:
        """Return the text that ids are for the model; `None` if it is not known."""
        return None if self.own_decode is None else self.own_decode(token_ids)

    async def find_context_tokens(self) -> int | None:
        """Return how many tokens the model's context holds; `None` if its configuration does not say."""
        return self._network.context_tokens

    async def generate(
        self, prompt_ids: Sequence[int], settings: Settings, stop_token_ids: Sequence[int], watch: Watch
    ) -> Generated:
        """See `TokenEngine.generate`. Raises: `ContextOverflowError` if the prompt leaves no room."""
        room = None
        if self._network.context_tokens is not None:
            room = self._network.context_tokens - len(prompt_ids)
            if room <= 0:
                raise ContextOverflowError(
                    f"the prompt has {len(prompt_ids):,} tokens, and {self.name!r} holds "
                    f"{self._network.context_tokens:,}: shorten the messages, or compact them earlier"
                )
        limit = min([n for n in (settings.max_output_tokens or _USUAL_TOKENS, room) if n is not None])
        asked = _Sampling(list(prompt_ids), limit, settings, frozenset(stop_token_ids))
        loop = asyncio.get_running_loop()

        def tell(number: int) -> None:
            if watch.on_token_ids is not None:
                loop.call_soon_threadsafe(watch.on_token_ids, [number])
            if settings.stop and any(
                text in self._decode(asked.ids[-_STOP_WINDOW:]) for text in settings.stop
            ):
                asked.finish = FinishReason.STOP

        asked.tell = tell
        await self._network.sample(asked)
        return Generated(
            token_ids=pack_ids(asked.ids),
            logprobs=pack_logprobs(asked.logprobs),
            finish=asked.finish,
            engine=f"transformers {require('transformers', install=_PACKAGES).__version__}",
            model=self.name.partition(":")[2],
            weight_version=self._weight_version,
        )


def make_network_model(
    name: str,
    network: Network,
    renderer: "Renderer",
    settings: Settings = Settings(),
    *,
    weight_version: str | None = None,
    context_tokens: int | None = None,
) -> TokenModel:
    """Return the model of a network of this process. Raises: `ConfigError` for settings that it does not have."""
    check_options(settings.extra or {}, _EXTRA, f"extra of {name!r}")
    engine = InProcessEngine(name, network, renderer.decode, weight_version=weight_version)
    told = replace(settings, logprobs_mode=LogprobsMode.PROCESSED)
    return TokenModel(engine, renderer, settings=told, context_tokens=context_tokens)


def make_model(config: "ModelConfig") -> TokenModel:
    """Return the model `hf:FOLDER`, or `hf:NAME` of a model on the Hub. Its weights are loaded once.

    The options: `device` (default: a GPU if there is one), `dtype` (default: `float32` on the CPU, and else that of
    the files), `adapter` (the folder of a LoRA of PEFT), `batch_size`. The renderer is the tokenizer in the folder,
    unless another one is given. Raises: `ConfigError`.
    """
    name, given = f"hf:{config.name}", dict(config.options)
    check_options(given, _OPTIONS, f"the model {name!r}")
    form = given.pop("format", None)
    chosen: Any = given.pop("renderer", None)
    folder = _find_folder(config.name)
    has_other = chosen is not None
    if chosen is None:
        chosen = f"hf:{folder}" + (f"?format={form}" if form else "")
    renderer = load_renderer(chosen) if isinstance(chosen, str) else chosen
    network = _load(folder, tuple(sorted(given.items())))
    made = make_network_model(name, network, renderer, config.settings, context_tokens=config.context_tokens)
    own = Path(folder, "tokenizer.json")
    if has_other and own.is_file() and isinstance(made.engine, InProcessEngine):
        made.engine.own_decode = FileTokenizer.from_file(own).decode
    return made


def _find_folder(name: str) -> str:
    """Return the folder of a model, which is brought here from the Hub if it is not one. Raises: `ConfigError`."""
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.absolute())
    if path.is_absolute() or name.startswith("."):
        raise ConfigError(f"there is no folder {name!r}{suggest_path(name)}")
    require("transformers", install=_PACKAGES)
    hub = require("huggingface_hub", install="huggingface-hub")
    try:
        return str(hub.snapshot_download(name, ignore_patterns=["*.pt", "*.bin", "*.gguf", "*.onnx"]))
    except Exception as error:
        raise ConfigError(
            f"there is no folder {name!r}, and the Hub of Hugging Face gives no model of this name: {error}"
            f"{suggest_path(name)}"
        ) from error


@lru_cache
def _load(folder: str, options: tuple[tuple[str, Any], ...]) -> Network:
    """Return the network in a folder. Raises: `ConfigError` if it cannot be loaded."""
    given: Mapping[str, Any] = dict(options)
    torch = require("torch", install=_PACKAGES)
    transformers = require("transformers", install=_PACKAGES)
    device = given.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = given.get("dtype") or ("float32" if device == "cpu" else "auto")
    adapter = given.get("adapter")
    if adapter is not None:
        require("peft", install="peft")
    try:
        network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        if adapter is not None:
            network.load_adapter(str(adapter))
        network = network.to(device).eval()
    except (
        Exception
    ) as error:  # torch asserts that it has CUDA, and libraries of weights have errors of their own
        raise ConfigError(f"transformers cannot load the model in {folder!r}: {error}") from error
    return Network(network, batch_size=int(given.get("batch_size") or 8))
