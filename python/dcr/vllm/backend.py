"""vLLM's weight-transfer backend `dcr`: the receiver of one worker."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

from dcr.errors import Unsupported
from dcr.run import Receiver, Run
from dcr.torch import devices
from dcr.torch.loader import named_tensors
from dcr.torch.placed import Placement
from dcr.vllm import cpu_live
from dcr.vllm.settings import Settings, check_refittable, check_vllm, receiver_name

# What vLLM keeps beside weights and no checkpoint has.
NEVER_LOADED = ("*._?_scale", "*._prob_scale")

_Base: Any = import_module("vllm.distributed.weight_transfer.base").WeightTransferEngine


@dataclass
class Nothing:
    """What the run needs to be told through vLLM's weight-transfer calls."""


class DcrWeightTransferEngine(_Base):  # type: ignore[misc]
    """A worker's side of the backend. vLLM makes it when the model is loaded and processed; weights
    come through the run, never through vLLM's calls for them."""

    init_info_cls = Nothing
    update_info_cls = Nothing
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._settings = Settings.of(vllm_config)
        check_vllm()
        check_refittable(vllm_config)
        self._name = ""
        self._receiver: Receiver | None = None
        # Now, before vLLM measures what is left for its caches; nothing more is allocated later.
        device = devices.common_device([one.untyped_storage() for _, one in named_tensors(model)])
        self._staged = None if device is None else devices.staged_for_receiver(device)

    def start(self, engine: str, engine_instance: int, rank: int) -> str:
        """Starts the receiver, once the engine has started; returns its name in the run."""
        self._name = receiver_name(engine, rank)
        model = self.model
        patterns = [
            pattern
            for pattern in NEVER_LOADED
            if any(fnmatchcase(name, pattern) for name, _ in named_tensors(model))
        ]
        self._receiver = Run(self._settings.run).receiver(
            self._name,
            engine=engine,
            engine_instance=engine_instance,
            model=model,
            load_weights=self._load_weights,
            never_loaded=patterns,
            base=self._loaded_from(),
            before_prewarm=lambda: cpu_live.check_live(model),
            after_apply=(lambda: cpu_live.repack(model)) if self._settings.live_weights else None,
        )
        return self._name

    def status(self) -> dict[str, Any]:
        """For `WorkerExtension`."""
        status = None if self._receiver is None else self._receiver.status()
        return {"receiver": self._name, "status": status}

    @property
    def traces(self) -> int:
        """How often its receiver has traced."""
        return 0 if self._receiver is None else self._receiver.traces

    def placements(self) -> dict[str, Placement]:
        """For `WorkerExtension`, and the engine's gate."""
        return {} if self._receiver is None else self._receiver.placements()

    def shutdown(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        self._staged = None

    def _loaded_from(self) -> str | None:
        """The directory that has what the model was loaded with."""
        given = str(self.vllm_config.model_config.model)
        if self.vllm_config.load_config.load_format not in ("auto", "hf", "safetensors"):
            return None
        return given if any(Path(given).glob("*.safetensors")) else None

    def _load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> object:
        configured: Any = import_module("vllm.config").set_current_vllm_config
        with configured(self.vllm_config):
            return self.model.load_weights(weights)

    def init_transfer_engine(self, init_info: Nothing) -> None:
        self._refuse("init_weight_transfer_engine")

    def start_weight_update(self) -> None:
        self._refuse("start_weight_update")

    def receive_weights(self, update_info: Nothing) -> None:
        self._refuse("update_weights")

    def finish_weight_update(self) -> None:
        self._refuse("finish_weight_update")

    def _refuse(self, call: str) -> NoReturn:
        raise Unsupported(
            f"{call}: with the backend dcr weights come from the run {self._settings.run}; "
            "the trainer's refit() brings them, and nothing has to be called here"
        )


def start_receiver(worker: Any, engine: str, engine_instance: int) -> str:
    """Called in each worker when its engine has started, all of them at once."""
    if worker.device.type == "cpu":
        # vLLM may have left its warm-up out, and some buffers are replaced in the first pass.
        worker.execute_dummy_batch()
    parallel = worker.vllm_config.parallel_config  # whose data-parallel rank counts experts' only
    rank = parallel.data_parallel_rank * parallel.world_size + worker.rank
    name: str = worker.weight_transfer_engine.start(engine, engine_instance, rank)
    return name


def traces_of(worker: Any) -> int:
    """Called in each worker before its engine opens: costs next to nothing."""
    traces: int = worker.weight_transfer_engine.traces
    return traces


def placements_of(worker: Any) -> dict[str, Placement]:
    """Called in each worker when one has traced since the last time."""
    placements: dict[str, Placement] = worker.weight_transfer_engine.placements()
    return placements
