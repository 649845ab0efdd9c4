"""What a trainer rank holds of a model: its tensors, their shards, and where they stand in the
checkpoint."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dcr import _core
from dcr.errors import Error, Mismatch, Unsupported
from dcr.torch import devices
from dcr.torch.conversion import (
    CanonicalPart,
    Export,
    is_of_transformers,
    learn_conversion,
    run_export,
    whole_tensor,
)
from dcr.torch.placement import Placement, Shards, shard_boxes, shards_of

__all__ = ["CanonicalDtype", "SourceModel", "dtype_name", "source_shards", "state_tensors"]

logger = logging.getLogger("dcr")

CanonicalDtype = torch.dtype | Callable[[str, torch.dtype], torch.dtype] | None
"""What dtype the checkpoint has: one for all floating-point tensors, a function of a tensor's
canonical name and its dtype in the trainer, or None for the trainer's own."""

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
    torch.complex64: "C64",
}

# Wrappers that put a segment into names.
_TRANSPARENT = {"_orig_mod", "_checkpoint_wrapped_module"}


def dtype_name(dtype: torch.dtype, name: str) -> str:
    """The safetensors spelling of a torch dtype. Raises `Unsupported` naming tensor `name`."""
    if dtype not in _DTYPES:
        raise Unsupported(f"{name} is {dtype}, which checkpoints don't have", name)
    return _DTYPES[dtype]


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model without DDP and torch.compile around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(
            model, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel
        ):
            inner = model.module
        if not isinstance(inner, torch.nn.Module):
            return model
        model = inner


def refuse(model: torch.nn.Module) -> None:
    """Raises `Unsupported`, naming the module, for wrappers that can't be refitted."""
    for name, module in model.named_modules():
        where = name or type(module).__name__
        kinds = {f"{base.__module__}.{base.__qualname__}" for base in type(module).__mro__}
        if any(kind.endswith(".FullyShardedDataParallel") for kind in kinds):
            raise Unsupported(
                f"{where} is wrapped by FullyShardedDataParallel (FSDP1), whose flat parameters "
                "aren't refitted: use fully_shard (FSDP2)"
            )
        if any(kind.startswith("peft.") for kind in kinds) or getattr(
            module, "_hf_peft_config_loaded", False
        ):
            raise Unsupported(
                f"{where} is a PEFT module ({type(module).__name__}): adapters aren't refitted; "
                "merge them first"
            )


def canonical_names(model: torch.nn.Module, keys: Iterable[str]) -> dict[str, str]:
    """By key of the state dict: its name without the segments that wrappers put into it."""
    parallel = [
        f"{name}.module."
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.parallel.DistributedDataParallel)
    ]
    names = {}
    for key in keys:
        name = key
        for prefix in parallel:
            if key.startswith(prefix):
                name = prefix.removesuffix("module.") + key.removeprefix(prefix)
        name = ".".join(part for part in name.split(".") if part not in _TRANSPARENT)
        names[key] = name
    return names


def state_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name, each tied tensor once, as they are now.

    `model` is `unwrapped`. Which of tied names stays is what saving the model decides.
    """
    found = model.state_dict(keep_vars=True)
    names = canonical_names(model, found)
    state = {
        names[key]: tensor for key, tensor in found.items() if isinstance(tensor, torch.Tensor)
    }
    for ignored in getattr(model, "_keys_to_ignore_on_save", None) or ():
        state.pop(ignored, None)
    owners: dict[object, list[str]] = {}
    for name, tensor in state.items():
        owners.setdefault(_identity(tensor), []).append(name)
    tied = [names for names in owners.values() if len(names) > 1]
    for aliases in tied:
        kept = _kept_name(model, aliases)
        for name in aliases:
            if name != kept:
                del state[name]
    return state


def _identity(tensor: torch.Tensor) -> object:
    local = local_tensor(tensor)
    if local.numel() == 0 or local.device.type == "meta":
        return id(tensor)
    shape, strides = tuple(local.shape), local.stride()
    return (local.device, local.data_ptr(), local.dtype, shape, strides)


def _kept_name(model: Any, names: list[str]) -> str:
    """The name of a tied tensor in the checkpoint."""
    if not is_of_transformers(model):
        return names[0]
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    shared = torch.zeros(1)
    left = remove_tied_weights_from_state_dict({name: shared for name in names}, model)
    kept: str = next(iter(left))
    return kept


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The rank's own part of a DTensor, or the tensor."""
    to_local = getattr(tensor, "_local_tensor", None)
    return tensor.detach() if to_local is None else to_local.detach()


def source_shards(name: str, tensor: torch.Tensor) -> Shards:
    """What this rank holds of a tensor. Raises `Unsupported` naming a placement that isn't known,
    and `Mismatch` where the local tensor has another shape than the placements say."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        shape = tuple(tensor.shape)
        return Shards(shape, tuple(((0, size),) if size else () for size in shape))
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return Shards(tuple(tensor.shape), tuple(() for _ in tensor.shape), held=False)
    placements = [_placement(name, one) for one in tensor.placements]
    check_order(name, tensor.placements, tuple(mesh.shape))
    shards = shards_of(tuple(tensor.shape), placements, tuple(mesh.shape), coordinate)
    local = tuple(tensor._local_tensor.shape)
    if local != shards.local_shape and not (shards.empty and 0 in local):
        raise Mismatch(
            f"{name}: its placements {tuple(tensor.placements)} on a mesh of {tuple(mesh.shape)} "
            f"give this rank {shards.local_shape} of {tuple(tensor.shape)}, but its local tensor "
            f"is {local}",
            name,
        )
    return shards


def _placement(name: str, placement: object) -> Placement:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    # In newer versions a strided shard is no Shard, in older ones it is.
    if isinstance(placement, _StridedShard):
        return Placement("strided", placement.dim)
    if isinstance(placement, Shard):
        return Placement("shard", placement.dim)
    if isinstance(placement, Replicate):
        return Placement("replicate")
    raise Unsupported(
        f"{name} has the placement {type(placement).__name__}: only Shard and Replicate hold a "
        "tensor's elements; redistribute it first",
        name,
    )


def check_order(name: str, placements: Sequence[Any], mesh_shape: tuple[int, ...]) -> None:
    """Refuses strided shards that are cut in another order than `shards_of` cuts them in: shapes of
    local tensors may be the same then, and elements others."""
    from torch.distributed.tensor.placement_types import _StridedShard

    for index, one in enumerate(placements):
        if not isinstance(one, _StridedShard):
            continue
        before = 1
        for later, size in zip(placements[index + 1 :], mesh_shape[index + 1 :], strict=True):
            if getattr(later, "dim", None) == one.dim:
                before *= size
        if one.split_factor != before:
            raise Unsupported(
                f"{name} has the placements {tuple(placements)} on a mesh of {mesh_shape}: a "
                f"strided shard whose split factor is {one.split_factor}, where those that cut "
                f"dimension {one.dim} before it make {before}; redistribute it first",
                name,
            )


def byte_range(name: str, local: torch.Tensor) -> tuple[int, int]:
    """Of a tensor's storage: where its first element begins and how many bytes it takes from there
    to the end of its last."""
    last = sum(
        (size - 1) * stride for size, stride in zip(local.shape, local.stride(), strict=True)
    )
    words = 0 if local.numel() == 0 else last + 1
    width = local.element_size()
    storage = local.untyped_storage()
    begin = int(local.storage_offset()) * width
    # set_() would make a storage longer that is too short, and what it gets is noise.
    if begin + words * width > storage.nbytes():
        raise Mismatch(
            f"{name}: its storage has {storage.nbytes()} bytes, its elements end at byte "
            f"{begin + words * width}; bring it back before a refit",
            name,
        )
    return begin, words * width


def storage_bytes(name: str, local: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last, as bytes."""
    begin, size = byte_range(name, local)
    memory = torch.empty(0, dtype=torch.uint8)
    return memory.set_(local.untyped_storage(), begin, (size,), (1,))


@dataclass(frozen=True)
class _Task:
    source: str
    name: str  # with the shard, so that ranks that hold the same have the same
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    shards: Shards
    parts: tuple[CanonicalPart, ...]


class SourceModel:
    """A model as one trainer rank holds it: what it declares to the other ranks, and where its
    tensors lie now.

    Plain modules, DDP, and DTensors (FSDP2, tensor parallelism, both). Tensors have the names,
    shapes and dtypes of the checkpoint that the model saves. Raises `Unsupported` by name for FSDP1
    and PEFT, for placements other than Shard and Replicate, for tensors that lie neither in host
    memory nor on CUDA devices, and where saving computes with values.

    `export`, if it only moves elements, is learned once, over whole tensors. Else it is called for
    each refit with the tensors that this rank holds, DTensors as they are, and what it makes of
    them is what the rank holds of the checkpoint. `agree` is told whether it computes here, and
    says whether it does on any rank: it is called on all of them then.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        dtype: CanonicalDtype = None,
        export: Export | None = None,
        agree: Callable[[bool], bool] = bool,
    ) -> None:
        self.model = unwrapped(model)
        refuse(model)
        self._dtype = dtype
        self._export: Export | None = None
        self.canonical: list[tuple[str, str, tuple[int, ...]]] = []
        self._index: dict[str, int] = {}
        self._tasks: list[_Task] = []
        self._found: set[int] = set()
        self._staged: dict[torch.device, _core.StagedDevice] = {}  # that tensors lay on
        tensors = state_tensors(self.model)
        conversion = self._learn(tensors, export)
        if export is not None and agree(conversion is None):
            conversion = None
        if conversion is None:
            self._export = export
            # Of copies, as nobody knows yet what it does to them.
            tensors = self._exported({name: one.detach().clone() for name, one in tensors.items()})
            conversion = {name: [whole_tensor(name, one.shape)] for name, one in tensors.items()}
        self._sources = set(tensors)
        for name, tensor in tensors.items():
            self._add(name, tensor, tuple(conversion[name]))

    @property
    def computed(self) -> bool:
        """Whether `storages` has what a user's function has computed, rather than the model's."""
        return self._export is not None

    def _learn(
        self, tensors: Mapping[str, torch.Tensor], export: Export | None
    ) -> dict[str, list[CanonicalPart]] | None:
        """Where elements go; None where a user's function computes some."""
        try:
            return learn_conversion(self.model, tensors, export)
        except Unsupported as error:
            if export is None:
                raise
            logger.info("export is called for each refit, as it computes with values: %s", error)
            return None

    def _exported(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        assert self._export is not None
        return dict(run_export(self._export, tensors))

    def _add(self, name: str, tensor: torch.Tensor, parts: tuple[CanonicalPart, ...]) -> None:
        for part in parts:
            dtype = self._canonical_dtype(part.name, tensor.dtype)
            entry = (part.name, dtype_name(dtype, part.name), part.shape)
            if part.name not in self._index:
                self._index[part.name] = len(self.canonical)
                self.canonical.append(entry)
            elif self.canonical[self._index[part.name]] != entry:
                raise Unsupported(f"{part.name} comes of tensors of several dtypes", part.name)
        shards = source_shards(name, tensor)
        if shards.empty or not parts:
            return
        local = local_tensor(tensor)
        label = name if shards.whole else name + shards.describe()
        self._tasks.append(
            _Task(name, label, local.dtype, tuple(local.shape), local.stride(), shards, parts)
        )

    def _canonical_dtype(self, name: str, dtype: torch.dtype) -> torch.dtype:
        if self._dtype is None:
            return dtype
        if isinstance(self._dtype, torch.dtype):
            return self._dtype if dtype.is_floating_point else dtype
        return self._dtype(name, dtype)

    @property
    def task_names(self) -> list[str]:
        """Of the tensors and shards that this rank holds, in the order of `storages`."""
        return [task.name for task in self._tasks]

    def declaration(self, rank: int, ranks: int) -> bytes:
        """What rank `rank` of `ranks` tells all others."""
        tasks = [
            (
                task.name,
                dtype_name(task.dtype, task.source),
                list(task.sizes),
                list(task.strides),
                shard_boxes(task.shards),
                [(self._index[part.name], box) for part in task.parts for box in part.boxes],
            )
            for task in self._tasks
        ]
        tensors = [(name, dtype, list(shape)) for name, dtype, shape in self.canonical]
        return _core.encode_declaration(rank, ranks, tensors, tasks)

    def identities(self) -> set[int]:
        """Of the tensors that `storages` found last, and of the model's parameters as they are now:
        what an optimizer of the model has."""
        return self._found | {id(parameter) for parameter in self.model.parameters()}

    def storages(self) -> "list[torch.Tensor | _core.DeviceBytes]":
        """The memory of this rank's tensors, looked up now: what was offloaded, resized or
        replaced is found where it is. On devices it is read when what the calling thread's current
        stream has been given is done. Raises `Mismatch` naming a tensor that became another.

        Where they are `computed`, they are so now, and whoever has them keeps them."""
        tensors = state_tensors(self.model)
        self._found = {id(tensor) for tensor in tensors.values()}
        if self.computed:
            tensors = self._exported({name: one.detach() for name, one in tensors.items()})
            for name in tensors.keys() - self._sources:
                raise Mismatch(f"export made {name}, which it had not made before", name)
        storages: list[torch.Tensor | _core.DeviceBytes] = []
        followed: set[torch.device] = set()
        for task in self._tasks:
            tensor = tensors.get(task.source)
            if tensor is None:
                where = "made by export" if self.computed else "in the model"
                raise Mismatch(f"{task.source} is no longer {where}", task.source)
            local = local_tensor(tensor)
            now = (local.dtype, tuple(local.shape), local.stride())
            then = (task.dtype, task.sizes, task.strides)
            if now != then:
                raise Mismatch(
                    f"{task.name} was declared as {then} and is {now}: make a new owner",
                    task.source,
                )
            device = devices.reach.device_of(local.untyped_storage())
            if device is None and local.device.type != "cpu":
                raise Unsupported(
                    f"{task.source} is on {local.device}: owners read host memory and CUDA's",
                    task.source,
                )
            if device is None:
                storages.append(storage_bytes(task.source, local))
                continue
            staged = self._open(task.source, device)
            if device not in followed:
                staged.follow(devices.reach.stream(device))
                followed.add(device)
            begin, size = byte_range(task.source, local)
            address = local.untyped_storage().data_ptr() + begin
            storages.append(_core.DeviceBytes(staged, address, size, local))
        return storages

    def _open(self, name: str, device: torch.device) -> _core.StagedDevice:
        if device not in self._staged:
            try:
                self._staged[device] = devices.staged(device)
            except Error as error:
                raise type(error)(
                    f"{name} is on {device}, which cannot be read: {error}; or move the model to "
                    "host memory for refits",
                    name,
                ) from error
        return self._staged[device]

