"""A torch model behind the endpoints of vLLM, in the process that trains it.

It samples one request at a time, which is enough for small models. For large ones, run vLLM or SGLang itself: the
rollouts use the same endpoints.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from treadle.testbed.engines import DrawnToken, Template, Variant
from treadle.testbed.engines.bpe import byte_tokenizer, tokenizer


class TorchPolicy:
    """A model of `transformers` as the policy of a mock engine."""

    def __init__(self, network: Any, template: Any, device: str = "cpu") -> None:
        self.network = network.to(device)
        self.template = template
        self.device = device

    def logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the logprob of each id after the ones before it, without the first, by one forward pass."""
        found = torch.tensor([list(ids)], device=self.device)
        return (
            self.network(found[:, :-1]).logits.float().log_softmax(-1)[0].gather(1, found[0, 1:, None])[:, 0]
        )

    @torch.no_grad()
    def sample(
        self, ids: Sequence[int], version: str, seed: str, temperature: float = 1.0
    ) -> Iterator[DrawnToken]:
        """Yield ids that follow `ids`; see `Policy.sample` of the mock engine."""
        draws = torch.Generator().manual_seed(crc32(seed.encode()))
        fresh, cache = torch.tensor([list(ids)], device=self.device), None
        while True:
            seen = self.network(fresh, past_key_values=cache, use_cache=True)
            cache, logits = seen.past_key_values, seen.logits[0, -1].float()
            odds = (logits / max(temperature, 1e-6)).softmax(-1).cpu()
            number = int(torch.multinomial(odds, 1, generator=draws))
            yield DrawnToken(number, float(logits.log_softmax(-1)[number]))
            if number == self.template.end:
                return
            fresh = torch.tensor([[number]], device=self.device)


def make_tiny(*, is_bytes: bool = True, seed: int = 0) -> TorchPolicy:
    """Return a model of two layers with random weights, whose ids are bytes or those of the mock engines."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # More threads only wait for each other.
    variants = frozenset((Variant.BYTES,)) if is_bytes else frozenset()
    template = Template(byte_tokenizer() if is_bytes else tokenizer(), variants)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=template.bpe.size, max_position_embeddings=8192, **shape)
    return TorchPolicy(LlamaForCausalLM(config).float(), template)


def load_large(name: str) -> TorchPolicy:
    """Return a model from a folder or from the hub of Hugging Face, on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    words = AutoTokenizer.from_pretrained(name)
    network = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16 if device == "cuda" else None)
    # The endpoints for token ids need no more of a template than this.
    bpe = SimpleNamespace(
        decode=words.decode, content=lambda ids: words.decode(ids).encode(), size=len(words)
    )
    return TorchPolicy(network, SimpleNamespace(bpe=bpe, end=words.eos_token_id, opening=""), device)


def find_renderer(name: str | None) -> str:
    """Return the renderer of a model."""
    if name is None:
        return "chatml"
    if Path(name).is_dir():
        return f"hf:{name}"
    from huggingface_hub import snapshot_download

    return f"hf:{snapshot_download(name, allow_patterns=['*.json', '*.jinja'])}"
