"""Start SGLang on a CPU with `--enable-deterministic-inference`, without which it ignores seeds.

SGLang allows the option only with kernels of GPUs, and takes the hash of its sampler on a CPU from a package that
has no build for this one. This program allows the attention of torch, leaves out the kernels whose results do not
depend on the other requests, and gives the hash. The sampler itself is SGLang's own. SGLang's processes import this
module again.
"""

import sys

import torch
from sglang.srt import batch_invariant_ops
from sglang.srt.arg_groups.choices import add_deterministic_attention_backend_choices

_WORD = 0xFFFF_FFFF

add_deterministic_attention_backend_choices(["torch_native"])
batch_invariant_ops.enable_batch_invariant_mode = lambda: None
_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor columns) -> Tensor")


def hash_numbers(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return MurmurHash3 of 32 bits over a seed of 64 bits, a position and a column, for each row and column.

    Products of two words may exceed 63 bits, and what remains of their lower 32 is right all the same.
    """
    wide = seed.view(torch.int64)
    found = torch.zeros_like(wide)
    for block in (wide & _WORD, (wide >> 32) & _WORD, positions.to(torch.int64)):
        found = _mix(found, block)
    found = _mix(found[:, None], columns.to(torch.int64)[None, :]) ^ 16
    for shift, factor in ((16, 0x85EB_CA6B), (13, 0xC2B2_AE35)):
        found = ((found ^ (found >> shift)) * factor) & _WORD
    return (found ^ (found >> 16)).to(torch.uint32)


def _mix(found: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _rotate((block * 0xCC9E_2D51) & _WORD, 15)
    return (_rotate(found ^ ((block * 0x1B87_3593) & _WORD), 13) * 5 + 0xE654_6B64) & _WORD


def _rotate(words: torch.Tensor, bits: int) -> torch.Tensor:
    return ((words << bits) | (words >> (32 - bits))) & _WORD


_library.impl("murmur_hash32_cpu", hash_numbers, "CPU")

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
