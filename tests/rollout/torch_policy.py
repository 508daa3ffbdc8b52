"""A torch model with random weights as the policy of a mock engine."""

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from treadle.testbed.engines import DrawnToken, Template
from treadle.testbed.engines.bpe import tokenizer


class TorchPolicy:
    """A model of `transformers` as a policy."""

    def __init__(self, network: Any, template: Any) -> None:
        self.network = network
        self.template = template

    def logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the logprob of each id after the ones before it, without the first, by one forward pass."""
        found = torch.tensor([list(ids)])
        return self.network(found[:, :-1]).logits.log_softmax(-1)[0].gather(1, found[0, 1:, None])[:, 0]

    @torch.no_grad()
    def sample(
        self, ids: Sequence[int], version: str, seed: str, temperature: float = 1.0
    ) -> Iterator[DrawnToken]:
        """Yield ids that follow `ids`; see `TokenPolicy.sample`."""
        draws = torch.Generator().manual_seed(crc32(seed.encode()))
        fresh, cache = torch.tensor([list(ids)]), None
        while True:
            seen = self.network(fresh, past_key_values=cache, use_cache=True)
            cache, logits = seen.past_key_values, seen.logits[0, -1]
            odds = (logits / max(temperature, 1e-6)).softmax(-1)
            number = int(torch.multinomial(odds, 1, generator=draws))
            yield DrawnToken(number, float(logits.log_softmax(-1)[number]))
            if number == self.template.end:
                return
            fresh = torch.tensor([[number]])


def make_tiny(seed: int = 0) -> TorchPolicy:
    """Return a model of two layers with random weights, whose ids are those of the mock engines."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # More threads only wait for each other.
    template = Template(tokenizer())
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=template.bpe.size, max_position_embeddings=8192, **shape)
    return TorchPolicy(LlamaForCausalLM(config).float(), template)
