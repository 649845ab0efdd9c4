"""PyTorch: trainer ranks as owners, serving ranks as receivers.

`Owner` takes part in a run: `owner.refit(label)` has every engine of it take the weights as they
are. Beneath it, and without processes of DCR's own: `ModelOwner` makes the payloads of what changed
in a model (plain modules, DDP, FSDP2, tensor parallelism), `ModelReceiver` refits a serving module
in place through its own loader; `trace_geometry` says where a loader would put each tensor, on a
meta device too. docs/TRACING.md says what is found out and how.
"""

from dcr.torch.geometry import trace_geometry
from dcr.torch.loader import TorchLoader, state_dict_loader
from dcr.torch.owner import (
    CanonicalBox,
    CanonicalTensor,
    Exchange,
    GroupExchange,
    ModelOwner,
    OpenRefit,
    PreparedRefit,
)
from dcr.torch.placed import PlacedPart, Placement, uneven_tensors
from dcr.torch.receiver import ModelReceiver
from dcr.torch.run_owner import Owner, RefitHandle, RefitResult

__all__ = [
    "CanonicalBox",
    "CanonicalTensor",
    "Exchange",
    "GroupExchange",
    "ModelOwner",
    "ModelReceiver",
    "OpenRefit",
    "Owner",
    "PlacedPart",
    "Placement",
    "PreparedRefit",
    "RefitHandle",
    "RefitResult",
    "TorchLoader",
    "state_dict_loader",
    "trace_geometry",
    "uneven_tensors",
]
