"""vLLM's model classes on CPUs, all ranks in one process, without process groups: enough to build
models and to load them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
parallel_state: Any = pytest.importorskip(
    "vllm.distributed.parallel_state", reason="vLLM is not installed"
)


# What vLLM keeps beside weights and no checkpoint of these models has.
NEVER_LOADED = ("*._?_scale", "*._prob_scale")


def register(architecture: str, module: str) -> None:
    """Tells vLLM the class itself, which saves it half a minute of looking for what it can do."""
    from importlib import import_module

    from vllm.model_executor.models.registry import ModelRegistry

    found = getattr(import_module(f"vllm.model_executor.models.{module}"), architecture)
    ModelRegistry.register_model(architecture, found)


class _ProcessGroup:
    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


class _Group:
    """What construction and loading ask of a group; anything else is an AttributeError."""

    def __init__(self, rank: int, size: int, name: str) -> None:
        self.rank = self.rank_in_group = self.local_rank = rank
        self.world_size = size
        self.ranks = list(range(size))
        self.unique_name = name
        self.device = torch.device("cpu")
        self.device_group = self.cpu_group = _ProcessGroup(rank, size)
        self.device_communicator = self.mq_broadcaster = None
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.first_rank, self.last_rank = 0, size - 1
        self.use_device_communicator = self.use_custom_op_call = False
        self.use_cpu_custom_send_recv = False


@contextmanager
def _as_rank(rank: int, size: int) -> Iterator[None]:
    names = ("_WORLD", "_TP", "_EP", "_ETP", "_PP", "_DP", "_DCP", "_PCP", "_EPLB")
    before = {name: getattr(parallel_state, name, None) for name in names}
    single = {name: _Group(0, 1, name) for name in ("_PP", "_DP", "_DCP", "_PCP")}
    wide = {name: _Group(rank, size, name) for name in ("_WORLD", "_TP", "_EP", "_ETP")}
    for name, group in {**single, **wide, "_EPLB": None}.items():
        setattr(parallel_state, name, group)
    try:
        yield
    finally:
        for name, group in before.items():
            setattr(parallel_state, name, group)


def write_config(directory: Path, config: Any, architecture: str, **more: Any) -> None:
    """A model directory with nothing in it but its configuration."""
    values = config.to_dict()
    values.update(architectures=[architecture], torch_dtype="bfloat16", **more)
    (directory / "config.json").write_text(json.dumps(values))


@contextmanager
def _expert_maps_in_host_memory() -> Iterator[None]:
    """Which expert is whose is looked up while a model is built, on the meta device too."""
    from vllm.model_executor.layers.fused_moe import expert_map_manager

    original = expert_map_manager.determine_expert_map

    def determine(*args: Any, **kwargs: Any) -> Any:
        with torch.device("cpu"):
            return original(*args, **kwargs)

    expert_map_manager.determine_expert_map = determine
    try:
        yield
    finally:
        expert_map_manager.determine_expert_map = original


class Ranks:
    """A model's ranks. Models are built, and load, in their rank's turn only."""

    def __init__(
        self, directory: Path, size: int, *, expert_parallel: bool = False, device: str = "cpu"
    ) -> None:
        from vllm.engine.arg_utils import EngineArgs

        self.size = size
        self._device = device
        with _as_rank(0, size):
            self._config = EngineArgs(
                model=str(directory),
                skip_tokenizer_init=True,
                load_format="dummy",
                enforce_eager=True,
                dtype="bfloat16",
                max_model_len=128,
                enable_expert_parallel=expert_parallel,
            ).create_engine_config()
        self._config.parallel_config.tensor_parallel_size = size
        self._config.parallel_config.world_size = size

    @contextmanager
    def turn(self, rank: int) -> Iterator[None]:
        """It is this rank's turn."""
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self._config), torch.no_grad(), _as_rank(rank, self.size):
            self._config.parallel_config.rank = rank
            yield

    def build(self, rank: int) -> Any:
        """A new model of the rank, whose parameters have not been loaded."""
        from vllm.model_executor.model_loader.utils import initialize_model
        from vllm.utils.torch_utils import set_default_torch_dtype

        with self.turn(rank), _expert_maps_in_host_memory():
            # A model before it has used the same names.
            self._config.compilation_config.static_forward_context.clear()
            with set_default_torch_dtype(torch.bfloat16), torch.device(self._device):
                return initialize_model(vllm_config=self._config)
