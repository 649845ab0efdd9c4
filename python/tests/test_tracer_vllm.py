"""vLLM's own model classes, all ranks in one process: what is refitted through traces equals what
their loaders make of the whole checkpoint, every byte of every parameter and buffer."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="Transformers is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

from refits import StateOwner, changed, union  # noqa: E402
from torch_loaders import all_bytes  # noqa: E402
from vllm_ranks import NEVER_LOADED, Ranks, register, write_config  # noqa: E402

from dcr.torch import ModelReceiver, uneven_tensors  # noqa: E402
from dcr.torch.loader import named_tensors  # noqa: E402

ATTENTION: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 500,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {
    **ATTENTION,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


@dataclass(frozen=True)
class Case:
    """A model class: how it is configured, and what of it cannot be traced."""

    config: str
    module: str
    architecture: str
    values: dict[str, Any]
    experts: bool = False
    scratch: tuple[str, ...] = ()  # patterns of names
    more: dict[str, Any] = field(default_factory=dict)  # for config.json
    never_loaded: tuple[str, ...] = ()


CASES = {
    "qwen3": Case("Qwen3Config", "qwen3", "Qwen3ForCausalLM", ATTENTION),
    "qwen2": Case(
        "Qwen2Config", "qwen2", "Qwen2ForCausalLM", {**ATTENTION, "tie_word_embeddings": True}
    ),
    "llama": Case("LlamaConfig", "llama", "LlamaForCausalLM", ATTENTION),
    "qwen3_moe": Case("Qwen3MoeConfig", "qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS, experts=True),
    "granite": Case("GraniteConfig", "granite", "GraniteForCausalLM", ATTENTION),
    "gemma3": Case(
        "Gemma3TextConfig",
        "gemma3",
        "Gemma3ForCausalLM",
        {**ATTENTION, "tie_word_embeddings": True, "sliding_window": 32},
    ),
    "phi3": Case(
        "Phi3Config",
        "phi3",
        "Phi3ForCausalLM",
        {**ATTENTION, "num_key_value_heads": 4, "pad_token_id": 0},
    ),
    "mixtral": Case(
        "MixtralConfig",
        "mixtral",
        "MixtralForCausalLM",
        {**ATTENTION, "num_local_experts": 8, "num_experts_per_tok": 2},
        experts=True,
    ),
    "deepseek_v3": Case(
        "DeepseekV3Config",
        "deepseek_v2",
        "DeepseekV3ForCausalLM",
        {
            **ATTENTION,
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 64,
        },
        experts=True,
        scratch=("*.e_score_correction_bias",),
        more={"topk_method": "noaux_tc"},
    ),
    "glm4_moe": Case(
        "Glm4MoeConfig",
        "glm4_moe",
        "Glm4MoeForCausalLM",
        {
            **ATTENTION,
            "num_hidden_layers": 3,  # one with experts in each of two stages
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 384,
        },
        experts=True,
        scratch=("*.mlp.gate.weight", "*.e_score_correction_bias"),
    ),
    "qwen3_next": Case(
        "Qwen3NextConfig",
        "qwen3_next",
        "Qwen3NextForCausalLM",
        {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 64},
        experts=True,
        scratch=("*.A_log",),
    ),
    "qwen3_5": Case(
        "Qwen3_5TextConfig",
        "qwen3_5",
        "Qwen3_5ForCausalLM",
        {**ATTENTION, **LINEAR},
        scratch=("*.A_log",),
    ),
    "mamba2": Case(
        "Mamba2Config",
        "mamba2",
        "Mamba2ForCausalLM",
        {
            "hidden_size": 64,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 4,
            "num_hidden_layers": 2,
            "vocab_size": 500,
            "tie_word_embeddings": False,
        },
        scratch=("*.A_log",),
    ),
    "nemotron_h": Case(
        "NemotronHConfig",
        "nemotron_h",
        "NemotronHForCausalLM",
        {
            **ATTENTION,
            "num_hidden_layers": 3,
            "hybrid_override_pattern": "M-*",
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 4,
        },
        scratch=("*.A_log",),
    ),
    "nemotron_h_moe": Case(
        "NemotronHConfig",
        "nemotron_h",
        "NemotronHForCausalLM",
        {
            **ATTENTION,
            "num_hidden_layers": 4,
            "hybrid_override_pattern": "ME*E",
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 4,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 384,
            "moe_shared_expert_intermediate_size": 64,
        },
        experts=True,
        scratch=("*.A_log", "*.mixer.gate.weight", "*.e_score_correction_bias"),
    ),
    "gpt_oss": Case(
        "GptOssConfig",
        "gpt_oss",
        "GptOssForCausalLM",
        {
            **ATTENTION,
            "num_key_value_heads": 4,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": 32,
        },
        experts=True,
        scratch=("*.down_proj_bias",),
    ),
}


class Layout(NamedTuple):
    """How a model is spread over ranks."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert_parallel: bool = False

    def __str__(self) -> str:
        parts = [f"{'ep' if self.expert_parallel else 'tp'}{self.tensor}"]
        parts += [f"pp{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"dp{self.data}"] if self.data > 1 else []
        return "-".join(parts)


LAYOUTS = [
    Layout(tensor=1),
    Layout(tensor=2),
    Layout(tensor=4),
    Layout(tensor=2, expert_parallel=True),
    Layout(tensor=4, expert_parallel=True),
    Layout(pipeline=2),
    Layout(tensor=2, pipeline=2),
    Layout(data=2),
    Layout(data=2, expert_parallel=True),
    Layout(tensor=2, data=2, expert_parallel=True),
]


def fill(model: Any) -> None:
    """Memory that nobody has written: what a load leaves out shows."""
    for _, parameter in model.named_parameters():
        raw = torch.empty(0, dtype=torch.uint8).set_(parameter.untyped_storage())
        raw.fill_(0x5A)


def load(ranks: Ranks, rank: int, model: Any, tensors: dict[str, Any]) -> None:
    """The whole list, by the model's own loader; copies, as some loaders write to what they get."""
    with ranks.turn(rank):
        model.load_weights((name, value.clone()) for name, value in tensors.items())


def never_loaded(model: Any, case: Case) -> list[str]:
    names = [name for name, _ in named_tensors(model)]
    patterns = (*NEVER_LOADED, *case.never_loaded)
    return [one for one in patterns if any(fnmatchcase(name, one) for name in names)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """By case, made when first asked for."""
    made: dict[str, tuple[Path, dict[str, Any]]] = {}

    class Made(dict[str, tuple[Path, dict[str, Any]]]):
        def __missing__(self, name: str) -> tuple[Path, dict[str, Any]]:
            directory = tmp_path_factory.mktemp(name)
            self[name] = (directory, make_checkpoint(CASES[name], directory))
            return self[name]

    return Made(made)


def make_checkpoint(case: Case, directory: Path) -> dict[str, Any]:
    """A tiny random checkpoint under the names that it has on disk."""
    from safetensors.torch import load_file

    torch.manual_seed(0)
    config = getattr(transformers, case.config)(**case.values)
    model = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
    model.save_pretrained(directory)
    write_config(directory, config, case.architecture, **case.more)
    register(case.architecture, case.module)
    tensors: dict[str, Any] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors.update(load_file(file))
        file.unlink()
    return dict(sorted(tensors.items()))


def selected() -> Iterator[Any]:
    chosen = os.environ.get("DCR_VLLM_CLASSES", "").split()
    for name, case in CASES.items():
        for layout in LAYOUTS:
            # Without experts, ranks of data parallelism are replicas.
            distributed = layout.expert_parallel or layout.data > 1
            if (distributed and not case.experts) or (chosen and name not in chosen):
                continue
            yield pytest.param(name, layout, id=f"{name}-{layout}")


def refit_ranks(
    state: StateOwner, ranks: Ranks, receivers: list[ModelReceiver], new: dict[str, Any], how: Any
) -> None:
    """One transition of all ranks."""
    state.set(new)
    owner = state.owner
    needs = union([receiver.needs for receiver in receivers])
    prepared = owner.prepare(encoding=how, needs=needs)
    for rank, receiver in enumerate(receivers):
        with ranks.turn(rank):
            receiver.begin(
                run=owner.run,
                attempt=owner.attempt,
                base_version=prepared.base_version,
                target_version=prepared.target_version,
            )
            for payload in prepared.payloads:
                assert receiver.ingest(payload) == "queued"
            receiver.end_of_owner(0, len(prepared.payloads))
            receiver.apply()
            receiver.finish()
    owner.commit()


def check_classes(case: Case, receivers: list[ModelReceiver]) -> None:
    """What is traced, and that each name is somewhere."""
    traced = everything = 0
    placed: set[str] = set()
    for receiver in receivers:
        for name, one in receiver.classes.items():
            assert one.path != "refused", (name, one.reason)
            odd = any(fnmatchcase(name, pattern) for pattern in case.scratch)
            assert one.path in ("traced", "skip") or odd, (name, one)
            traced += one.bytes if one.path == "traced" else 0
            everything += one.bytes
            if one.path != "skip" or one.tied:
                placed.add(name)
    assert placed == set(receivers[0].classes)
    assert uneven_tensors([receiver.placements for receiver in receivers]) == {}
    assert traced >= 0.99 * everything
    print(f"{100 * traced / everything:.3f} % of {everything} bytes traced")


@pytest.mark.parametrize(("name", "layout"), selected())
def test_class(checkpoints: Any, name: str, layout: Layout) -> None:
    case = CASES[name]
    directory, tensors = checkpoints[name]
    ranks = Ranks(
        directory,
        layout.tensor,
        expert_parallel=layout.expert_parallel,
        pipeline=layout.pipeline,
        data=layout.data,
    )
    state = StateOwner(tensors)
    models, receivers = [], []
    for rank in range(ranks.count):
        model = ranks.build(rank)
        fill(model)
        load(ranks, rank, model, tensors)
        receiver = ModelReceiver(
            model,
            tensors,
            owners=state.owner.boxes,
            never_loaded=never_loaded(model, case),
            threads=1,
        )
        before = all_bytes(model)
        with ranks.turn(rank):
            receiver.prewarm()
            receiver.audit(tensors)
        assert all_bytes(model) == before
        models.append(model)
        receivers.append(receiver)
    check_classes(case, receivers)
    sample = random.Random(name)
    for step in range(10):
        tensors = changed(tensors, step, 0.05)
        refit_ranks(state, ranks, receivers, tensors, ("xor", "add", "overwrite")[step % 3])
        rank, names = sample.randrange(ranks.count), sample.sample(sorted(tensors), 2)
        with ranks.turn(rank):
            receivers[rank].audit(tensors, names)
    for rank, model in enumerate(models):
        with ranks.turn(rank):
            receivers[rank].audit(tensors)
        fresh = ranks.build(rank)
        fill(fresh)
        load(ranks, rank, fresh, tensors)
        expected, found = all_bytes(fresh), all_bytes(model)
        assert expected.keys() == found.keys()
        for target, content in expected.items():
            assert found[target] == content, (rank, target)
