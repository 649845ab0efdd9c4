"""Experts under data parallelism on CPUs: what vLLM 0.32's CPU build lacks for them.

Its experts have ranks exchange tokens by `all_gatherv` and `reduce_scatterv`
(`AgRsAll2AllManager.dispatch` and `combine`), and its CPU communicator has neither: those of
`DeviceCommunicatorBase` raise NotImplementedError. They are here, over gloo. Every forward pass
leaves a byte in a file, so that tests see whether there was one.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import torch

PASSES = "FORWARD_PASSES"  # the environment variable that names the file


def install() -> None:
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.v1.worker.cpu_worker import CPUWorker

    CpuCommunicator.all_gatherv = _all_gatherv
    CpuCommunicator.reduce_scatterv = _reduce_scatterv
    for name in ("execute_model", "execute_dummy_batch"):
        setattr(CPUWorker, name, _counted(getattr(CPUWorker, name)))


def _counted(original: Any) -> Any:
    def execute(self: Any, *args: Any) -> Any:
        if not args or args[0].total_num_scheduled_tokens > 0:
            with Path(os.environ[PASSES]).open("ab") as file:
                file.write(b"x")
        return original(self, *args)

    return execute


def _all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    assert dim == 0
    if isinstance(input_, list):
        return [_all_gatherv(self, one, dim, sizes) for one in input_]
    sizes = sizes or [len(input_)] * self.world_size
    padded = input_.new_zeros((max(sizes), *input_.shape[1:]))
    padded[: len(input_)] = input_
    found = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(found, padded, group=self.device_group)
    return torch.cat([one[:size] for one, size in zip(found, sizes, strict=True)])


def _reduce_scatterv(self: Any, input_: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
    assert dim == 0
    sizes = sizes or [len(input_) // self.world_size] * self.world_size
    total = input_.clone()
    torch.distributed.all_reduce(total, group=self.device_group)
    return total.split(sizes)[self.rank_in_group].clone()


class Extension:
    """What tests ask of workers."""

    model_runner: Any
    vllm_config: Any

    def write_digest(self, directory: str) -> None:
        """A file for each data-parallel rank, with the digest of all parameters' and buffers'
        bytes."""
        from torch_loaders import all_bytes

        found = hashlib.sha256()
        for name, content in sorted(all_bytes(self.model_runner.model).items()):
            found.update(name.encode() + content)
        rank = self.vllm_config.parallel_config.data_parallel_rank
        (Path(directory) / f"digest-{rank}").write_text(found.hexdigest())
