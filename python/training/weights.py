"""How new weights get from the trainer to engines: one interface, and the dense way, which sends
everything and is what refits are compared with. It has nothing of DCR."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

WAIT_SECONDS = 300.0
"""For a version that is to come."""


class TrainerWeights(Protocol):
    """On every rank of the trainer."""

    def publish(self, label: str) -> Mapping[str, Any]:
        """Makes the weights as they are a version; every rank calls it. What is to be reported of
        it comes back."""

    def close(self) -> None: ...


class EngineWeights(Protocol):
    """In an engine's process."""

    def prepare(self) -> Mapping[str, Any]:
        """Before the engine starts: what vLLM is to be told."""

    def adopt(self, llm: Any, label: str) -> None:
        """Brings the engine to a version, while nothing runs."""

    def doom(self) -> None:
        """Kills the process while the next version comes, when it hurts."""

    def close(self) -> None: ...


class Weights(Protocol):
    """A way for weights to go, as plain data that processes are started with."""

    def trainer(self, model: torch.nn.Module, rank: int) -> TrainerWeights:
        """In a rank of the trainer; all ranks together."""

    def engine(self, place: int) -> EngineWeights:
        """In the process of an engine."""


@dataclass(frozen=True)
class DenseWeights:
    """Files with everything, in a directory."""

    directory: Path

    def trainer(self, model: torch.nn.Module, rank: int) -> TrainerWeights:
        return DenseTrainerWeights(model, self.directory, rank)

    def engine(self, place: int) -> EngineWeights:
        return DenseEngineWeights(self.directory)


class DenseTrainerWeights:
    """The whole state dict, under the names that it has on disk, in a file for each version."""

    def __init__(self, model: torch.nn.Module, directory: Path, rank: int) -> None:
        self._model = model
        self._directory = directory
        self._rank = rank
        self._last: Path | None = None

    @torch.no_grad()
    def publish(self, label: str) -> Mapping[str, Any]:
        whole = {}
        for name, tensor in self._model.state_dict().items():
            if isinstance(tensor, DTensor):
                tensor = tensor.full_tensor()
            whole[name] = tensor.to(torch.bfloat16)
        if self._rank == 0:
            path = version_file(self._directory, label)
            save_file(whole, path.with_suffix(".part"))
            os.replace(path.with_suffix(".part"), path)
            if self._last is not None:  # every engine has adopted that one, or this were not here
                self._last.unlink()
            self._last = path
        return {}

    def close(self) -> None:
        pass


class DenseEngineWeights:
    """Such a file, through vLLM's own loader."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def prepare(self) -> Mapping[str, Any]:
        _keep_weights_live()
        return {}

    def adopt(self, llm: Any, label: str) -> None:
        path = version_file(self._directory, label)
        deadline = time.monotonic() + WAIT_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"version {label} did not come: {path}")
            time.sleep(0.005)
        whole = load_file(path)
        llm.apply_model(lambda model: len(model.load_weights(whole.items())))
        llm.reset_prefix_cache()
        llm.update_weight_version(label)

    def doom(self) -> None:
        raise NotImplementedError("nothing dies in a dense arm")

    def close(self) -> None:
        pass


def version_file(directory: Path, label: str) -> Path:
    """Where the dense way has a version."""
    return directory / f"{label}.safetensors"


def _keep_weights_live() -> None:
    """On some processors vLLM packs the weights of linear layers after loading and drops the
    tensors, so that nothing can be loaded again. Layers are told to use the tensors themselves."""
    from vllm.model_executor.layers import utils

    def dispatch(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch
