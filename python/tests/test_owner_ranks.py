"""Owners on several gloo ranks: FSDP2, HSDP, tensor parallelism, both, DDP."""

import multiprocessing
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")

import owner_ranks  # noqa: E402


@pytest.mark.parametrize("world", [2, 4])
def test_every_case(world: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.fsdp", "transformers", "dcr.torch"])
    processes = [
        context.Process(
            target=owner_ranks.run,
            args=(rank, world, str(tmp_path / "store"), str(tmp_path / "result")),
            daemon=True,
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    said = []
    for rank, process in enumerate(processes):
        file = tmp_path / f"result.{rank}"
        said.append(file.read_text() if file.exists() else f"rank {rank} said nothing")
        process.kill()
    failed = [f"rank {rank}: {text}" for rank, text in enumerate(said) if ": ok" not in text[-4:]]
    assert not failed, "\n\n".join(failed)
