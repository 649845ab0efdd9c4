"""What is applied through traces equals a dense load, byte for byte."""

from typing import Any

import pytest

import dcr.errors

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from refits import StateOwner, changed, refit  # noqa: E402
from test_tracer import served  # noqa: E402
from torch_loaders import Served, all_bytes, checkpoint  # noqa: E402

from dcr.torch import ModelReceiver  # noqa: E402


def transition(old: dict[str, Any], seed: int, rate: float) -> dict[str, Any]:
    new = changed(old, seed, rate)
    new["head"] = new["norm"].clone()  # tied
    new["decay"] = torch.randn(4, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return new


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("encoding", ["xor", "add", "overwrite", None])
@pytest.mark.parametrize("prefer_scratch", [False, True])
def test_refits_equal_dense_loads(size: int, encoding: Any, prefer_scratch: bool) -> None:
    tensors = checkpoint(size)
    state = StateOwner(tensors)
    modules = [served(rank, size, tensors) for rank in range(size)]
    receivers = [
        ModelReceiver(
            module,
            tensors,
            owners=state.owner.boxes,
            prefer_scratch=prefer_scratch,
            post_apply_checks=size == 2,
            threads=1,
        )
        for module in modules
    ]
    for receiver in receivers:
        receiver.prewarm()
        receiver.audit(tensors)
    for step, rate in enumerate((0.3, 0.0, 0.02, 1.0)):
        tensors = transition(tensors, 100 * size + step, rate)
        refit(state, tensors, receivers, encoding=encoding)
        for rank, module in enumerate(modules):
            assert all_bytes(module) == all_bytes(served(rank, size, tensors)), (step, rank)
            receivers[rank].audit(tensors)


@pytest.mark.parametrize("extra", ["indexed", "cat", "foreach", "doubled", "row", "zeroed"])
def test_odd_loaders(extra: str) -> None:
    tensors = checkpoint(0, extra)
    if extra == "doubled":
        tensors["extra"] = torch.randn(4, 6).bfloat16()
    state = StateOwner(tensors)
    modules = [served(rank, 2, tensors, extra) for rank in range(2)]
    receivers = [
        ModelReceiver(module, tensors, owners=state.owner.boxes, threads=1) for module in modules
    ]
    for receiver in receivers:
        assert receiver.prewarm()["extra"].path != "refused"
    new = transition(tensors, 5, 0.3)
    if extra == "doubled":
        new["extra"] = torch.randn(4, 6).bfloat16()
    refit(state, new, receivers)
    for rank, module in enumerate(modules):
        assert all_bytes(module) == all_bytes(served(rank, 2, new, extra))


def test_verifying_writes_nothing() -> None:
    tensors = checkpoint(3)
    state = StateOwner(tensors)
    module = served(1, 2, tensors)
    receiver = ModelReceiver(module, tensors, owners=state.owner.boxes, threads=1)
    receiver.prewarm()
    before = all_bytes(module)
    same = refit(state, tensors, [receiver], mode="dense", verify=True)[0]
    assert same.different == 0
    assert same.destinations > 0
    module.gate_up.data.view(torch.uint8)[0, 0] ^= 1
    torn = all_bytes(module)
    other = refit(state, tensors, [receiver], mode="dense", verify=True)[0]
    assert other.different == 1
    assert all_bytes(module) == torn != before


def test_what_is_missing_is_said() -> None:
    tensors = checkpoint(0)
    state = StateOwner(tensors)
    module = Served(0, 1)
    receiver = ModelReceiver(module, tensors, owners=state.owner.boxes, threads=1)
    receiver.prewarm()
    state.set(transition(tensors, 1, 0.5))
    prepared = state.owner.prepare(needs=receiver.needs)
    receiver.begin(
        run=state.owner.run, attempt=state.owner.attempt, base_version=0, target_version=1
    )
    with pytest.raises(dcr.errors.Mismatch, match="owner 0"):
        receiver.finish()
    damaged = bytearray(prepared.payloads[0])
    damaged[len(damaged) // 2] ^= 1
    before = all_bytes(module)
    with pytest.raises(dcr.errors.Error):
        receiver.ingest(damaged)
    with pytest.raises(dcr.errors.Error):
        receiver.apply()
    assert all_bytes(module) == before


def test_transformers_model() -> None:
    transformers: Any = pytest.importorskip("transformers", reason="Transformers is not installed")
    config = transformers.Qwen3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=2,
        intermediate_size=64,
        vocab_size=50,
        tie_word_embeddings=True,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
    fresh = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    del tensors["lm_head.weight"]  # the same tensor as the embedding
    state = StateOwner(tensors)
    receiver = ModelReceiver(model, tensors, owners=state.owner.boxes, threads=1)
    assert {one.path for one in receiver.prewarm().values()} == {"traced"}
    receiver.audit(tensors)
    for step in range(3):
        tensors = changed(tensors, step, 0.1)
        refit(state, tensors, [receiver])
    fresh.load_state_dict(tensors, strict=False)
    assert all_bytes(model) == all_bytes(fresh)
