"""The tensors of a checkpoint on disk, one at a time: what a serving model was loaded from."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from dcr.errors import Mismatch, NotFound

__all__ = ["CheckpointTensors"]


class CheckpointTensors:
    """Reads tensors of a directory's safetensors files by their names, when they are asked for."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        safe_open: Any = import_module("safetensors").safe_open
        self._files: dict[str, Any] = {}
        for path in sorted(self.directory.glob("*.safetensors")):
            file = safe_open(str(path), framework="pt")
            self._files.update(dict.fromkeys(file.keys(), file))
        if not self._files:
            raise NotFound(f"{self.directory} has no safetensors file")

    def differs(self, tensors: Sequence[tuple[str, str, Sequence[int]]]) -> str:
        """Which of these (name, dtype, shape) it has not, or in another dtype; empty if none.

        Raises:
            dcr.errors.Mismatch: it has one in another shape. Loaders of sharded parameters take the
                head of a tensor that is too large, and say nothing.
        """
        differs = ""
        for name, dtype, shape in tensors:
            file = self._files.get(name)
            if file is None:
                differs = differs or f"{self.directory} has no {name!r}"
                continue
            view = file.get_slice(name)
            found = (view.get_dtype(), list(view.get_shape()))
            if found[1] != list(shape):
                raise Mismatch(
                    f"the trainer's {name!r} has the shape {list(shape)}, and {found[1]} in "
                    f"{self.directory}, which the module was loaded from: train the model that is "
                    "served",
                    name,
                )
            if found[0] != dtype:
                differs = differs or f"{name!r} is {dtype}, and {found[0]} in {self.directory}"
        return differs

    def __call__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor
