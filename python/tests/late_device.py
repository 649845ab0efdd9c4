"""What tests need of a device: a place for modules to lie in, which is CUDA's memory, or memory of
the host behind a shared object like CUDA's.

The latter does what it is given as late as the interface allows (src/device/test_device.h), so that
a copy that nobody waits for, or work of a stream that nobody follows, shows in the bits.
"""

import ctypes
import os
import subprocess
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
import torch

from dcr.torch import devices

ROOT = Path(__file__).parents[2]


class Late(devices.Reach):
    """Has modules that were put on it on a device."""

    staging_bytes = 16 << 10

    def __init__(self, library: Path) -> None:
        self.library = library
        self._there: dict[int, torch.UntypedStorage] = {}  # kept, with their addresses
        self._given: list[Callable[[], object]] = []
        self._stream = ctypes.CFUNCTYPE(None)(self._do)

    def put(self, module: torch.nn.Module) -> None:
        """Has all of its tensors lie on the device from now on."""
        for tensor in [*module.parameters(), *module.buffers()]:
            storage = tensor.untyped_storage()
            self._there[storage._cdata] = storage

    def give(self, module: torch.nn.Module, work: Callable[[], object]) -> None:
        """Has the current stream do what changes a module, when somebody waits for the stream."""
        self.check_done()
        self._given.append(work)

    def check_done(self) -> None:
        """Somebody has waited for all that the stream was given."""
        assert not self._given, "nobody has followed the stream"

    def _do(self) -> None:
        while self._given:
            self._given.pop(0)()

    def device_of(self, storage: torch.UntypedStorage) -> torch.device | None:
        return torch.device("cuda", 0) if storage._cdata in self._there else None

    def stream(self, device: torch.device) -> int:
        address = ctypes.cast(self._stream, ctypes.c_void_p).value
        assert address is not None
        return address

    def current(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext()


class Everywhere(Late):
    """Has all memory of the host on the device."""

    def device_of(self, storage: torch.UntypedStorage) -> torch.device | None:
        return torch.device("cuda", 0) if storage.device.type == "cpu" else None


class Cuda(devices.Reach):
    """The real one, with small buffers."""

    staging_bytes = 16 << 10

    def put(self, module: torch.nn.Module) -> None:
        module.to("cuda")

    @torch.no_grad()
    def give(self, module: torch.nn.Module, work: Callable[[], object]) -> None:
        # Whatever comes from the host waits for the stream: it is brought here first, so that what
        # the stream does late is within the device.
        tensors = list(module.state_dict().values())
        before = [tensor.clone() for tensor in tensors]
        work()
        after = [tensor.clone() for tensor in tensors]
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        for tensor, new in zip(tensors, after, strict=True):
            tensor.copy_(new)

    def check_done(self) -> None:
        """It is done when it is done."""


Device = Late | Cuda


def build_late_device(directory: Path) -> Path:
    """Compiles the shared object, which is part of no installation."""
    library = directory / "libdcr_late_device.so"
    command = [
        os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC",
        "-fvisibility=hidden", f"-I{ROOT}", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}",
        str(ROOT / "tests" / "support" / "late_device.cc"), "-o", str(library),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return library


@contextmanager
def reaching(device: Device) -> Iterator[None]:
    """Has the package reach devices so, and open them anew."""
    stream = torch.cuda.stream(torch.cuda.Stream()) if isinstance(device, Cuda) else nullcontext()
    with stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "reach", device)
        patch.setattr(devices, "_opened", weakref.WeakValueDictionary())
        yield
