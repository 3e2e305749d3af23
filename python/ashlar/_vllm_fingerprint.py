"""What the bytes of a block depend on, and sizes as settings give them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import sys
from typing import Any

import torch
from vllm import __version__ as _vllm_version
from vllm import envs
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


# Settings that change no value in a block: names and places of what counts by its content, how requests are
# read, answered and scheduled, and which blocks are kept. Every other field of these configurations counts,
# those of later versions of vLLM too. Kernels, compilation and the sharing of work between devices are
# elsewhere in vLLM's configuration, and do not count.
_OF_NO_VALUE = {
    "model_config": """
        model model_weights hf_config_path config_format hf_token hf_text_config served_model_name seed
        is_submodel_config word_embeddings_untied_by_checkpoint
        tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init allowed_local_media_path
        allowed_media_domains enable_prompt_embeds io_processor_plugin renderer_num_workers
        max_model_len spec_target_max_model_len allow_deprecated_quantization enforce_eager
        disable_cascade_attn max_logprobs logprobs_mode return_sampling_mask use_fp64_gumbel
        enable_trace_replay generation_config override_generation_config logits_processors pooler_config
        enable_sleep_mode sleep_preserve_parameter_names sleep_mode_backend sleep_mode_offload_cudagraph
        enable_nccl_comm_suspend enable_cumem_allocator multimodal_config""",
    # Sizes of blocks, pages and hashes are beside the values; their layout too.
    "cache_config": """
        block_size user_specified_block_size _block_size_resolved kv_cache_layout prefix_match_unit
        mamba_page_size_padded skip_page_size_padded hash_block_size effective_attention_block_size
        gpu_memory_utilization kv_cache_memory_bytes num_gpu_blocks_override num_gpu_blocks num_cpu_blocks
        kv_cache_size_tokens kv_cache_max_concurrency cache_hit_alignment_tokens enable_prefix_caching
        prefix_caching_hash_algo prefix_cache_retention_interval enable_mamba_shared_prefix_checkpoint
        kv_offloading_size kv_offloading_backend""",
    # Which attention may pack a block in its own way.
    "attention_config": """
        hisparse_config minimax_m3_msa_decode_backend flash_attn_max_num_splits_for_cuda_graph
        tokenspeed_mla_min_split_kv tq_max_kv_splits_for_cuda_graph sparse_mla_prefill_workspace_factor
        flex_attn_block_m flex_attn_block_n flex_attn_q_block_size flex_attn_kv_block_size""",
    "mamba_config": "ssu_algorithm",
    "diffusion_config": "max_denoising_steps",
    # Which kernel multiplies decides how far activations are quantized.
    "kernel_config": """
        ir_op_priority enable_flashinfer_autotune enable_rocm_segmented_attn_autotune enable_cutedsl_warmup
        enable_jit_warmup""",
    "load_config": """
        download_dir safetensors_load_strategy safetensors_prefetch_num_threads
        safetensors_prefetch_block_size device use_tqdm_on_load pt_load_map_location""",
    # Adapters are in the names of blocks; requests without one are the same with any of these.
    "lora_config": """
        max_lora_rank max_loras fully_sharded_loras max_cpu_loras specialize_active_lora max_lora_cls_labels
        enable_mixed_moe_lora_format""",
    "multimodal_config": """
        limit_per_prompt enable_mm_embeds mm_processor_cache_gb mm_processor_cache_type mm_hasher_algorithm
        mm_shm_cache_max_object_size_mb mm_encoder_tp_mode mm_encoder_fp8_scale_save_path
        mm_encoder_fp8_scale_save_margin interleave_mm_strings skip_mm_profiling mm_tensor_ipc
        mm_ipc_gpu_memory_gb""",
}
# What counts of a draft model beside its ModelConfig.
_OF_DRAFTS = ("method", "kv_cache_dtype", "attention_backend", "moe_backend", "parallel_drafting",
              "use_heterogeneous_vocab", "index_share_for_mtp_iteration")
# Variables that change what is computed or how a block is packed.
_VARIABLES = (
    "VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "VLLM_FLOAT32_MATMUL_PRECISION",
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "VLLM_MARLIN_INPUT_DTYPE", "VLLM_CPU_INT4_W4A8",
    "VLLM_B12X_MOE_FP4_FORCE_A16", "VLLM_HUMMING_ONLINE_QUANT_CONFIG", "VLLM_HUMMING_INPUT_QUANT_CONFIG",
    "VLLM_USE_DEEP_GEMM_E8M0", "VLLM_DEEPEPLL_NVFP4_DISPATCH", "VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4",
    "VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION",
    "VLLM_ROCM_FP8_MFMA_PAGE_ATTN", "VLLM_USE_MODELSCOPE",
)


def _counted(name: str, config: Any) -> dict[str, str]:
    """The fields of a configuration of this name that change values, as text."""
    if config is None:
        return {}
    left_out = _OF_NO_VALUE[name].split()
    return {each.name: _as_text(getattr(config, each.name, None)) for each in dataclasses.fields(config)
            if each.name not in left_out}


def _of_model(model: Any, load: Any) -> dict[str, Any]:
    """What counts of a model, the main one or a draft, and of how its weights are read."""
    parts: dict[str, Any] = _counted("model_config", model)
    parts["load"] = _counted("load_config", load)
    if str(load.load_format) == "dummy":
        parts["seed"] = str(model.seed)
    # Some scale positions by the longest request that is allowed, and one by what it is generated with.
    if "longrope" in parts["hf_config"] or "llama4" in parts["hf_config"]:
        parts["max_model_len"] = str(model.max_model_len)
    if "llama4" in parts["hf_config"]:
        parts["generation"] = _as_text([model.generation_config, model.override_generation_config])
    parts["multimodal"] = _counted("multimodal_config", getattr(model, "multimodal_config", None))
    return parts


def values_of(settings: VllmConfig) -> str:
    """What the values in a block depend on beside weights and layout, as a digest: the model's configuration
    with all overrides (rope scaling, windows), its revision, quantization, the cache's dtype, adapters, draft
    model. The same in every process of one configuration."""
    model = settings.model_config
    parts: dict[str, Any] = {"model": _of_model(model, settings.load_config)}
    for name in ("cache_config", "attention_config", "mamba_config", "diffusion_config", "kernel_config"):
        parts[name] = _counted(name, getattr(settings, name, None))
    # An engine that takes adapters shares the blocks of requests without one.
    adapters = _counted("lora_config", settings.lora_config)
    same = {"lora_dtype": _as_text(model.dtype)}
    parts["adapters"] = {name: text for name, text in adapters.items()
                         if text not in ("None", "False", same.get(name))}
    more = settings.additional_config  # of the platform
    parts["more"] = _as_text(more) if isinstance(more, dict) else more.compute_hash()
    parallel = settings.parallel_config
    if parallel.prefill_context_parallel_size * parallel.decode_context_parallel_size > 1:
        parts["interleave"] = [parallel.cp_kv_cache_interleave_size, parallel.dcp_kv_cache_interleave_size]
    draft = settings.speculative_config
    of_draft = getattr(draft, "draft_model_config", None) if draft else None
    if draft is not None and of_draft is not None:  # its layers are in the blocks too
        load = getattr(draft, "draft_load_config", None) or settings.load_config
        parts["draft"] = [_of_model(of_draft, load), weights_of(of_draft.model, of_draft.revision),
                          [_as_text(getattr(draft, name, None)) for name in _OF_DRAFTS]]
    parts["variables"] = [_as_text(getattr(envs, name, None)) for name in _VARIABLES]
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
