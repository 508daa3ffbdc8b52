"""Compute the log probabilities of answers by a forward pass.

`python forward.py FOLDER`, in the environment of the engine, reads lines of JSON with the ids of a whole sequence
and the positions of its answers: `{"ids": [...], "spans": [[start, end], ...]}`. It writes one line for each, with
the log probability of each token of the answers at temperature 1.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def main() -> None:
    """Answer line by line."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    for line in sys.stdin:
        asked = json.loads(line)
        found: list[float] = []
        logits = model(torch.tensor([asked["ids"]])).logits[0].float()
        for start, end in asked["spans"]:
            chosen = torch.tensor(asked["ids"][start:end])[:, None]
            values = torch.log_softmax(logits[start - 1 : end - 1], -1).gather(1, chosen)
            found += values[:, 0].tolist()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
