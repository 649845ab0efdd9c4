"""vLLM's engines as receivers of a run.

    llm = LLM(
        model=...,
        weight_transfer_config={"backend": "dcr"},
        additional_config={"dcr": {"run": DIR}},
    )

is all of it, for `AsyncLLM` and `vllm serve` too. `sync` is for engines in the user's own process,
`WorkerExtension` lets `collective_rpc` ask what workers know. docs/PYTHON.md says the rest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcr.torch.placed import Placement

__all__ = ["WorkerExtension", "placements", "sync"]


def sync(llm: Any, *, label: str | None = None, timeout: float | None = None) -> str:
    """Lets the gate of an in-process engine act, on the calling thread, and waits until it is open.

    In-process engines (`VLLM_ENABLE_V1_MULTIPROCESSING=0`) run nothing unless they are called, so
    their gate opens and closes in here only: before the first request, and after each refit. Where
    nothing is pending it returns at once.

    Args:
        llm: vLLM's `LLM` or `LLMEngine`.
        label: wait until this is what the engine serves: what `refit` was called with, as text.
        timeout: seconds; by default there is no limit. Ctrl-C ends the wait in either case.

    Returns:
        The label that the engine serves, as `llm.get_weight_version()` says it too.

    Raises:
        dcr.errors.Unavailable: the gate did not open in time, and it says what it waits for; or a
            refit waits for requests in flight, which `pause="wait"` lets finish: step the engine
            until they have, and call this again.
        dcr.errors.Unsupported: it cannot open, for a worker's receiver takes no part, or workers
            leave a part of a tensor out, and it says which and why; or a refit waits for an engine
            that sleeps: wake it up.
        dcr.errors.InvalidArgument: the engine isn't in this process, or has no gate.
    """
    from dcr.vllm.inprocess import sync_engine

    return sync_engine(llm, label, timeout)


def placements(llm: Any) -> "list[dict[str, Placement]]":
    """Where each worker of an `LLM` has the trainer's tensors; of nothing before it has traced.

    `dcr.torch.uneven_tensors` says which of them do not lie evenly on an engine's workers: of ranks
    of data parallelism that are one engine, those of all their `LLM`s.

    Args:
        llm: vLLM's `LLM`, with `worker_extension_cls="dcr.vllm.WorkerExtension"`.

    Raises:
        dcr.errors.InvalidArgument: it is no `LLM`, but an `AsyncLLM`, which is not asked so.
    """
    from inspect import iscoroutinefunction

    from dcr.errors import InvalidArgument
    from dcr.torch.placed import placement_from

    if iscoroutinefunction(llm.collective_rpc):
        raise InvalidArgument("placements are asked of an LLM, not of an AsyncLLM")
    return [
        {name: placement_from(fields) for name, fields in worker.items()}
        for worker in llm.collective_rpc("dcr_placements")
    ]


class WorkerExtension:
    """What `collective_rpc` may call on workers.

    It is given as `worker_extension_cls="dcr.vllm.WorkerExtension"`; nothing needs it.
    """

    weight_transfer_engine: Any

    def dcr_status(self) -> dict[str, Any]:
        """Engine, receiver and how that is, of this worker."""
        status: dict[str, Any] = self.weight_transfer_engine.status()
        return status

    def dcr_placements(self) -> dict[str, Any]:
        """For `placements`, as what vLLM takes from one process to another."""
        from dataclasses import asdict

        placements = self.weight_transfer_engine.placements()
        return {name: asdict(placement) for name, placement in placements.items()}
