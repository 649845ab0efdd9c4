"""Trainer ranks by vLLM's trainer API: `WeightTransferTrainerFactory` with the backend `dcr`.

    from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory
    from dcr.vllm.trainer import DcrTrainerInitInfo

    engine = WeightTransferTrainerFactory.trainer_init(
        DcrTrainerInitInfo(rank=rank, run=DIR), client=client, source=ModuleSource(model)
    )
    engine.send_weights()           # on every rank

Nothing goes through the client: engines take part in the run by themselves.
"""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import torch

from dcr.errors import InvalidArgument
from dcr.torch import Owner, RefitResult

_api: Any = import_module("vllm.distributed.weight_transfer.base")
_factory: Any = import_module("vllm.distributed.weight_transfer.factory")
_Info: Any = _api.TrainerInitInfo
_Engine: Any = _api.TrainerWeightTransferEngine


@dataclass
class DcrTrainerInitInfo(_Info):  # type: ignore[misc]
    """What a rank's owner is made with."""

    backend: ClassVar[str] = "dcr"

    run: str | None = None
    """The run's directory; by default `DCR_RUN`."""
    dtype: torch.dtype | None = None
    """Of the checkpoint, where it isn't the trainer's."""
    options: dict[str, Any] = field(default_factory=dict)
    """Other arguments of `dcr.torch.Owner`."""


class DcrTrainerWeightTransferEngine(_Engine):  # type: ignore[misc]
    """Refits the run's engines with the weights of a module."""

    init_info_cls = DcrTrainerInitInfo

    @classmethod
    def trainer_init(
        cls, init_info: DcrTrainerInitInfo, *, client: Any, source: Any = None
    ) -> "DcrTrainerWeightTransferEngine":
        """Makes the rank's owner; every rank calls it. `source` is a `ModuleSource`."""
        module = getattr(source, "_module", None)
        if not isinstance(module, torch.nn.Module):
            raise InvalidArgument(
                "the backend dcr compares a module's own tensors: give source=ModuleSource(model), "
                "and owners of other sources through dcr.torch.Owner(export=...)"
            )
        made = cls(client=client, source=source, is_sender=init_info.is_sender)
        made._owner = Owner(module, run=init_info.run, dtype=init_info.dtype, **init_info.options)
        return made

    def send_weights(self, label: str | int | None = None) -> RefitResult:
        """Returns when engines have the weights; every rank calls it.

        `label` is what engines show; by default the number of the version.
        """
        if label is None:
            label = self._owner.next_version()
        result: RefitResult = self._owner.refit(label)
        return result

    def shutdown(self) -> None:
        """Leaves the run."""
        self._owner.close()


if DcrTrainerInitInfo.backend not in _factory.WeightTransferTrainerFactory._registry:
    _factory.WeightTransferTrainerFactory.register_engine(
        DcrTrainerInitInfo.backend, DcrTrainerWeightTransferEngine
    )
