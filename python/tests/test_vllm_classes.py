"""Engines of each model class: after refits of a run they hold what a fresh engine holds, byte for
byte, and answer as it does, bit for bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_parts import run_directory
from test_vllm_run import REAL, same_process
from vllm_engines import EXPERTS, VALUES, Child, make_model, needs_vllm

needs_vllm()

MANY: dict[str, Any] = {
    **VALUES,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
}
GATED: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
TIED: dict[str, Any] = {**VALUES, "tie_word_embeddings": True}
WHOLE: dict[str, Any] = {**VALUES, "num_key_value_heads": 4}

# Configuration, vLLM's module and class, and what the configuration says.
CLASSES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "qwen2": ("Qwen2Config", "qwen2", "Qwen2ForCausalLM", {**TIED, "hidden_size": 128}),
    "llama": ("LlamaConfig", "llama", "LlamaForCausalLM", VALUES),
    "granite": ("GraniteConfig", "granite", "GraniteForCausalLM", VALUES),
    "gemma3": (
        "Gemma3TextConfig",
        "gemma3",
        "Gemma3ForCausalLM",
        {**TIED, "sliding_window": 32},
    ),
    "phi3": ("Phi3Config", "phi3", "Phi3ForCausalLM", {**WHOLE, "pad_token_id": 0}),
    "mixtral": (
        "MixtralConfig",
        "mixtral",
        "MixtralForCausalLM",
        {**VALUES, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        "deepseek_v2",
        "DeepseekV3ForCausalLM",
        {
            **{key: value for key, value in MANY.items() if key != "head_dim"},
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    "glm4_moe": (
        "Glm4MoeConfig",
        "glm4_moe",
        "Glm4MoeForCausalLM",
        {**MANY, "n_group": 1, "topk_group": 1},
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        "qwen3_next",
        "Qwen3NextForCausalLM",
        {**EXPERTS, **GATED, "shared_expert_intermediate_size": 64},
    ),
    "qwen3_5": ("Qwen3_5TextConfig", "qwen3_5", "Qwen3_5ForCausalLM", {**VALUES, **GATED}),
    "mamba2": (
        "Mamba2Config",
        "mamba2",
        "Mamba2ForCausalLM",
        {
            "hidden_size": 64,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 1,
            "num_hidden_layers": 2,
            "vocab_size": 512,
            "tie_word_embeddings": False,
        },
    ),
    "nemotron_h": (
        "NemotronHConfig",
        "nemotron_h",
        "NemotronHForCausalLM",
        {
            **VALUES,
            "num_hidden_layers": 3,
            "hybrid_override_pattern": "M-*",
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 1,
        },
    ),
    "gpt_oss": (
        "GptOssConfig",
        "gpt_oss",
        "GptOssForCausalLM",
        {**WHOLE, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 32},
    ),
}


def make(name: str, directory: Path) -> Path:
    import torch
    import transformers

    config_class, _, architecture, values = CLASSES[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**values)
    model = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
    model.save_pretrained(directory)
    complete(name, directory)
    return directory


def complete(name: str, directory: Path) -> None:
    """What vLLM needs of a configuration, and Transformers does not write."""
    import transformers
    from vllm_ranks import write_config

    config_class, _, architecture, values = CLASSES[name]
    more = {"topk_method": "noaux_tc"} if name == "deepseek_v3" else {}
    config = getattr(transformers, config_class)(**values)
    write_config(directory, config, architecture, **more)


def refitted(name: str, run: Path, model: Path, saved: list[Path]) -> list[Any]:
    from vllm_ranks import register

    register(CLASSES[name][2], CLASSES[name][1])
    return same_process(run, model, saved)


def fresh(name: str, model: Path) -> Any:
    import test_vllm_run
    from vllm_ranks import register

    register(CLASSES[name][2], CLASSES[name][1])
    return test_vllm_run.fresh(model)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    with run_directory(tmp_path / "run") as path:
        yield path


@pytest.mark.long
@pytest.mark.parametrize("name", CLASSES)
def test_class(name: str, run: Path, tmp_path: Path) -> None:
    model = make(name, tmp_path / "model")
    saved = [tmp_path / f"step{number}" for number in range(3)]
    found = Child(refitted, name, run, model, saved, **REAL).result()
    assert found[0] != found[1] != found[2]
    for number in (1, 2):
        complete(name, saved[number])
        assert Child(fresh, name, saved[number]).result() == found[number]


def digests(llm: Any) -> list[str]:
    """Of each rank's parameters and buffers."""
    import test_vllm_run

    return list(llm.apply_model(test_vllm_run.digest))


def two_ranks(run: Path | None, models: list[Path]) -> list[Any]:
    """`LLM` over two workers: what it answers and holds, with a run after each refit."""
    import os

    import test_vllm_processes
    import test_vllm_run
    from vllm import LLM
    from vllm_engines import answers, arguments, generate

    test_vllm_processes.fork_engines()
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    dcr = {"live_weights": True} if run is not None else {}
    llm = LLM(**arguments(models[0], run, **dcr), tensor_parallel_size=2)
    found = []
    if run is None:
        return [(answers(generate(llm, test_vllm_run.PROMPT, 12)), digests(llm))]
    trained, owner = test_vllm_run.trainer(models[0], run)
    for number, directory in enumerate(models[1:]):
        test_vllm_run.step(trained, number)
        owner.refit(number)
        found.append((answers(generate(llm, test_vllm_run.PROMPT, 12)), digests(llm)))
        trained.save_pretrained(directory)
    owner.close()
    return found


def fresh_ranks(model: Path) -> list[Any]:
    from dcr.vllm import cpu_live

    cpu_live.install()  # forked workers have it too
    return two_ranks(None, [model])


@pytest.mark.long
@pytest.mark.parametrize("experts", [False, True])
def test_two_ranks(experts: bool, run: Path, tmp_path: Path) -> None:
    (model,) = make_model(tmp_path, 1, experts=experts)
    saved = [tmp_path / f"step{number}" for number in range(3)]
    more = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    found = Child(two_ranks, run, [model, *saved], **REAL, **more).result()
    assert found[0] != found[1] != found[2]
    for number in (1, 2):
        assert Child(fresh_ranks, saved[number], **more).result() == [found[number]]
