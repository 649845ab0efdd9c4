"""Tiny models of Transformers' classes, and weights that change as is hard on a delta."""

from collections.abc import Callable
from pathlib import Path

import torch
import transformers

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 101,
    "max_position_embeddings": 64,
}


def _qwen3() -> transformers.PreTrainedModel:
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**_SIZES, tie_word_embeddings=False)
    )


def _qwen2_tied() -> transformers.PreTrainedModel:
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**_SIZES, tie_word_embeddings=True)
    )


def _llama() -> transformers.PreTrainedModel:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SIZES))


def _qwen3_moe() -> transformers.PreTrainedModel:
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            **_SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24
        )
    )


def _mixtral() -> transformers.PreTrainedModel:
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2)
    )


MODELS: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "Qwen3": _qwen3,
    "Qwen2, tied": _qwen2_tied,
    "Llama": _llama,
    "Qwen3-MoE": _qwen3_moe,
    "Mixtral": _mixtral,
}


def make_model(name: str, dtype: torch.dtype = torch.bfloat16) -> transformers.PreTrainedModel:
    """The same weights at every call."""
    torch.manual_seed(7)
    return MODELS[name]().to(dtype)


def saved(model: transformers.PreTrainedModel, directory: Path) -> dict[str, torch.Tensor]:
    """The checkpoint that the model saves."""
    from safetensors.torch import load_file

    model.save_pretrained(directory)
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def words(tensor: torch.Tensor) -> torch.Tensor:
    """Bits as integers."""
    return tensor.view(_WORDS[tensor.element_size()])


def perturb(tensor: torch.Tensor, round_number: int, *, nans: bool = True) -> None:
    """A fake optimizer step, each element by its own bits, so that shards change as wholes do."""
    if not tensor.is_floating_point():
        return
    bits = words(tensor)
    old = bits.clone()
    bits[(old + round_number) % 7 == 0] += 1
    if nans:
        bits[(old + round_number) % 101 == 0] = -33  # NaN with a payload
    bits[(old + round_number) % 103 == 0] = torch.iinfo(bits.dtype).min  # negative zero
