"""Owners of Transformers' models: what receivers get is what the model saves, bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")

import dcr  # noqa: E402
from dcr.torch import ModelOwner  # noqa: E402
from dcr.torch.conversion import CanonicalPart, _Learner  # noqa: E402
from dcr.torch.source import state_tensors  # noqa: E402
from owner_checks import check_transitions  # noqa: E402
from owner_models import MODELS, make_model, perturb, saved  # noqa: E402

State = dict[str, torch.Tensor]


@pytest.mark.parametrize("name", MODELS)
def test_every_transition(name: str, tmp_path: Path) -> None:
    model = make_model(name)

    def step(number: int) -> None:
        with torch.no_grad():
            for tensor in state_tensors(model).values():
                perturb(tensor.detach(), number)

    check_transitions(
        ModelOwner(model),
        lambda payloads: [payloads],
        step=step,
        saved=lambda: saved(model, tmp_path),
        judge=True,
        where=name,
    )


def test_masters_come_out_as_what_is_saved_in_bf16(tmp_path: Path) -> None:
    model = make_model("Qwen3", torch.float32)

    def step(number: int) -> None:
        with torch.no_grad():
            for tensor in state_tensors(model).values():
                perturb(tensor.detach(), number, nans=False)
                tensor.mul_(1 + 2**-9)

    check_transitions(
        ModelOwner(model, dtype=torch.bfloat16),
        lambda payloads: [payloads],
        step=step,
        saved=lambda: {
            name: tensor.to(torch.bfloat16) for name, tensor in saved(model, tmp_path).items()
        },
        judge=True,
        where="FP32 masters",
    )


def test_tied_parameters_are_owned_once() -> None:
    owner = ModelOwner(make_model("Qwen2, tied"))
    names = [name for name, _, _ in owner.tensors]
    assert "lm_head.weight" not in names
    assert "model.embed_tokens.weight" in names
    assert owner.sizes.source_elements == owner.sizes.canonical_words


def test_experts_are_split_by_what_the_model_saves() -> None:
    owner = ModelOwner(make_model("Qwen3-MoE"))
    names = {name: shape for name, _, shape in owner.tensors}
    assert names["model.layers.1.mlp.experts.3.up_proj.weight"] == (24, 32)
    assert names["model.layers.1.mlp.experts.3.down_proj.weight"] == (32, 24)
    assert not any("gate_up_proj" in name for name in names)


Convert = Callable[[State], State]


def learn(convert: Convert, **shapes: tuple[int, ...]) -> dict[str, list[CanonicalPart]]:
    return _Learner(convert, shapes).learn()


def test_what_moves_elements_is_learned() -> None:
    made = learn(lambda state: {"ab": torch.cat([state["a"], state["b"]])}, a=(2, 3), b=(4, 3))
    assert made["a"] == [CanonicalPart("ab", (6, 3), ((0, 0, [(2, 3, 3), (3, 1, 1)]),))]
    assert made["b"] == [CanonicalPart("ab", (6, 3), ((0, 6, [(4, 3, 3), (3, 1, 1)]),))]
    twice = learn(lambda state: {"x": state["a"].t().contiguous(), "y": state["a"]}, a=(2, 3))
    assert {part.name for part in twice["a"]} == {"x", "y"}


@pytest.mark.parametrize(
    "convert",
    [
        lambda state: {"a": state["a"] + 1},
        lambda state: {"a": -state["a"]},
        lambda state: {"a": state["a"] // 2},
        lambda state: {"a": state["a"].to(torch.float32)},
        lambda state: {"a": state["a"].flip(0), "b": torch.zeros(3, dtype=torch.int32)},
        lambda state: {"a": state["a"] + state["b"]},
        lambda state: {"a": torch.sort(state["a"], descending=True).values},
    ],
)
def test_what_computes_is_refused_by_name(convert: Convert) -> None:
    with pytest.raises(dcr.errors.Unsupported, match="(a|b) (from|of)"):
        learn(convert, a=(8,), b=(8,))
