"""What the bytes of a block depend on, and sizes as settings give them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from typing import Any

import torch
from vllm import __version__ as _vllm_version
from vllm.config import VllmConfig, get_current_vllm_config_or_none
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


def weights_of(model: str, revision: str | None = None) -> str:
    """Names the weights of a model in a folder or in the Hugging Face cache; empty for what is not here."""
    folder = model
    if not os.path.isdir(folder):
        try:
            from huggingface_hub import try_to_load_from_cache

            config = try_to_load_from_cache(model, "config.json", revision=revision)
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


def engine_settings() -> VllmConfig | None:
    """The configuration of the engine that is being built. vLLM gives an OffloadingSpec a summary that has
    neither revision nor overrides, and sets the whole only in workers: elsewhere it is found with those who
    call."""
    current = get_current_vllm_config_or_none()
    frame = None if current else sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("vllm_config")
        if isinstance(found, VllmConfig):
            return found
        frame = frame.f_back
    return current


def _as_text(value: Any) -> str:
    """The same text for the same settings in every process: no addresses, no order of chance."""
    if isinstance(value, type) or callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    elif hasattr(value, "__dataclass_fields__"):
        value = vars(value)
    if isinstance(value, dict):
        left = {str(key): _as_text(each) for key, each in value.items()}
        for key in ("_name_or_path", "transformers_version"):
            left.pop(key, None)
        return json.dumps(left, sort_keys=True)
    if isinstance(value, (set, frozenset)):
        return json.dumps(sorted(_as_text(each) for each in value))
    if isinstance(value, (list, tuple)):
        return json.dumps([_as_text(each) for each in value])
    return str(value)


def values_of(settings: VllmConfig) -> str:
    """What the values in a block depend on beside weights and layout, as a digest: the model's configuration
    with all overrides (rope scaling, windows), its revision, quantization, draft model. The same in every
    process of one configuration."""
    model, load = settings.model_config, settings.load_config
    names = ("revision", "code_revision", "dtype", "quantization", "quantization_config", "hf_config",
             "hf_overrides", "disable_sliding_window", "model_impl", "override_attention_dtype")
    parts = {name: _as_text(getattr(model, name, None)) for name in names}
    # Some scale positions by the longest request that is allowed.
    if "longrope" in parts["hf_config"]:
        parts["max_model_len"] = str(model.max_model_len)
    parts["load_format"] = str(load.load_format)
    if parts["load_format"] == "dummy":
        parts["seed"] = str(model.seed)
    images = getattr(model, "multimodal_config", None)
    for name in ("mm_processor_kwargs", "video_pruning_rate", "language_model_only"):
        parts[name] = _as_text(getattr(images, name, None))
    parts["cache"] = str(settings.cache_config.cache_dtype)
    parts["scales"] = str(getattr(settings.cache_config, "calculate_kv_scales", None))
    draft = settings.speculative_config
    of_draft = getattr(draft, "draft_model_config", None) if draft else None
    if of_draft is not None:  # its layers are in the blocks too
        parts["draft"] = json.dumps([str(draft.method), str(of_draft.model), str(of_draft.revision),
                                     weights_of(of_draft.model, of_draft.revision),
                                     _as_text(of_draft.hf_config), _as_text(of_draft.quantization)])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def fingerprint_of(config: OffloadingConfig, settings: VllmConfig | None) -> str:
    """Everything that the bytes of a block depend on, as text: blocks of another text are never used."""
    revision = settings.model_config.revision if settings else None
    parallel = config.parallel
    extra = config.extra_config
    of_no_rank = config.canonical_layout and parallel.is_parallelism_agnostic
    copies = parallel.world_size if of_no_rank and not config.replicated_layout else 1
    bytes_of_block = config.worker_kv_bytes_per_block * copies
    parts = [
        f"vllm {_vllm_version}",
        f"model {extra.get('model') or config.model.name}",
        f"weights {weights_of(config.model.name, revision)}",
        f"values {values_of(settings) if settings else ''}",
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
