"""A small transformer: its training on rows, and sampling for many prompts at the same time."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Cache = list[tuple[Tensor, Tensor, Tensor]]
"""For each layer: the keys and the values so far, and the last two inputs."""


def _turn(found: Tensor, places: Tensor) -> Tensor:
    """Return `found` (batch, heads, T, width) with rotary positions in half of its width; `places` is (batch or 1,
    T). The other half matches tokens wherever they are."""
    half = found.shape[-1] // 4
    rates = 1000.0 ** (-torch.arange(half, device=found.device) / half)
    angles = places[:, None, :, None] * rates
    one, two, rest = found[..., :half], found[..., half : 2 * half], found[..., 2 * half :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([one * cos - two * sin, one * sin + two * cos, rest], -1)


class Block(nn.Module):
    """Attention whose keys also see the two tokens before, and a feed-forward layer.

    Queries begin as keys do, and what is attended to is passed on as it is, so that equal tokens find each other,
    and what follows them can be copied, from the first step on.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = [nn.Linear(width, width, bias=False) for _ in range(4)]
        self.shares = nn.Parameter(torch.full((2, width), 0.5))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        nn.init.orthogonal_(self.key.weight)
        nn.init.orthogonal_(self.value.weight)
        self.query.weight.data.copy_(self.key.weight)
        self.out.weight.data.copy_(self.value.weight.T / 2)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor, places: Tensor, cache: Any, blocked: Tensor | None) -> tuple[Tensor, Any]:
        seen = self.before(x)
        batch, length, width = x.shape
        last = seen.new_zeros(batch, 2, width) if cache is None else cache[2]
        seen_before = torch.cat([last, seen], 1)
        one, two = seen_before[:, 1:-1], seen_before[:, :-2]

        def split(found: Tensor) -> Tensor:
            return found.view(batch, length, self.heads, -1).transpose(1, 2)

        query = _turn(split(self.query(seen)), places)
        key = _turn(split(self.key(seen + self.shares[0] * one + self.shares[1] * two)), places)
        value = split(self.value(seen))
        if cache is not None:
            key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=blocked, is_causal=blocked is None and cache is None
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.between(x)))), (key, value, seen_before[:, -2:])


class Network(nn.Module):
    """A decoder of `layers` blocks. Input and output share their embedding."""

    def __init__(self, vocabulary: int, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(
        self,
        ids: Tensor,
        places: Tensor | None = None,
        cache: Cache | None = None,
        blocked: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Return the logits (batch, T, vocabulary) and what a further call needs."""
        if places is None:
            places = torch.arange(ids.shape[1], device=ids.device)[None]
        x, kept = self.embedding(ids) * self.embedding.embedding_dim**0.5, []
        # What stands at a negative place is padding, and adds nothing to what the first tokens see.
        x = x * (places >= 0)[..., None]
        for number, block in enumerate(self.blocks):
            x, item = block(x, places, None if cache is None else cache[number], blocked)
            kept.append(item)
        return functional.linear(self.scale * self.norm(x), self.embedding.weight), kept

    def logprobs(self, ids: Tensor) -> Tensor:
        """Return the logprob of each id after those before it, without the first: (batch, T - 1)."""
        logits = self(ids[:, :-1])[0].float()
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
        """Return ids and their logprobs at temperature 1 after each prompt, up to a stop id or a limit."""
        device = self.embedding.weight.device
        longest = max(map(len, prompts))
        # Prompts end at the same place; what stands before them is blocked.
        ids = torch.tensor([[0] * (longest - len(item)) + list(item) for item in prompts], device=device)
        empty = torch.tensor([longest - len(item) for item in prompts], device=device)
        at = torch.arange(longest, device=device)
        is_real = at[None] >= empty[:, None]
        blocked = (is_real[:, None] & (at[:, None] >= at[None])[None]) | torch.eye(
            longest, dtype=torch.bool, device=device
        )[None]
        logits, cache = self(ids, at[None] - empty[:, None], None, blocked[:, None])
        found: list[list[tuple[int, float]]] = [[] for _ in prompts]
        alive = list(range(len(prompts)))
        while True:
            told = logits[:, -1].float().log_softmax(-1)
            heat = torch.tensor([max(temperatures[number], 1e-4) for number in alive], device=device)
            sums = (told / heat[:, None]).softmax(-1).cumsum(-1)
            points = torch.tensor([[draws[number].random()] for number in alive], device=device)
            chosen = torch.searchsorted(sums, points * sums[:, -1:]).clamp(max=sums.shape[1] - 1)
            values = told.gather(1, chosen)[:, 0].tolist()
            picked = chosen[:, 0].tolist()
            for number, item, value in zip(alive, picked, values, strict=True):
                found[number].append((item, value))
            rest = [
                place
                for place, number in enumerate(alive)
                if picked[place] not in stops and len(found[number]) < limits[number]
            ]
            if not rest:
                return found
            if len(rest) < len(alive):
                keep = torch.tensor(rest, device=device)
                cache = [(key[keep], value[keep], last[keep]) for key, value, last in cache]
                is_real, empty, chosen = is_real[keep], empty[keep], chosen[keep]
                alive = [alive[place] for place in rest]
            is_real = torch.cat([is_real, is_real.new_ones(len(alive), 1)], 1)
            places = is_real.shape[1] - 1 - empty[:, None]
            logits, cache = self(chosen, places, cache, is_real[:, None, None])


class TokenRows:
    """Rows as ids, with which of them to train on."""

    def __init__(
        self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], names: Sequence[int], seed: int = 0
    ) -> None:
        """`rows` are pairs of ids and mask, and `names` the ids of names, which are permuted for each row anew."""
        self.rows = sorted(rows, key=lambda row: len(row[0]))
        self.names = torch.tensor(names)
        self.draws = torch.Generator().manual_seed(seed)
        self.random = Random(seed)

    def batches(self, size: int, vocabulary: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of about `size` tokens without end: ids (batch, T) and mask (batch, T)."""
        groups: list[list[Any]] = [[]]
        for row in self.rows:
            if (len(groups[-1]) + 1) * len(row[0]) > size:
                groups.append([])
            groups[-1].append(row)
        groups = [group for group in groups if group]
        while True:
            self.random.shuffle(groups)
            for group in groups:
                length = len(group[-1][0])
                ids = torch.tensor([[*row, *[0] * (length - len(row))] for row, _ in group])
                mask = torch.tensor(
                    [[*row, *[0] * (length - len(row))] for _, row in group], dtype=torch.float
                )
                renamed = torch.arange(vocabulary).repeat(len(group), 1)
                order = torch.rand(len(group), len(self.names), generator=self.draws).argsort(1)
                renamed[:, self.names] = self.names[order]
                yield renamed.gather(1, ids).to(device), mask.to(device)


def train(
    network: Network, rows: TokenRows, tokens: int, *, rate: float = 2e-3, size: int = 4096, tell: Any = print
) -> list[float]:
    """Train on about `tokens` tokens with the mean loss of the masked ones, and return the losses."""
    device = network.embedding.weight.device
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.05)
    losses: list[float] = []
    seen = told = 0
    for ids, mask in rows.batches(size, network.embedding.num_embeddings, str(device)):
        part = seen / tokens
        warm = min(1.0, (len(losses) + 1) / 50)
        for group in optimizer.param_groups:
            group["lr"] = rate * warm * min(1.0, max(0.05, 2.0 * (1.0 - part)))
        weights = mask[:, 1:]
        loss = -(network.logprobs(ids) * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seen += ids.numel()
        if seen * 20 // tokens > told:
            told = seen * 20 // tokens
            recent = losses[-30:]
            tell(f"{seen:,} tokens: loss {sum(recent) / len(recent):.4f}")
        if seen >= tokens:
            return losses
    raise AssertionError("batches have no end")
