"""A transformer with random weights on the CPU: the policy that a trainer trains, and its engine."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

CALL = '<tool_call>\n{"name": "note", "arguments": {"text": "é1"}}\n</tool_call>'
"""The call that each rollout begins with, because random weights call nothing."""
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}


class Tiny:
    """A policy. It samples ids and says how probable they were."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(7)
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.pad_token = self.tokenizer.eos_token
        self.end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.network = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(self.tokenizer), num_hidden_layers=2, tie_word_embeddings=False, **SIZES
            )
        )
        with torch.no_grad():
            # Distributions that are not flat, and answers that end.
            self.network.lm_head.weight *= 20
        self.call = [*self.tokenizer.encode(CALL, add_special_tokens=False), self.end]
        self.generator = torch.Generator().manual_seed(3)
        self.asked: list[list[int]] = []
        self.calls_below = 0
        """The answers to later prompts that have fewer tokens are the call, too."""
        self.failures = 0
        """How many of the next requests fail."""

    def sample(self, prompt: list[int], params: dict[str, Any]) -> tuple[list[int], list[float], str]:
        """Return ids, their log probabilities and why they end. The first answer of a rollout is the call."""
        self.asked.append(prompt)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the engine is gone")
        limit, stops = params["max_tokens"], params["stop_token_ids"]
        assert self.end in stops
        is_first = "tool_response" not in self.tokenizer.decode(prompt)
        forced = self.call if is_first or len(prompt) < self.calls_below else []
        ids, cache, new = list(forced), None, [*prompt, *forced]
        with torch.no_grad():
            while len(ids) < limit and not (ids and ids[-1] in stops):
                found = self.network(torch.tensor([new]), past_key_values=cache, use_cache=True)
                cache, odds = found.past_key_values, (found.logits[0, -1] / params["temperature"]).softmax(-1)
                new = [int(torch.multinomial(odds, 1, generator=self.generator))]
                ids += new
            sampled = self.logprobs([*prompt, *ids], params["temperature"])[-len(ids) :].tolist()
        return ids, sampled, "stop" if ids[-1] in stops else "length"

    def logprobs(self, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
        """Return the log probability of each id but the first."""
        logits = self.network(torch.tensor([ids])).logits[0, :-1] / temperature
        return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


COMPACTED, CONTEXT = (330, 1700), 3000
"""`LONG`, `calls_below` and the size of the context with which each rollout is compacted once."""
LONG = 0
"""How many words more the result of a call has, such that a rollout with several has to be compacted."""


def note(text: str) -> str:
    """Write a text down."""
    return f"Noted {text}.{' and' * LONG}"


def register_tasks() -> None:
    """Register a task set whose rewards differ from answer to answer."""
    from treadle.runs.task import TASK_SETS
    from treadle.tasks import SimpleTask

    def grade(task: SimpleTask, said: str, files: dict[str, bytes]) -> float:
        return len(said) % 5 / 4

    TASK_SETS.add(
        "lengths",
        [
            SimpleTask(task_id=str(number), input=f"Write file {number}.", tools=("tiny:note",), grader=grade)
            for number in range(4)
        ],
    )


def experts_of(ids: list[int]) -> list[list[list[int]]]:
    """Return experts of tokens, two in each of three layers, as an engine with a mixture of experts tells them."""
    return [[[(number + layer) % 8, (number + 5) % 8] for layer in range(3)] for number in ids]


def tell(found: dict[str, Any]) -> None:
    """Print what a program found, as one line."""
    print(json.dumps(found))
