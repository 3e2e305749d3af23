"""Cases of vLLM's settings that change what a block holds: an engine with another value finds no block.

The settings are changed in the configuration that vLLM made, since the CPU platform starts few of them.
"""
import copy
import dataclasses
import os

from cases_settings import copy_of_model
from cases_units import tokens, unit, whole

# Every field that counts, with a value that is not its default.
CHANGES = {
    "model_config": dict(
        runner="pooling", convert="embed", trust_remote_code=True, dtype="float16",
        hf_config=lambda kept: altered(kept, rms_norm_eps=0.01), revision="2" * 40, code_revision="3" * 40,
        quantization="fp8", quantization_config=dict(linear="fp8"), disable_sliding_window=True,
        hf_overrides=dict(rms_norm_eps=0.01), model_class_overrides=dict(LlamaForCausalLM="other:Llama"),
        model_impl="transformers"),
    "cache_config": dict(
        cache_dtype="fp8_e4m3", is_attention_free=True, sliding_window=512, kv_cache_dtype_skip_layers=["0"],
        mamba_block_size=64, mamba_cache_dtype="float32", mamba_ssm_cache_dtype="float32",
        mamba_cache_mode="all", replayssm_buffer_len=8, use_replayssm=True, use_kda_recoverssm=True,
        kv_sharing_fast_prefill=True, swa_bounded_replay=False),
    "attention_config": dict(
        backend="FLASHINFER", backend_per_kind=dict(mla_attention="FLASHINFER_MLA"), flash_attn_version=3,
        use_trtllm_attention=True, disable_flashinfer_q_quantization=True, mla_prefill_backend="FLASHINFER",
        use_prefill_query_quantization=True, indexer_kv_dtype="fp8", indexer_sparse_logits=True,
        use_non_causal=True, sparse_mla_force_mqa=True),
    "mamba_config": dict(
        backend="FLASHINFER", enable_stochastic_rounding=True, stochastic_rounding_philox_rounds=4),
    "kernel_config": dict(
        moe_backend="marlin", sparse_indexer_topk_backend="other", linear_backend="other",
        linear_backend_per_quant=dict(fp8="other")),
    "load_config": dict(
        load_format="sharded_state", model_loader_extra_config=dict(pattern="other"), ignore_patterns=[]),
    "lora_config": dict(
        lora_dtype="bfloat16", target_modules=["q_proj"], default_mm_loras=dict(image="/adapter"),
        enable_tower_connector_lora=True, enable_moe_shared_loras=True),
    "multimodal_config": dict(
        language_model_only=True, media_io_kwargs=dict(video=dict(num_frames=8)),
        mm_processor_kwargs=dict(max_pixels=1000), mm_device_do_normalize=False, mm_encoder_only=True,
        mm_encoder_attn_backend="FLASH_ATTN", mm_encoder_attn_dtype="fp8",
        mm_encoder_fp8_scale_path="/scales", video_pruning_rate=0.5, video_pruning_method="other",
        allow_missing_mm_embeddings=True),
}
VARIABLES = dict(
    VLLM_SSM_CONV_STATE_LAYOUT="DS", VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT="1",
    VLLM_FLOAT32_MATMUL_PRECISION="medium", VLLM_MOE_ROUTING_SIMULATION_STRATEGY="uniform_random",
    VLLM_MARLIN_INPUT_DTYPE="int8", VLLM_CPU_INT4_W4A8="0", VLLM_B12X_MOE_FP4_FORCE_A16="1",
    VLLM_HUMMING_ONLINE_QUANT_CONFIG='{"a": 1}', VLLM_HUMMING_INPUT_QUANT_CONFIG='{"a": 1}',
    VLLM_USE_DEEP_GEMM_E8M0="0", VLLM_DEEPEPLL_NVFP4_DISPATCH="1", VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4="1",
    VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE="1", VLLM_ROCM_QUICK_REDUCE_QUANTIZATION="INT8",
    VLLM_ROCM_FP8_MFMA_PAGE_ATTN="1", VLLM_USE_MODELSCOPE="true")
DRAFTS = dict(
    method="eagle", kv_cache_dtype="fp8", attention_backend="FLASHINFER", moe_backend="marlin",
    parallel_drafting=True, use_heterogeneous_vocab=True, index_share_for_mtp_iteration=True)


def altered(kept, **changes):
    other = copy.deepcopy(kept)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


def setting(config, name, value):
    """What makes this change; it is a change."""
    def change(settings):
        of_it = config(settings)
        kept = getattr(of_it, name)
        other = value(kept) if callable(value) else value
        assert other != kept, f"{name} is {kept!r} already"
        setattr(of_it, name, other)
    return name, change


def check_changes(lab, changes, base=lambda settings: None, engine=None):
    """What an engine stored whose configuration `base` made, it finds after a restart, and with none of the
    changes."""
    ids = tokens("values", 140)

    def cached(change=lambda settings: None):
        def both(settings):
            base(settings)
            change(settings)
        stepper = lab.stepper(volumes=lab.volumes(), model="one name", g3_path=None, g3_bytes=None,
                              settings=engine or {}, change=both)
        found = stepper.run(ids)
        stepper.close()
        return found
    assert cached() == 0
    for name, change in changes:
        assert cached(change) == 0, f"an engine with another {name} has blocks of the first"
    assert cached() == whole(140, 32), "the first does not find its own blocks"


def check_all_of(lab, name, fields, config, base=lambda settings: None, **more):
    """All fields that count, each alone. Whoever moves to another vLLM has to decide about its new fields."""
    from ashlar._vllm_fingerprint import _OF_NO_VALUE

    counted = set(fields) - set(_OF_NO_VALUE[name].split())
    assert counted == set(CHANGES[name]), f"not decided: {counted ^ set(CHANGES[name])}"
    check_changes(lab, [setting(config, *each) for each in CHANGES[name].items()], base, **more)


def fields_of(kind):
    return [each.name for each in dataclasses.fields(kind)]


@unit("1")
def restarted_with_another_setting_of_the_model(lab):
    from vllm.config import ModelConfig
    check_all_of(lab, "model_config", fields_of(ModelConfig), lambda settings: settings.model_config)


@unit("1")
def restarted_with_another_setting_of_the_cache(lab):
    from vllm.config import CacheConfig
    check_all_of(lab, "cache_config", fields_of(CacheConfig), lambda settings: settings.cache_config)


@unit("1")
def restarted_with_another_setting_of_attention(lab):
    from vllm.config import AttentionConfig
    check_all_of(lab, "attention_config", fields_of(AttentionConfig),
                 lambda settings: settings.attention_config)


@unit("1")
def restarted_with_another_setting_of_kernels(lab):
    from vllm.config import KernelConfig
    check_all_of(lab, "kernel_config", fields_of(KernelConfig), lambda settings: settings.kernel_config)


@unit("1")
def restarted_with_another_setting_of_states(lab):
    from vllm.config.mamba import MambaConfig
    check_all_of(lab, "mamba_config", fields_of(MambaConfig), lambda settings: settings.mamba_config)


@unit("1")
def restarted_with_another_setting_of_the_loader(lab):
    from vllm.config import LoadConfig
    check_all_of(lab, "load_config", fields_of(LoadConfig), lambda settings: settings.load_config)


@unit("1")
def restarted_with_another_setting_of_diffusion(lab):
    """By its fingerprint: the scheduler of such a model needs one."""
    from vllm.config.diffusion import DiffusionConfig

    def canvas(length, steps):
        return name_of(lab, lambda settings: setattr(settings, "diffusion_config", DiffusionConfig(
            canvas_length=length, max_denoising_steps=steps)))
    assert {each.name for each in dataclasses.fields(DiffusionConfig)} == {"canvas_length",
                                                                         "max_denoising_steps"}
    assert len({name_of(lab, lambda settings: None), canvas(32, 4), canvas(16, 4)}) == 3
    assert canvas(32, 8) == canvas(32, 4)


@unit("1")
def restarted_with_another_setting_of_images(lab):
    from vllm.config.multimodal import MultiModalConfig

    def base(settings):
        settings.model_config.multimodal_config = MultiModalConfig()
    check_all_of(lab, "multimodal_config", fields_of(MultiModalConfig),
                 lambda settings: settings.model_config.multimodal_config, base)


@unit("1")
def restarted_with_another_setting_of_adapters(lab):
    """An engine that takes adapters, and one that takes none, share the blocks of requests without one."""
    from vllm.config import LoRAConfig
    check_all_of(lab, "lora_config", fields_of(LoRAConfig), lambda settings: settings.lora_config,
                 engine=dict(enable_lora=True))
    plain = lab.stepper(volumes=lab.volumes(), model="one name", g3_path=None, g3_bytes=None)
    assert plain.run(tokens("values", 140)) == whole(140, 32)
    plain.close()


@unit("1")
def restarted_with_another_setting_of_the_draft(lab):
    from ashlar._vllm_fingerprint import _OF_DRAFTS

    assert set(DRAFTS) == set(_OF_DRAFTS)
    changes = [setting(lambda settings: settings.speculative_config, *each) for each in DRAFTS.items()]
    changes += [setting(lambda settings: settings.speculative_config.draft_model_config, *each)
                for each in (("dtype", "float16"), ("revision", "2" * 40), ("quantization", "fp8"))]
    changes.append(("draft", lambda settings: setattr(settings, "speculative_config", None)))
    drafting = dict(method="draft_model", model=str(copy_of_model(lab, "draft")), num_speculative_tokens=2)
    check_changes(lab, changes, engine=dict(speculative_config=drafting))


@unit("1")
def restarted_with_another_longest_request(lab):
    """It counts for models that scale positions or queries by it, and for no others."""
    def of_kind(kind):
        def base(settings):
            model = settings.model_config
            model.hf_config = altered(model.hf_config, what_it_is=kind)
        return base

    def longer(settings):
        settings.model_config.max_model_len += 32
    check_changes(lab, [("max_model_len", longer)], of_kind("longrope"))
    generated = setting(lambda settings: settings.model_config, "override_generation_config",
                        dict(attn_temperature_tuning=True))
    check_changes(lab, [("max_model_len", longer), generated], of_kind("llama4"))
    assert_same(lab, [("max_model_len", longer), generated])


@unit("1")
def restarted_with_another_interleaving_of_ranks(lab):
    """Context parallelism: which rank has which tokens of a block."""
    names = []
    for ranks, cp, dcp in ((1, 1, 1), (1, 16, 16), (2, 1, 1), (2, 16, 1), (2, 1, 16)):
        def change(settings, ranks=ranks, cp=cp, dcp=dcp):
            parallel = settings.parallel_config
            parallel.decode_context_parallel_size = ranks
            parallel.cp_kv_cache_interleave_size, parallel.dcp_kv_cache_interleave_size = cp, dcp
        names.append(name_of(lab, change))
    assert names[0] == names[1] and len(set(names)) == 4, names


@unit("1")
def restarted_with_another_variable_of_the_environment(lab):
    from ashlar._vllm_fingerprint import _VARIABLES

    def variable(name, value):
        def change(settings):
            os.environ[name] = value
        return name, change

    def base(settings):
        for name in _VARIABLES:
            os.environ.pop(name, None)
    assert set(VARIABLES) == set(_VARIABLES)
    check_changes(lab, [variable(*each) for each in VARIABLES.items()], base)


@unit("1")
def restarted_with_another_setting_of_the_platform(lab):
    def change(settings):
        settings.additional_config = dict(enable_something=True)
    check_changes(lab, [("additional_config", change)])


def name_of(lab, change, engine=None):
    from ashlar._vllm_fingerprint import values_of
    from lab import offloading
    from stepper import engine_config

    settings = engine_config(lab.lab.model, offloading(lab.folder), **(engine or {}))
    change(settings)
    return values_of(settings)


def assert_same(lab, changes, engine=None):
    plain = name_of(lab, lambda settings: None, engine)
    for name, change in changes:
        assert name_of(lab, change, engine) == plain, f"{name} changes no value"


@unit("1")
def settings_that_change_no_value_change_no_name(lab):
    """Every field that does not count, of the configurations of this engine."""
    from ashlar._vllm_fingerprint import _OF_NO_VALUE

    changes = []
    for config, names in _OF_NO_VALUE.items():
        if config in ("multimodal_config", "diffusion_config"):
            continue  # a Llama has neither
        for name in names.split():
            if name != "multimodal_config":  # what counts of it is counted apart
                changes.append(setting(lambda settings, config=config: getattr(settings, config), name,
                                       "something else"))
    assert len(changes) > 80
    assert_same(lab, changes, dict(enable_lora=True))


@unit("1")
def settings_of_a_later_vllm_count(lab):
    """A field that this version does not know, such as an older one's `calculate_kv_scales`."""
    from ashlar._vllm_fingerprint import _counted

    later = dataclasses.make_dataclass("Later", [("calculate_kv_scales", bool), ("block_size", int)])
    assert _counted("cache_config", later(True, 32)) != _counted("cache_config", later(False, 32))
    assert _counted("cache_config", later(True, 32)) == _counted("cache_config", later(True, 64))
