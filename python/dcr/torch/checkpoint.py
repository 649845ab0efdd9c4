"""The tensors of a checkpoint on disk, one at a time: what a serving model was loaded from."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from dcr.errors import NotFound

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
        """Which of these (name, dtype, shape) it has not, or has otherwise; empty if none."""
        for name, dtype, shape in tensors:
            file = self._files.get(name)
            if file is None:
                return f"{self.directory} has no {name!r}"
            view = file.get_slice(name)
            found = (view.get_dtype(), list(view.get_shape()))
            if found != (dtype, list(shape)):
                return (
                    f"{name!r} is {dtype} {list(shape)}, and {found[0]} {found[1]} in "
                    f"{self.directory}"
                )
        return ""

    def __call__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor
