"""Write a model with other weights: `python other_weights.py FOLDER OTHER`, in the environment of the engine.

What the last layer says is scaled, so that the model samples from a sharper distribution.
"""

import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

SCALED, FACTOR = "model.norm.weight", 1.5


def main() -> None:
    """Copy the folder, and scale the weights."""
    folder, other = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.copytree(folder, other, dirs_exist_ok=True)
    for file in other.glob("*.safetensors"):
        weights = load_file(file)
        if SCALED in weights:
            weights[SCALED] = (weights[SCALED].float() * FACTOR).to(weights[SCALED].dtype)
            save_file(weights, file, {"format": "pt"})


if __name__ == "__main__":
    main()
