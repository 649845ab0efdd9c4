"""The reference that ours is measured against gives the same bits, by the paper's own means."""

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="Transformers is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")

from refits import StateOwner, changed, refit  # noqa: E402
from scratch_reference import FOLDS, ScratchReceiver, payloads  # noqa: E402
from test_tracer_vllm import CASES, fill, load, make_checkpoint  # noqa: E402
from torch_loaders import Served, all_bytes, checkpoint  # noqa: E402
from vllm_ranks import NEVER_LOADED, Ranks  # noqa: E402

from dcr.torch import ModelReceiver  # noqa: E402

SIZE = 4


@pytest.mark.parametrize("name", ["qwen3", "phi3", "mixtral"])
def test_equals_ours_and_a_dense_load(name: str, tmp_path: Path) -> None:
    tensors = make_checkpoint(CASES[name], tmp_path)
    ranks = Ranks(tmp_path, SIZE)
    for rank in range(SIZE):
        before, state = tensors, StateOwner(tensors)
        models = {label: ranks.build(rank) for label in ("dense", "ours", *FOLDS)}
        for model in models.values():
            fill(model)
            load(ranks, rank, model, tensors)
        with ranks.turn(rank):
            receiver = ModelReceiver(
                models["ours"],
                tensors,
                owners=state.owner.boxes,
                never_loaded=NEVER_LOADED,
                threads=1,
            )
            receiver.prewarm()
            references = [
                ScratchReceiver(models[fold], tensors, models[fold].load_weights, fold=fold)
                for fold in FOLDS
            ]
            for step, rate in enumerate((0.05, 0.0005, 1.0)):
                after = changed(before, step, rate)
                models["dense"].load_weights(iter(after.items()))
                refit(state, after, [receiver])
                sent = payloads(before, after, bucket_bytes=1 << 16)
                assert len(sent) > 1
                for reference in references:
                    for payload in sent:
                        reference.apply(reference.decode(payload))
                expected = all_bytes(models["dense"])
                for label, model in models.items():
                    assert all_bytes(model) == expected, (rank, step, label)
                before = after


def test_refuses_what_masks_cannot_pass() -> None:
    tensors = checkpoint(0)
    served = Served(0, 1)
    served.load_weights(tensors.items())
    before = all_bytes(served)
    reference = ScratchReceiver(served, tensors, served.load_weights)
    for name, message in (("router", "changes what it copies"), ("skipped", "copies nothing")):
        after = {**tensors, name: changed({name: tensors[name]}, 1, 1.0)[name]}
        (payload,) = payloads(tensors, after)
        with pytest.raises(RuntimeError, match=message):
            reference.apply(reference.decode(payload))
    assert all_bytes(served) == before
