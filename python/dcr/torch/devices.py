"""Devices whose memory the core reaches by itself: CUDA's, through the shared object beside it."""

import logging
import os
import threading
import weakref
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from dcr import _core
from dcr.errors import NotFound, Unavailable

logger = logging.getLogger("dcr")


class Reach:
    """What torch knows of such devices."""

    library = Path(_core.__file__).parent / "libdcr_device.so"
    staging_bytes = 64 << 20  # of each of two pinned buffers, and as much of the device's

    def device_of(self, storage: torch.UntypedStorage) -> torch.device | None:
        """Where a storage lies, if the core can reach it there."""
        device = storage.device
        return device if device.type == "cuda" and torch.version.cuda is not None else None

    def stream(self, device: torch.device) -> int:
        """What the calling thread has its work done on: a `cudaStream_t`."""
        stream: int = torch.cuda.current_stream(device).cuda_stream
        return stream

    def current(self, device: torch.device) -> AbstractContextManager[object]:
        """Has the calling thread work on the device."""
        return torch.cuda.device(device)


reach = Reach()

_lock = threading.Lock()
_opened: weakref.WeakValueDictionary[int, _core.StagedDevice] = weakref.WeakValueDictionary()


def _after_fork() -> None:
    """A child has none of its parent's devices, and nobody who gives the lock back."""
    global _lock, _opened
    _lock = threading.Lock()
    _opened = weakref.WeakValueDictionary()


os.register_at_fork(after_in_child=_after_fork)


def staged(device: torch.device) -> _core.StagedDevice:
    """The device as the core reaches it: one for all owners and receivers of the process, for as
    long as one of them has it.

    Raises:
        dcr.errors.NotFound: the shared object is not part of this installation.
        dcr.errors.Unavailable: no driver that it can work with.
        dcr.errors.TooLarge: no room for the buffers.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    with _lock:
        found = _opened.get(index)
        if found is None:
            found = _core.StagedDevice(
                str(reach.library), index, staging_bytes=reach.staging_bytes
            )
            _opened[index] = found
            logger.info(
                "device %d (%s) is reached through two pinned buffers of %d MiB",
                index,
                found.name,
                reach.staging_bytes >> 20,
            )
        return found


def staged_for_receiver(device: torch.device) -> _core.StagedDevice | None:
    """The same, or None, with a line that says why, where torch's operations have to do it."""
    try:
        return staged(device)
    except (NotFound, Unavailable) as error:
        logger.warning(
            "parameters on %s are changed by torch's operations, not by DCR's own: %s",
            device,
            error,
        )
        return None


def common_device(storages: list[torch.UntypedStorage]) -> torch.device | None:
    """The one that all storages lie on but for those in host memory, if the core can reach it."""
    found = {reach.device_of(one) for one in storages if one.device.type != "meta"}
    outside = {
        one.device for one in storages if one.device.type != "cpu" and reach.device_of(one) is None
    }
    found.discard(None)
    return found.pop() if len(found) == 1 and not outside else None
