"""Read rows of the format `verifiers` with verifiers' own types, and print what it makes of them.

`python read_traces.py` reads lines of JSON and prints one line for each: the reward of the trace, whether it
failed, and its branches, each with its ids, mask, log probabilities, advantages and weights. A trainer makes a
sample of each branch.
"""

import json
import sys

import verifiers.v1 as vf


def main() -> None:
    """Print what verifiers makes of each trace."""
    for line in sys.stdin:
        trace = vf.Trace.model_validate(json.loads(line))
        branches = [
            {
                "ids": branch.token_ids,
                "mask": branch.sampled_mask,
                "logprobs": branch.logprobs,
                "advantages": branch.advantages,
                "weights": branch.loss_weights("rl"),
                "roles": [message.role for message in branch.messages],
            }
            for branch in trace.branches
            if branch.trainable
        ]
        print(json.dumps({"reward": trace.reward, "has_error": trace.has_error, "branches": branches}))


if __name__ == "__main__":
    main()
