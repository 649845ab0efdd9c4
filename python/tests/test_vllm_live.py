"""Weights that vLLM's CPU build packs: refused by name, or kept live and refitted exactly."""

from pathlib import Path
from typing import Any

import pytest
from scripted_run import tell
from vllm_engines import (
    Aside,
    Child,
    answers,
    generate,
    in_process,
    make_model,
    needs_vllm,
    weights_of,
)

needs_vllm()

PROMPT = list(range(3, 43))


def checkpoint(model: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(sorted(load_file(weights_of(model)).items()))


def receiver_of(llm: Any, tensors: dict[str, Any], run: Path) -> Any:
    from dcr.torch import ModelReceiver
    from refits import StateOwner

    (model,) = llm.apply_model(lambda model: model)
    state = StateOwner(tensors)
    never = tell(run, "engine.0", "facts")["never_loaded"]
    boxes = state.owner.boxes
    receiver = ModelReceiver(model, tensors, owners=boxes, never_loaded=never, threads=1)
    receiver.prewarm()
    return state, receiver


def said_by(call: Any, *args: Any) -> str:
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def packed_experts(run: Path, model: Path) -> tuple[str, str]:
    """What is said of a stock engine: by looking at it, and by the audit."""
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False  # linear layers are another case
    llm = in_process(model, run)
    looked = said_by(tell, run, "engine.0", "prewarm")
    tensors = checkpoint(model)
    _, receiver = receiver_of(llm, tensors, run)
    return looked, said_by(receiver.audit, tensors)


def packed_linear(run: Path, model: Path) -> tuple[str, dict[str, str]]:
    """What is said of the engine, and of each of its parts by itself."""
    llm = in_process(model, run, dtype="float32")
    (parts,) = llm.apply_model(looked_at)
    return said_by(tell, run, "engine.0", "prewarm"), parts


def looked_at(model: Any) -> dict[str, str]:
    from dcr.vllm import cpu_live

    return {
        name: said_by(cpu_live.check_live, module)
        for name, module in model.named_modules()
        if next(module.children(), None) is None
    }


def fresh(model: Path) -> Any:
    from dcr.vllm import cpu_live

    cpu_live.install()
    return answers(generate(in_process(model, None), PROMPT, 8))


def live_experts(run: Path, models: list[Path]) -> list[Any]:
    """Refits of a live engine, and what it answers after each."""
    import dcr.vllm
    from refits import refit

    llm = in_process(models[0], run, live_weights=True)
    tell(run, "engine.0", "prewarm")
    tensors = checkpoint(models[0])
    state, receiver = receiver_of(llm, tensors, run)
    receiver.audit(tensors)
    found = []
    for step, model in enumerate([models[0], models[1], models[0]]):
        how = ("overwrite", "xor", "add")[step]
        refit(state, checkpoint(model), [receiver], encoding=how)
        (repacked,) = llm.apply_model(repack)
        assert repacked == 2
        call = Aside(tell, run, "gate-engine", "open", str(step))
        dcr.vllm.sync(llm, label=str(step))
        call.result()
        found.append(answers(generate(llm, PROMPT, 8)))
        call = Aside(tell, run, "gate-engine", "close", False)
        while not call.done:
            said_by(lambda: dcr.vllm.sync(llm, timeout=0.05))
        call.result()
    return found


def repack(model: Any) -> int:
    from dcr.vllm import cpu_live

    cpu_live.repack(model)
    return sum(cpu_live._experts(module) is not None for module in model.modules())


def test_experts_that_are_permuted_are_refused(tmp_path: Path) -> None:
    (model,) = make_model(tmp_path, 1, experts=True)
    looked, audited = Child(packed_experts, tmp_path, model).result()
    assert "model.layers.0.mlp.experts" in looked
    assert "vLLM permuted the experts' weights after loading" in looked
    assert "live_weights" in looked
    assert audited.startswith("Mismatch: ") and "model.layers.0.mlp.experts.0." in audited


def test_linear_layers_that_are_packed_are_refused(tmp_path: Path) -> None:
    """F32 ones are on every x86 CPU."""
    (model,) = make_model(tmp_path, 1)
    said, parts = Child(packed_linear, tmp_path, model).result()
    packed = {name for name, why in parts.items() if "vLLM packed the weight" in why}
    layers = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    linear = {f"model.layers.{number}.{layer}" for number in range(2) for layer in layers}
    assert linear <= packed <= linear | {"model.embed_tokens", "lm_head"}
    assert {parts[name] for name in parts.keys() - packed} == {""}
    assert "vLLM packed the weight after loading" in said and "live_weights" in said


def test_live_experts_are_refitted(tmp_path: Path) -> None:
    models = make_model(tmp_path, 2, experts=True)
    child = Child(live_experts, tmp_path, models)
    expected = [Child(fresh, model).result() for model in models]
    assert expected[0] != expected[1]
    assert child.result() == [expected[0], expected[1], expected[0]]
