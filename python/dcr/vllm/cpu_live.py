"""Weights that vLLM's CPU build packs: found, and kept live if the user wants it.

Linear layers keep a packed copy in a handle of oneDNN's and throw the weight away; experts are
permuted in place. Either way what a loader writes afterwards isn't what is computed with. `install`
keeps the weights as they were loaded: linear layers read them at each call, and experts have their
packed copy beside them, which `repack` makes anew when weights have changed.
"""

from importlib import import_module
from typing import Any

import torch

from dcr.errors import Unsupported

_HINT = "additional_config={'dcr': {'live_weights': True}} keeps them as they are loaded"


def check_live(model: torch.nn.Module) -> None:
    """Refuses a model that computes with copies of its weights.

    Raises:
        dcr.errors.Unsupported: naming the first layer.
    """
    for name, module in model.named_modules():
        linear = getattr(module, "cpu_linear", None)
        # It is called with the weight. If it closes over something, that is a packed copy.
        if getattr(linear, "__closure__", None) or hasattr(module, "_cpu_unpacked_conv_weight"):
            raise Unsupported(f"{name}: vLLM packed the weight after loading; {_HINT}")
        experts = _experts(module)
        if experts is not None and not hasattr(experts, "dcr_repack"):
            raise Unsupported(f"{name}: vLLM permuted the experts' weights after loading; {_HINT}")
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0:
            raise Unsupported(f"{name} is empty: vLLM packed it after loading")


def repack(model: torch.nn.Module) -> None:
    """Makes the packed copies of experts anew. Nothing may run meanwhile."""
    for module in model.modules():
        experts = _experts(module)
        if experts is not None:
            experts.dcr_repack()


def _experts(module: torch.nn.Module) -> Any:
    """What computes a layer's experts, if it is the CPU's unquantised one."""
    kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    if experts is None:
        return None
    cpu_moe: Any = import_module("vllm.model_executor.layers.fused_moe.experts.cpu_moe")
    return experts if isinstance(experts, cpu_moe.CPUUnquantizedExperts) else None


def install() -> None:
    """Has models that are loaded from here on in this process keep their weights live.

    Raises:
        dcr.errors.Unsupported: vLLM has no such part, by name.
    """
    utils: Any = import_module("vllm.model_executor.layers.utils")
    cpu_moe: Any = import_module("vllm.model_executor.layers.fused_moe.experts.cpu_moe")
    experts = getattr(cpu_moe, "CPUUnquantizedExperts", None)
    for owner, name in (
        (utils, "dispatch_cpu_unquantized_gemm"),
        (cpu_moe, "cpu_fused_moe"),
        (experts, "process_weights_after_loading"),
        (experts, "_padded_intermediate_size"),
        (experts, "apply"),
    ):
        if not hasattr(owner, name):
            version: Any = import_module("vllm.version")
            raise Unsupported(
                f"live_weights: vLLM {version.__version__} has no {name} where 0.32 has it"
            )
    utils.dispatch_cpu_unquantized_gemm = _dispatch_live
    cpu_moe.CPUUnquantizedExperts.process_weights_after_loading = _keep_experts
    cpu_moe.CPUUnquantizedExperts.dcr_repack = _repack_experts
    cpu_moe.CPUUnquantizedExperts.apply = _apply_experts


def _dispatch_live(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


def _keep_experts(self: Any, layer: Any) -> None:
    size = self.moe_config.intermediate_size_per_partition
    if self._padded_intermediate_size(self.moe_config) != size:
        raise Unsupported(
            f"live_weights: experts of {size} per rank would be padded; a multiple of 32 is not"
        )
    self._use_zentorch = False
    self._dcr_layer = layer
    self._dcr_packed = [torch.empty_like(layer.w13_weight), torch.empty_like(layer.w2_weight)]
    self.dcr_repack()


def _repack_experts(self: Any) -> None:
    weights = (self._dcr_layer.w13_weight, self._dcr_layer.w2_weight)
    for weight, packed in zip(weights, self._dcr_packed, strict=True):
        torch.ops._C.prepack_moe_weight(weight, packed, self.isa)


def _apply_experts(
    self: Any,
    output: torch.Tensor,
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: Any,
    global_num_experts: int,
    expert_map: torch.Tensor | None,
    a1q_scale: torch.Tensor | None,
    a2_scale: torch.Tensor | None,
    workspace13: torch.Tensor,
    workspace2: torch.Tensor,
    expert_tokens_meta: Any,
    apply_router_weight_on_input: bool,
) -> None:
    if expert_map is not None:
        # Experts of other ranks count nothing. vLLM's own method takes all for this rank's.
        local = expert_map[topk_ids.long()]
        elsewhere = local < 0
        topk_weights = topk_weights.masked_fill(elsewhere, 0.0)
        topk_ids = local.masked_fill(elsewhere, 0).to(topk_ids.dtype)
    cpu_moe: Any = import_module("vllm.model_executor.layers.fused_moe.experts.cpu_moe")
    w13, w2 = self._dcr_packed
    cpu_moe.cpu_fused_moe(
        output,
        hidden_states,
        w13,
        w2,
        self.w1_bias,
        self.w2_bias,
        topk_weights,
        topk_ids,
        activation.value,
        self.isa,
        apply_router_weight_on_input,
    )
