"""Read samples with prime-rl's own types, pack them as its orchestrator does, and print what became of them.

`python read_prime_samples.py FOLDER`: the folder is a checkout of prime-rl. Standard input has samples in msgpack.
Only two files of prime-rl are loaded, because its packages need a GPU.
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec


def load(folder: Path, name: str) -> Any:
    """Load one module of prime-rl, and make its packages without their contents."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        sys.modules.setdefault(".".join(parts[:at]), ModuleType(".".join(parts[:at])))
    spec = importlib.util.spec_from_file_location(name, folder.joinpath("src", *parts).with_suffix(".py"))
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path) -> None:
    """Print the rows of the batches, each cut into its samples."""
    types = load(folder, "prime_rl.transports.rollouts.types")
    batch = load(folder, "prime_rl.trainer.batch")
    samples = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[types.TrainingSample])
    (packed,) = batch.prepare_batch(
        samples, seq_len=64, num_train_workers=1, bin_cost=batch.build_bin_cost(None)
    )
    names = (
        "input_ids",
        "loss_mask",
        "advantages",
        "inference_logprobs",
        "temperatures",
        "env_names",
        "rl_weights",
    )
    found = []
    for micro in packed:
        begin = 0
        for size in micro.seq_lens:
            part = slice(begin, begin + size)
            values = {name: getattr(micro, name) for name in names}
            found.append({name: value and value[part] for name, value in values.items()})
            begin += size
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
