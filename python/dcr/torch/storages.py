"""Torch storages as the core's: ids, addresses, views."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dcr._core import (
    DeviceTargets,
    HostTargets,
    OperationTargets,
    SizedTargets,
    StagedDevice,
    TensorView,
)
from dcr.errors import Unsupported
from dcr.torch import devices
from dcr.torch.operations import TorchOperations

_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The safetensors name of a dtype, as `CanonicalTensor`s have it."""
    name = _NAMES.get(dtype)
    if name is None:
        raise Unsupported(f"{dtype} is no dtype of safetensors' that torch can load")
    return name


def torch_dtype(name: str) -> torch.dtype:
    """The inverse of `dtype_name`."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise Unsupported(f"torch has no tensors of {name}")
    return dtype


def view_of(storage: int, tensor: torch.Tensor) -> TensorView:
    """Where the tensor lies in its storage, which has this id."""
    offset = int(tensor.storage_offset())
    return TensorView(storage, dtype_name(tensor.dtype), offset, tensor.shape, tensor.stride())


class Storages:
    """The storages of a module, kept alive, under the ids that they have in a memory of the core.

    Storages are told apart by their implementation's address (`_cdata`), which no other has while
    this one lives.

    `device`, opened as `staged`, is where those that aren't in host memory lie, as far as the core
    reaches them by itself.
    """

    def __init__(
        self,
        meta: bool,
        scratch_bytes_max: int,
        torch_operations: bool,
        device: torch.device | None = None,
        staged: StagedDevice | None = None,
    ) -> None:
        self._operations = TorchOperations()
        self._device = device
        self._staged = staged  # kept open
        self.memory: HostTargets | SizedTargets | DeviceTargets | OperationTargets
        if meta:
            self.memory = SizedTargets()
        elif torch_operations:
            self.memory = OperationTargets(scratch_bytes_max, self._operations)
        elif staged is not None:
            self.memory = DeviceTargets(staged, scratch_bytes_max)
        else:
            self.memory = HostTargets(scratch_bytes_max)
        self._known: dict[int, tuple[int, torch.UntypedStorage, int, int]] = {}

    def register(self, name: str, tensor: torch.Tensor) -> int:
        """The id of the tensor's storage; a new one if it is new, or lies elsewhere than before."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if not self._reaches(storage):
            raise Unsupported(
                f"{name!r} lies on {tensor.device}, which this receiver does not reach", name
            )
        meta = isinstance(self.memory, SizedTargets)
        address, size = (0 if meta else storage.data_ptr()), storage.nbytes()
        known = self._known.get(key)
        if known is not None and known[2:] == (address, size):
            return known[0]
        if known is not None:
            self._remove(known[0])
        number = self._add(storage)
        self._known[key] = (number, storage, address, size)
        return number

    def _reaches(self, storage: torch.UntypedStorage) -> bool:
        if isinstance(self.memory, HostTargets):
            return storage.device.type == "cpu"
        if isinstance(self.memory, DeviceTargets):
            return storage.device.type == "cpu" or devices.reach.device_of(storage) == self._device
        return True

    def _add(self, storage: torch.UntypedStorage) -> int:
        if isinstance(self.memory, HostTargets):
            return self.memory.add(storage.data_ptr(), storage.nbytes())
        if isinstance(self.memory, DeviceTargets):
            on_device = devices.reach.device_of(storage) is not None
            add = self.memory.add_device if on_device else self.memory.add_host
            return add(storage.data_ptr(), storage.nbytes())
        number = self.memory.add(storage.nbytes())
        if isinstance(self.memory, OperationTargets):
            self._operations.add(number, storage)
        return number

    def _remove(self, number: int) -> None:
        if isinstance(self.memory, SizedTargets):
            return
        self.memory.remove(number)
        if isinstance(self.memory, OperationTargets):
            self._operations.remove(number)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While torch's operations may use the storages; the core has left nothing on its way."""
        if self._device is None or self._staged is None:
            yield
            return
        try:
            with devices.reach.current(self._device):
                yield
        finally:
            self.settle()

    def settle(self) -> None:
        """What torch was given comes before what the core does next."""
        if isinstance(self.memory, DeviceTargets):
            self.memory.settle()

    def find(self, key: int) -> int | None:
        """The id of a registered storage, by its `_cdata`."""
        known = self._known.get(key)
        return None if known is None else known[0]

    def given(self, value: TensorView) -> torch.Tensor:
        """A tensor over a scratch storage of the memory, which has to outlive it."""
        dtype = torch_dtype(value.dtype)
        shape = list(value.sizes)
        if isinstance(self.memory, SizedTargets):
            return torch.empty(shape, dtype=dtype, device="meta")
        count = 1
        for size in shape:
            count *= size
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        address, size = self.memory.address(value.storage)
        size = min(size, count * dtype.itemsize)
        raw = torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
        return raw.view(dtype).view(shape)

    @contextmanager
    def lend(self, tensor: torch.Tensor) -> Iterator[TensorView]:
        """A temporary of the loader's, readable through the memory in the meantime."""
        if not isinstance(self.memory, SizedTargets):
            tensor = tensor.detach().resolve_conj().resolve_neg()
        if not self._reaches(tensor.untyped_storage()):
            tensor = tensor.cpu()
        number = self._add(tensor.untyped_storage())
        try:
            yield view_of(number, tensor)
        finally:
            self._remove(number)
