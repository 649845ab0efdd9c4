#!/usr/bin/env python3
"""How much of a refit's wall time the calling thread of a trainer rank spends in Python.

    build/venv/bin/python tools/refit_time.py [--layers 8] [--size 8192] [--refits 5]

Two ranks of FSDP2 over gloo hold FP32 layers of size × size, and refit one engine, a plain module
in BF16, after changing 1 % of the words. Of each call of refit() it says how much was spent in the
core, in exchanges between ranks, which are torch's collectives, and in looking up where weights
are, which is torch's views and some Python; the rest is Python. Needs about five times the model's
memory.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Clock:
    """Seconds inside functions that are wrapped by it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


class Timed:
    """An object of the core whose calls are timed."""

    def __init__(self, core: Any, clock: Clock) -> None:
        self._core = core
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._core, name)
        return self._clock(value) if callable(value) else value


def layers(count: int, size: int) -> Any:
    import torch

    return torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False) for _ in range(count)))


def rank_main(rank: int, args: Any, run: str, store: str, found: Any) -> None:
    import torch
    import torch.distributed as dist
    from dcr.torch import Owner
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = layers(args.layers, args.size)
    for layer in model:
        fully_shard(layer)
    owner = Owner(fully_shard(model), run=run, dtype=torch.bfloat16, threads=1, replicas=False)
    owner.refit("first")
    core, exchanges, lookups = Clock(), Clock(), Clock()
    owner._joined = Timed(owner._joined, core)
    owner._core = Timed(owner._core, core)
    owner._exchange = exchanges(owner._exchange)
    owner.source.storages = lookups(owner.source.storages)
    generator = torch.Generator().manual_seed(rank)
    for number in range(args.refits):
        with torch.no_grad():
            for parameter in model.parameters():
                flat = parameter.to_local().view(-1)
                chosen = torch.randint(flat.numel(), (flat.numel() // 100,), generator=generator)
                flat[chosen] += 0.5
        dist.barrier()
        core.seconds = exchanges.seconds = lookups.seconds = 0.0
        began = time.perf_counter()
        result = owner.refit(number)
        wall = time.perf_counter() - began
        spent = core.seconds, exchanges.seconds, lookups.seconds
        found.put((rank, number, wall, spent, result.payload_bytes))
    owner.close()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--refits", type=int, default=5)
    args = parser.parse_args()

    import dcr.run
    import torch

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.fsdp", "dcr.torch"])
    found = context.Queue()
    with tempfile.TemporaryDirectory() as scratch:
        run = str(Path(scratch) / "run")
        joined = dcr.run.Run(run)

        class Agent:
            def close(self, fail_requests: bool) -> None: ...
            def open(self, label: str) -> None: ...

        model = layers(args.layers, args.size).to(torch.bfloat16)
        joined.gate("engine", receivers=["engine.0"], agent=Agent())
        joined.receiver("engine.0", engine="engine", model=model)
        ranks = [
            context.Process(target=rank_main, args=(rank, args, run, f"{scratch}/store", found))
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
        for _ in range(2 * args.refits):
            rank, number, wall, spent, payload_bytes = found.get()
            core, exchanges, lookups = (seconds / wall for seconds in spent)
            rest = 1 - core - exchanges - lookups
            print(
                f"rank {rank} refit {number}: {wall:.3f} s, core {core:.1%}, "
                f"exchanges {exchanges:.1%}, lookups {lookups:.2%}, Python {rest:.2%}, "
                f"{payload_bytes / 1e6:.1f} MB",
                flush=True,
            )
        for process in ranks:
            process.join()
        joined.close()


if __name__ == "__main__":
    main()
