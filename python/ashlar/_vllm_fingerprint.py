"""What the bytes of a block depend on, and sizes as settings give them."""

from __future__ import annotations

import hashlib
import os
import platform

import torch
from vllm import __version__ as _vllm_version
from vllm.v1.kv_offload.config import OffloadingConfig

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def bytes_of(text: object, name: str) -> int:
    """A number of bytes: an int, or text such as "8GiB" or "500M"."""
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        number = str(text).strip()
        unit = number.lstrip("0123456789. ").upper().removesuffix("B").removesuffix("I")
        if unit not in _UNITS:
            raise ValueError(f"{name} is {text!r}; give a number of bytes, or text such as \"8GiB\"")
        try:
            size = int(float(number[:len(number) - len(number.lstrip("0123456789. "))]) * _UNITS[unit])
        except ValueError:
            raise ValueError(f"{name} is {text!r}; give a number of bytes, or text such as "
                             "\"8GiB\"") from None
    if size <= 0:
        raise ValueError(f"{name} is {text!r}; it must be above 0")
    return size


def _samples_of(path: str) -> bytes:
    """A digest of a file's size and of pieces of it, enough to tell weights apart in little time."""
    digest = hashlib.sha256()
    size = os.path.getsize(path)
    digest.update(f"{os.path.basename(path)}:{size};".encode())
    with open(path, "rb") as file:
        for i in range(16):
            file.seek(max(0, size - 4096) * i // 15)
            digest.update(file.read(4096))
    return digest.digest()


def weights_of(model: str) -> str:
    """Names the weights of a model in a folder or in the Hugging Face cache; empty for what is not here."""
    folder = model
    if not os.path.isdir(folder):
        try:
            from huggingface_hub import try_to_load_from_cache

            config = try_to_load_from_cache(model, "config.json")
        except Exception:
            return ""
        if not isinstance(config, str):
            return ""
        folder = os.path.dirname(config)
    digest = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.endswith((".safetensors", ".bin", ".pt", ".gguf")) or name == "config.json":
            if os.path.isfile(path):
                digest.update(_samples_of(path))
    return digest.hexdigest()[:32]


def fingerprint_of(config: OffloadingConfig) -> str:
    """Everything that the bytes of a block depend on, as text: blocks of another text are never used."""
    parallel = config.parallel
    extra = config.extra_config
    of_no_rank = config.canonical_layout and parallel.is_parallelism_agnostic
    copies = parallel.world_size if of_no_rank and not config.replicated_layout else 1
    bytes_of_block = config.worker_kv_bytes_per_block * copies
    parts = [
        f"vllm {_vllm_version}",
        f"model {extra.get('model') or config.model.name}",
        f"weights {weights_of(config.model.name)}",
        f"dtype {config.model.dtype}",
        f"layout {config.kv_cache_layout}",
        f"canonical {config.canonical_layout}",
        f"chunk {config.cache.blocks_per_chunk} hash {config.cache.tokens_per_hash}",
        f"bytes {bytes_of_block}",
        "groups " + " ".join(f"{group.group_id}:{group.tokens_per_block}:{','.join(group.layer_names)}"
                             for group in config.groups),
    ]
    if not of_no_rank:
        parts.append(f"ranks {parallel.world_size} tp {parallel.tp_size} pp {parallel.pp_size} "
                     f"pcp {parallel.pcp_size} dcp {parallel.dcp_size} once {config.replicated_layout}")
    if not torch.cuda.is_available():
        # The kernels of the CPU choose how they pack a block.
        amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: None)()
        parts.append(f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()} amx {amx}")
    return "; ".join(parts)
