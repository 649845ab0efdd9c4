"""vLLM's model classes on CPUs, all ranks in one process, without process groups: enough to build
models and to load them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

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
def _as_rank(groups: dict[str, tuple[int, int]]) -> Iterator[None]:
    """With groups of these ranks and sizes; all others are of one rank."""
    names = ("_WORLD", "_TP", "_EP", "_ETP", "_PP", "_DP", "_DCP", "_PCP", "_EPLB")
    before = {name: getattr(parallel_state, name, None) for name in names}
    for name in names:
        setattr(parallel_state, name, _Group(*groups.get(name, (0, 1)), name))
    parallel_state._EPLB = None
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


@contextmanager
def _experts_without_a_gate() -> Iterator[None]:
    """They have no kernel on CPUs, which vLLM says while a model is built. Loading needs none."""
    from vllm.model_executor.layers.fused_moe import config, unquantized_fused_moe_method
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend

    check = config.FusedMoEConfig.__post_init__
    select = unquantized_fused_moe_method.select_unquantized_moe_backend

    def checked_elsewhere(self: Any) -> None:
        with mock.patch.object(config.current_platform, "is_xpu", lambda: True):
            check(self)

    def select_any(moe_config: Any) -> Any:
        if moe_config.is_act_and_mul:
            return select(moe_config)
        return UnquantizedMoeBackend.CPU, CPUUnquantizedExperts

    with (
        mock.patch.object(config.FusedMoEConfig, "__post_init__", checked_elsewhere),
        mock.patch.object(
            unquantized_fused_moe_method, "select_unquantized_moe_backend", select_any
        ),
    ):
        yield


class Ranks:
    """A model's ranks: `size` of tensor parallelism, in so many pipeline stages, so often in data
    parallelism. Models are built, and load, in their rank's turn only."""

    def __init__(
        self,
        directory: Path,
        size: int,
        *,
        expert_parallel: bool = False,
        pipeline: int = 1,
        data: int = 1,
        device: str = "cpu",
    ) -> None:
        from vllm.engine.arg_utils import EngineArgs

        self._tensor, self._pipeline, self._data = size, pipeline, data
        self.count = size * pipeline * data
        self._device = device
        with _as_rank({}):
            self._config = EngineArgs(
                model=str(directory),
                skip_tokenizer_init=True,
                load_format="dummy",
                enforce_eager=True,
                dtype="bfloat16",
                max_model_len=128,
                enable_expert_parallel=expert_parallel,
            ).create_engine_config()
        parallel = self._config.parallel_config
        parallel.tensor_parallel_size, parallel.pipeline_parallel_size = size, pipeline
        parallel.world_size, parallel.data_parallel_size = size * pipeline, data

    @contextmanager
    def turn(self, rank: int) -> Iterator[None]:
        """It is this rank's turn. Ranks count as vLLM counts them: tensor parallel ones first."""
        from vllm.config import set_current_vllm_config

        tensor = rank % self._tensor
        pipeline = rank // self._tensor % self._pipeline
        data = rank // self._tensor // self._pipeline
        groups = {
            "_WORLD": (rank, self.count),
            "_TP": (tensor, self._tensor),
            "_ETP": (tensor, self._tensor),
            "_PP": (pipeline, self._pipeline),
            "_DP": (data, self._data),
            "_EP": (data * self._tensor + tensor, self._data * self._tensor),
        }
        with set_current_vllm_config(self._config), torch.no_grad(), _as_rank(groups):
            self._config.parallel_config.rank = rank % (self._tensor * self._pipeline)
            self._config.parallel_config.data_parallel_rank = data
            yield

    def build(self, rank: int) -> Any:
        """A new model of the rank, whose parameters have not been loaded."""
        from vllm.model_executor.model_loader.utils import initialize_model
        from vllm.model_executor.models import utils
        from vllm.utils.torch_utils import set_default_torch_dtype

        with self.turn(rank), _expert_maps_in_host_memory(), _experts_without_a_gate():
            # A model before it has used the same names.
            self._config.compilation_config.static_forward_context.clear()
            # Remembered by the id of a model that may be gone.
            utils._model_to_pp_missing_layer_names.clear()
            with set_default_torch_dtype(torch.bfloat16), torch.device(self._device):
                return initialize_model(vllm_config=self._config)
