"""What trainer ranks do in the tests of runs: under torchrun, spawned, or called by a driver."""

import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from dcr import errors
from dcr.run import Run
from dcr.torch import GroupExchange, Owner, RefitResult
from interrupts import interrupted_after
from run_parts import Net, digest, step, wait_until
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


class Trainer:
    """A rank's part of a model under FSDP2, which holds what `whole` holds."""

    def __init__(self, directory: str, seed: int) -> None:
        torch.set_num_threads(1)
        self.whole = Net(seed)
        self.model = fully_shard(Net(seed))
        self.owner = Owner(self.model, run=directory)
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        step(self.whole, self.steps)
        wanted = self.whole.state_dict()
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                if isinstance(tensor, DTensor):
                    placed = distribute_tensor(
                        wanted[name], tensor.device_mesh, tensor.placements
                    )
                    tensor.to_local().copy_(placed.to_local())
                else:
                    tensor.copy_(wanted[name])

    def refit(self, label: str) -> RefitResult:
        result = self.owner.refit(label)
        assert isinstance(result, RefitResult)
        return result

    def interrupted_refit(self, label: str, seconds: float) -> str:
        """What comes of a refit that SIGINT ends on this rank."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            self.owner.refit(label)
        except BaseException as error:
            return type(error).__name__
        finally:
            timer.join()
        return "committed"

    def refit_or_error(self, label: str) -> str:
        try:
            self.owner.refit(label)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "committed"

    def digest(self) -> str:
        """Of what engines should have."""
        return digest(self.whole)

    def close(self) -> None:
        self.owner.close()


def under_torchrun(directory: str, results: str) -> None:
    """Three refits; rank 0 writes what every rank found."""
    dist.init_process_group("gloo")
    trainer = Trainer(directory, 2)
    found = []
    for number in range(3):
        if number:
            trainer.step()
        result = trainer.refit(str(number))
        of_all: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_all, asdict(result))
        assert all(one == of_all[0] for one in of_all), of_all
        found.append([result.version, result.label, result.mode, trainer.digest()])
        if dist.get_rank() == 0:  # or the next refit may keep gates closed that have yet to open
            version = result.version
            wait_until(
                lambda version=version: [
                    one.version for one in Run(directory).status().engines if one.open
                ] == [version]
            )
        dist.barrier()
    trainer.close()
    if dist.get_rank() == 0:
        Path(results).write_text(json.dumps(found))
    dist.destroy_process_group()


def actor(calls: Connection, rank: int, world: int, store: str) -> None:
    """An object whose methods a driver calls from afar, as Ray's actors are."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    trainer: Trainer | None = None
    while True:
        name, args = calls.recv()
        if name == "end":
            dist.destroy_process_group()
            return
        try:
            if name == "Trainer":
                trainer = Trainer(*args)
                calls.send(None)
            else:
                calls.send(getattr(trainer, name)(*args))
        except Exception as error:
            calls.send(error)


def interrupted_exchange(rank: int, store: str, calls: Connection) -> None:
    """Rank 0's first exchange is interrupted before rank 1 comes to it; what follows is as if it
    had not been."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    exchange = GroupExchange()
    first = None
    if rank == 0:
        calls.send(interrupted_after(0.3, lambda: exchange(b"first 0")))
    else:
        calls.recv()
        first = exchange(b"first 1")
    calls.send((first, exchange(f"second {rank}".encode())))
    dist.destroy_process_group()


def replica(to_others: list[Connection], answers: Connection, directory: str, rank: int) -> None:
    """A rank with a whole model, without torch.distributed: ranks talk through pipes."""

    def exchange(mine: bytes) -> list[bytes]:
        for other in to_others:
            other.send(mine)
        of_others = [other.recv() for other in to_others]
        return of_others[:rank] + [mine] + of_others[rank:]

    model = Net(4)
    ranks = len(to_others) + 1
    owner = Owner(
        model, run=directory, exchange=exchange, rank=rank, ranks=ranks, check_replicas_every=3
    )
    owned = owner.sizes.source_elements
    for number in range(2):
        if number:
            step(model, number)
        answers.send((owner.refit(number), owned, digest(model)))
    with torch.no_grad():
        model.second.weight[0, rank] += 1  # another one on each
    try:
        owner.refit("the third, at which they are compared")
    except errors.Mismatch as error:
        answers.send(str(error))
    else:
        answers.send("no difference was found")
    owner.close()


if __name__ == "__main__":
    under_torchrun(sys.argv[1], sys.argv[2])
