// The signature of KvBlockManager as the stub has it: arrays, paths and settings with their types.
#pragma once

namespace ashlar::python {

inline constexpr char kKvSignature[] =
    "def __init__(self, *, layers: int, heads: int, head_dim: int, block_size: int = 16, "
    "outer: int = 2, dtype: typing.Literal['u8', 'f8_e4m3', 'f8_e5m2', 'f16', 'bf16', 'f32', 'f64'] "
    "= 'bf16', model: str = '', g1_blocks: int = 0, g1_memory: object | None = None, "
    "g1_device: int | None = None, g1_order: str = 'fully_contiguous_nhd', g2_blocks: int = 0, "
    "g2_memory: object | None = None, g3_blocks: int = 0, g3_path: str | bytes | os.PathLike[str] | "
    "collections.abc.Sequence[str | bytes | os.PathLike[str]] | None = None, "
    "survive_power_loss: bool = True, g4_blocks: int = 0, eviction: str = 'lru', "
    "offload: typing.Literal['on_arrival', 'near_eviction', 'on_call'] = 'on_arrival', "
    "duplicates: typing.Literal['allow', 'reject'] = 'reject', keep_tokens: bool = False, "
    "max_pins: int = 0, events: int = 0, onboard_threads: int = 2, "
    "scheme: HashScheme | None = None, prefix_key: bytes | None = None, rank: int = 0, "
    "ranks: int = 1, model_heads: int = 0, first_layer: int = 0, model_layers: int = 0, "
    "other_ranks: collections.abc.Sequence[int] = ..., "
    "remote: dict[str, typing.Any] | None = None) -> None";

}  // namespace ashlar::python
