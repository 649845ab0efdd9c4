"""What a receiver of a run compares and refuses before it takes part."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("safetensors", reason="needs safetensors")

import safetensors.torch
import dcr.run
import dcr.torch
from dcr import errors
from dcr.torch.checkpoint import CheckpointTensors
from dcr.torch.placed import uneven_by_name
from dcr.torch.receiver import tensor_tuples, traced_receiver
from run_parts import Net, run_directory, wait_until
from torch_loaders import Served, all_bytes, checkpoint, group_of_one


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with run_directory(tmp_path / "run") as path:
        yield path


def test_a_module_is_audited_against_what_it_was_loaded_from(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("base", "other", "longer"):
        (tmp_path / name).mkdir()
        state = Net(1).state_dict()
        if name == "other":
            del state["steps"]
        if name == "longer":
            state["second.weight"] = torch.zeros(34, 64)
        safetensors.torch.save_file(state, tmp_path / name / "model.safetensors")
    changed = Net(1)
    with torch.no_grad():
        changed.second.weight[3, 4] += 1
    run = dcr.run.Run(directory)
    receivers = {
        name: run.receiver(f"{name}.0", engine=name, model=model, base=tmp_path / base)
        for name, model, base in (
            ("good", Net(1), "base"),
            ("changed", changed, "base"),
            ("unknown", changed, "other"),
            ("longer", Net(1), "longer"),
        )
    }
    owner = dcr.torch.Owner(Net(1), run=directory)
    wanted = {
        "good": "waits for a dense attempt",
        "changed": 'failed: tensor "second.weight": 1 of 2112 resident words are not what',
        "unknown": "waits for a dense attempt",
        "longer": "failed: the trainer's 'second.weight' has the shape [33, 64], and [34, 64] in "
        f"{tmp_path / 'longer'}",
    }
    deadline = time.monotonic() + 60
    while not all(text in receivers[name].status() for name, text in wanted.items()):
        assert time.monotonic() < deadline, {n: r.status() for n, r in receivers.items()}
        time.sleep(0.05)
    assert "has no 'steps'" in caplog.text
    owner.close()


def loaded(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> CheckpointTensors:
    tmp_path.mkdir(exist_ok=True)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    return CheckpointTensors(tmp_path)


REFUSED = (
    ("collective", "its loader talks to other ranks"),
    ("normalized", "an element of a parameter depends on several of the tensor's"),
)


def test_what_one_worker_cannot_refit_is_refused(tmp_path: Path) -> None:
    for extra, why in REFUSED:
        module = Served(0, 2, extra)
        published = tensor_tuples(checkpoint(0, extra))
        with group_of_one(tmp_path), pytest.raises(errors.Unsupported) as refused:
            traced_receiver(module, published, None, (), ())
        assert str(refused.value) == f'tensor "extra" cannot be refitted exactly: {why}'
        assert refused.value.tensor == "extra"


def test_the_core_refuses_it_too(directory: Path, tmp_path: Path) -> None:
    run = dcr.run.Run(directory)
    receiver = dcr._core.RunReceiver(run.core, "e.0", "e")
    owner = dcr.torch.Owner(Net(1), run=directory)
    wait_until(lambda: receiver.find_owners(0.1))
    for extra, why in REFUSED:
        with group_of_one(tmp_path):
            made = dcr.torch.ModelReceiver(Served(0, 2, extra), checkpoint(0, extra))
            made.prewarm()
        with pytest.raises(errors.Unsupported) as refused:
            receiver.serve(made._core)
        assert str(refused.value) == f'tensor "extra" cannot be refitted exactly: {why}'
        assert refused.value.tensor == "extra"
    receiver.close()
    owner.close()


class TakesTheHead(Served):
    """Whose experts are cut by the parameter's size, as vLLM's loaders cut."""

    def load_expert(self, value: torch.Tensor, which: str) -> None:
        into = self.stack.data[int(which)]
        into.copy_(value.narrow(0, self.rank * into.shape[0], into.shape[0]))


def test_another_shape_than_was_loaded_is_refused(tmp_path: Path) -> None:
    """Also where the loader has nothing against it, and other tensors prevent an audit anyway."""
    tensors = checkpoint(0)
    base = loaded(tmp_path, {name: one for name, one in tensors.items() if name != "decay"})
    modules = [TakesTheHead(rank, 2) for rank in range(2)]
    module = modules[1]
    module.load_weights(tensors.items())
    before = all_bytes(module)
    tensors["expert.2"] = torch.cat([tensors["expert.2"], tensors["expert.2"]])
    published = tensor_tuples(tensors)
    ranks = []
    for one in modules:
        _, _, placed = traced_receiver(one, published, None, (), ())
        ranks.append(placed())
        assert ranks[-1]["expert.2"].path == "traced"
    uneven = uneven_by_name(ranks)
    assert uneven["expert.2"].reason == "element 128 lies on no rank"
    assert uneven["skipped"].reason == "every rank's loader skips it"
    # What an engine's gate looks for.
    assert [name for name, one in uneven.items() if one.missing] == ["expert.2"]
    with pytest.raises(errors.Mismatch) as refused:
        traced_receiver(module, published, None, (), (), base)
    assert refused.value.tensor == "expert.2"
    assert str(refused.value) == (
        f"the trainer's 'expert.2' has the shape [16, 16], and [8, 16] in {tmp_path}, which the "
        "module was loaded from: train the model that is served"
    )
    assert all_bytes(module) == before


def test_another_dtype_than_was_loaded_is_no_audit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = checkpoint(0)
    base = loaded(tmp_path, {**tensors, "norm": tensors["norm"].float()})
    module = Served(0, 1)
    module.load_weights(tensors.items())
    with caplog.at_level(logging.WARNING, "dcr"):
        _, audited, _ = traced_receiver(module, tensor_tuples(tensors), None, (), (), base)
    assert not audited
    assert f"was loaded from: 'norm' is BF16, and F32 in {tmp_path}" in caplog.text
