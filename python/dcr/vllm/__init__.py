"""vLLM's engines as receivers of a run.

    llm = LLM(
        model=...,
        weight_transfer_config={"backend": "dcr"},
        additional_config={"dcr": {"run": DIR}},
    )

is all of it, for `AsyncLLM` and `vllm serve` too. `sync` is for engines in the user's own process,
`WorkerExtension` lets `collective_rpc` ask what workers know. docs/PYTHON.md says the rest.
"""

from typing import Any

__all__ = ["WorkerExtension", "sync"]


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
        dcr.errors.Unsupported: it cannot open, for a worker's receiver takes no part, and it says
            why; or a refit waits for an engine that sleeps: wake it up.
        dcr.errors.InvalidArgument: the engine isn't in this process, or has no gate.
    """
    from dcr.vllm.inprocess import sync_engine

    return sync_engine(llm, label, timeout)


class WorkerExtension:
    """What `collective_rpc` may call on workers.

    It is given as `worker_extension_cls="dcr.vllm.WorkerExtension"`; nothing needs it.
    """

    weight_transfer_engine: Any

    def dcr_status(self) -> dict[str, Any]:
        """Engine, receiver and how that is, of this worker."""
        status: dict[str, Any] = self.weight_transfer_engine.status()
        return status
