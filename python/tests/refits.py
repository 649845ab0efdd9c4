"""One owner over a plain state dict, any number of receivers, and what a dense load would have
made of them."""

from collections.abc import Sequence
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_loaders import random_words  # noqa: E402

from dcr.torch import ModelOwner, ModelReceiver  # noqa: E402


class StateOwner:
    """Owns a state dict as it is: a module with a parameter for each name."""

    def __init__(self, tensors: dict[str, Any], **options: Any) -> None:
        self._model = torch.nn.Module()
        self._parameters = {}
        for name, value in tensors.items():
            parent = self._model
            *parents, leaf = name.split(".")
            for part in parents:
                if part not in parent._modules:
                    parent.add_module(part, torch.nn.Module())
                parent = parent._modules[part]
            parameter = torch.nn.Parameter(value.clone(), requires_grad=False)
            parent.register_parameter(leaf, parameter)
            self._parameters[name] = parameter
        self.owner = ModelOwner(self._model, threads=1, **options)

    def set(self, tensors: dict[str, Any]) -> None:
        for name, value in tensors.items():
            self._parameters[name].data.copy_(value)


def union(needs: Sequence[Sequence[str]]) -> list[str]:
    """What receivers ask for together."""
    order = ("skip", "any", "overwrite", "dense")
    return [max(of_all, key=order.index) for of_all in zip(*needs, strict=True)]


def changed(tensors: dict[str, Any], seed: int, rate: float) -> dict[str, Any]:
    """The same with some elements changed to any bits, and NaN and -0.0 among them."""
    generator = torch.Generator().manual_seed(seed)
    result = {}
    for name, old in tensors.items():
        new = old.clone()
        flat, words = new.view(-1), random_words(tuple(old.shape), generator, old.dtype).view(-1)
        which = torch.rand(flat.shape, generator=generator) < rate
        raw, source = flat.view(torch.uint8), words.view(torch.uint8)
        bytes_changed = which.repeat_interleave(old.dtype.itemsize)
        raw[bytes_changed] = source[bytes_changed]
        if flat.numel() > 2 and old.dtype.is_floating_point:
            flat[0], flat[1] = float("nan"), -0.0
        result[name] = new
    return result


def refit(
    state: StateOwner,
    new: dict[str, Any],
    receivers: Sequence[ModelReceiver],
    *,
    encoding: Any = None,
    mode: Any = "mixed",
    verify: bool = False,
) -> list[Any]:
    """One transition from `state` to `new` in one attempt. Returns what each receiver counted."""
    owner = state.owner
    state.set(new)
    needs = union([receiver.needs for receiver in receivers])
    prepared = owner.prepare(mode=mode, encoding=encoding, needs=needs)
    counts = []
    for receiver in receivers:
        receiver.begin(
            run=owner.run,
            attempt=owner.attempt,
            base_version=prepared.base_version,
            target_version=prepared.target_version,
            verify=verify,
        )
        for payload in prepared.payloads:
            assert receiver.ingest(payload) == "queued"
        receiver.end_of_owner(0, len(prepared.payloads))
        receiver.apply()
        counts.append(receiver.finish())
    owner.commit()
    return counts
