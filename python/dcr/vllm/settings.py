"""What a user says of DCR to an engine, and what of vLLM's configuration cannot be refitted."""

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from dcr.errors import InvalidArgument, Unsupported
from dcr.vllm import plugin

PAUSES = ("keep", "wait", "abort")
OVERDUE = ("wait", "abort")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Settings:
    """The keys of `additional_config["dcr"]`."""

    run: str  # the run's directory or file; by default $DCR_RUN
    engine: str  # the engine's name in the run
    pause: str = "keep"  # what closing the gate does to requests in flight
    drain_overdue: str = "wait"  # what becomes of requests that have not finished after drain_ms
    live_weights: bool = False  # keep weights that vLLM's CPU build packs as they were loaded
    # No key: `dcr.run.Run.gate`'s. Drawn wherever settings are read; that of the process with the
    # engine's gate counts, and workers are told it.
    engine_instance: int = field(
        default_factory=lambda: 1 + secrets.randbelow(2**62), compare=False
    )

    @classmethod
    def of(cls, vllm_config: Any) -> "Settings":
        """Reads and checks them.

        Raises:
            dcr.errors.InvalidArgument: a key or value that there isn't.
        """
        additional = vllm_config.additional_config
        given = additional.get("dcr", {}) if isinstance(additional, Mapping) else {}
        if not isinstance(given, Mapping):
            raise InvalidArgument(f'additional_config["dcr"] is {given!r}, not a dictionary')
        keys = [one.name for one in fields(cls) if one.name != "engine_instance"]
        for key in given:
            if key not in keys:
                near = get_close_matches(str(key), keys, 1)
                raise InvalidArgument(
                    f'additional_config["dcr"] has no key {key!r}: '
                    + (f"did you mean {near[0]!r}? " if near else "")
                    + f"It has {', '.join(keys)}"
                )
        run = given.get("run") or os.environ.get("DCR_RUN")
        if not isinstance(run, str | os.PathLike):
            raise InvalidArgument(
                'no run: set additional_config={"dcr": {"run": DIR}} or the environment variable '
                "DCR_RUN"
            )
        pause = _one_of(given, "pause", PAUSES, cls.pause)
        drain_overdue = _one_of(given, "drain_overdue", OVERDUE, cls.drain_overdue)
        live_weights = given.get("live_weights", cls.live_weights)
        if not isinstance(live_weights, bool):
            raise InvalidArgument('additional_config["dcr"]["live_weights"] is no boolean')
        engine = given.get("engine") or f"engine-{vllm_config.instance_id}"
        name = _engine_name(engine, vllm_config)
        return cls(os.fspath(run), name, pause, drain_overdue, live_weights)


def _one_of(given: Mapping[str, Any], key: str, values: tuple[str, ...], default: str) -> str:
    value: str = given.get(key, default)
    if value not in values:
        raise InvalidArgument(
            f'additional_config["dcr"]["{key}"] is {value!r}, none of {", ".join(values)}'
        )
    return value


def _engine_name(engine: object, vllm_config: Any) -> str:
    # The ranks of a data-parallel dense model serve requests of their own: engines of their own,
    # which vLLM tells that there are no others.
    parallel = vllm_config.parallel_config
    index = parallel.data_parallel_index if parallel.data_parallel_size == 1 else 0
    name = f"{engine}-dp{index}" if index else str(engine)
    if _NAME.fullmatch(name) is None or len(name) > 58:  # a receiver's name adds its rank
        raise InvalidArgument(
            f"the engine's name {name!r} must be 1 to 58 letters, digits, '.', '_' or '-'"
        )
    return name


def receiver_name(engine: str, rank: int) -> str:
    """Of one worker, by its rank in the engine, which counts over all data-parallel ranks."""
    return f"{engine}.{rank}"


def check_vllm() -> None:
    """Refuses another vLLM than those that can be wrapped.

    Raises:
        dcr.errors.Unsupported: naming the first attribute that is missing.
    """
    if plugin.missing:
        raise Unsupported(_lacks(plugin.missing[0]))


def check_has(of_vllm: object, *names: str) -> None:
    """The same of an object: what it is given in its constructor is seen here only."""
    cls = type(of_vllm)
    for name in names:
        if not hasattr(of_vllm, name):
            raise Unsupported(_lacks(f"{cls.__module__}.{cls.__qualname__}.{name}"))


def _lacks(what: str) -> str:
    version: Any = import_module("vllm.version")
    return f"vLLM {version.__version__} has no {what}, which DCR wraps or needs; 0.32 has"


def check_refittable(vllm_config: Any) -> None:
    """Refuses what no refit can do exactly, by name.

    Raises:
        dcr.errors.Unsupported: naming the option.
    """
    parallel = vllm_config.parallel_config
    offload = vllm_config.offload_config
    refused = {
        "LoRA adapters (enable_lora)": vllm_config.lora_config is not None,
        "speculative decoding and draft models (speculative_config)": (
            vllm_config.speculative_config is not None
        ),
        "expert load balancing (enable_eplb)": parallel.enable_eplb,
        f"quantisation ({vllm_config.model_config.quantization})": (
            vllm_config.quant_config is not None
        ),
        "weight offload (cpu_offload_gb, offload_group_size)": (
            offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0
        ),
        "elastic expert parallelism (enable_elastic_ep)": parallel.enable_elastic_ep,
        "fault tolerance of the engine (enable_fault_tolerance)": parallel.enable_fault_tolerance,
        "the external launcher (distributed_executor_backend)": (
            parallel.distributed_executor_backend == "external_launcher"
        ),
    }
    for option, used in refused.items():
        if used:
            raise Unsupported(f"{option}: the backend dcr cannot refit an engine with it")
