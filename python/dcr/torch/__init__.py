"""PyTorch: trainer ranks as owners.

`ModelOwner` makes the payloads of what changed in a model: plain modules, DDP, FSDP2, tensor
parallelism.
"""

from dcr.torch.owner import (
    CanonicalBox,
    CanonicalTensor,
    Exchange,
    ModelOwner,
    OpenRefit,
    PreparedRefit,
)

__all__ = [
    "CanonicalBox",
    "CanonicalTensor",
    "Exchange",
    "ModelOwner",
    "OpenRefit",
    "PreparedRefit",
]
