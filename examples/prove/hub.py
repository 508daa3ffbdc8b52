"""A model of Hugging Face with the methods of `network.Network` that RL and serving need."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM


class HubNetwork(nn.Module):
    """A model from a folder or from the hub. It samples one prompt after another; vLLM and SGLang are faster."""

    def __init__(self, name: str, device: str) -> None:
        super().__init__()
        kind = torch.float32 if device == "cpu" else torch.bfloat16
        self.inner = AutoModelForCausalLM.from_pretrained(name, dtype=kind).to(device)

    def logprobs(self, ids: Tensor) -> Tensor:
        """See `Network.logprobs`."""
        logits = self.inner(ids[:, :-1]).logits.float()
        return -functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        draws: Sequence[Random],
        limits: Sequence[int],
        stops: set[int],
        temperatures: Sequence[float],
    ) -> list[list[tuple[int, float]]]:
        """See `Network.sample`."""
        found = []
        for prompt, own, limit, temperature in zip(prompts, draws, limits, temperatures, strict=True):
            answer: list[tuple[int, float]] = []
            fresh, cache = torch.tensor([prompt], device=self.inner.device), None
            while len(answer) < limit and (not answer or answer[-1][0] not in stops):
                seen = self.inner(fresh, past_key_values=cache, use_cache=True)
                cache, told = seen.past_key_values, seen.logits[0, -1].float().log_softmax(-1)
                sums = (told / max(temperature, 1e-4)).softmax(-1).cumsum(-1)
                number = int(
                    torch.searchsorted(sums, own.random() * float(sums[-1])).clamp(max=len(sums) - 1)
                )
                answer.append((number, float(told[number])))
                fresh = torch.tensor([[number]], device=self.inner.device)
            found.append(answer)
        return found


def find_renderer(name: str) -> str:
    """Return the renderer of a model in a folder or on the hub."""
    if Path(name).is_dir():
        return f"hf:{name}"
    from huggingface_hub import snapshot_download

    return f"hf:{snapshot_download(name, allow_patterns=['*.json', '*.jinja'])}"
