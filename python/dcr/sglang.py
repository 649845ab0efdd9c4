"""SGLang's workers as receivers, through its custom weight loader.

    python -m sglang.launch_server --custom-weight-loader dcr.sglang.load_weights …

A worker calls `load_weights(model, named_tensors)` for every `update_weights_from_tensor` whose
`load_format` names it. What it gets there are messages of this module, as tensors of bytes:

    def send(messages):
        engine.update_weights_from_tensor(messages, load_format=dcr.sglang.LOAD_FORMAT)

    send(dcr.sglang.declaration(owner, replies))        # traces the loader in every worker
    needs = dcr.sglang.read_needs(replies)              # what to ask of owners
    send(dcr.sglang.audit([owner.restore()], owner))    # that workers hold the owners' version
    send(dcr.sglang.refit([owner.prepare(needs=needs)], owner))
    owner.commit()

The caller sees to it that no request runs meanwhile and that the cache is flushed, which is what
SGLang does by default. None of this was run in SGLang itself: what is tested is the loader, with
workers that call it as SGLang's do.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from dcr.errors import InvalidArgument, Mismatch, Unsupported
from dcr.torch.owner import ModelOwner, PreparedRefit
from dcr.torch.receiver import ModelReceiver, refusals
from dcr.torch.storages import torch_dtype

__all__ = ["LOAD_FORMAT", "audit", "declaration", "load_weights", "read_needs", "refit"]

Message = tuple[str, torch.Tensor]

LOAD_FORMAT = "dcr.sglang.load_weights"
"""What `--custom-weight-loader` and `load_format` name."""

_DECLARATION, _ATTEMPT, _PAYLOAD = "dcr.declaration", "dcr.attempt", "dcr.payload"
_ORDER = ("skip", "any", "overwrite", "dense")  # each asks for more than the one before


def declaration(
    owner: ModelOwner, replies: str | os.PathLike[str], *, never_loaded: Sequence[str] = ()
) -> list[Message]:
    """Tells workers what owners may send, on which they trace their loaders.

    Args:
        owner: any of them.
        replies: an empty directory that all workers reach, for `read_needs`.
        never_loaded: as for `ModelReceiver`.
    """
    values = {
        "tensors": owner.tensors,
        "owners": owner.boxes,
        "replies": os.fspath(Path(replies).absolute()),
        "never_loaded": list(never_loaded),
    }
    return [(_DECLARATION, _bytes_tensor(json.dumps(values).encode()))]


def read_needs(replies: str | os.PathLike[str]) -> list[str]:
    """What the workers that have got the declaration ask for together, for `ModelOwner.prepare`.

    Raises:
        dcr.errors.Unsupported: a tensor that cannot be refitted, with a worker's reason.
    """
    answers = [json.loads(path.read_text()) for path in Path(replies).glob("*.json")]
    if not answers:
        raise InvalidArgument(f"no worker has answered in {replies}")
    for answer in answers:
        for name, reason in answer["refused"].items():
            raise Unsupported(f"{name!r} is refused: {reason}", name)
    needs = (answer["needs"] for answer in answers)
    return [max(of_all, key=_ORDER.index) for of_all in zip(*needs, strict=True)]


def audit(restores: Sequence[PreparedRefit], owner: ModelOwner) -> list[Message]:
    """Has workers compare what they hold with the committed version: `ModelOwner.restore` of every
    owner, in order. Nothing is written. It finds weights that were packed or permuted after
    loading, and comes before the first refit."""
    return _attempt(restores, owner, verify=True)


def refit(
    prepared: Sequence[PreparedRefit], owner: ModelOwner, *, overwrite_only: bool = False
) -> list[Message]:
    """Brings workers to the next version: `ModelOwner.prepare` of every owner, in order.

    `overwrite_only`: workers may hold part of another attempt, and owners have sent nothing else.
    """
    return _attempt(prepared, owner, overwrite_only=overwrite_only)


def load_weights(model: torch.nn.Module, named_tensors: Iterable[Message]) -> None:
    """SGLang's custom weight loader: does what the messages say, in this worker's model.

    Raises:
        dcr.errors.Error: parameters are as before if it comes from a declaration or an audit, and
            may be a mixture if it comes from a refit.
    """
    messages = []
    for name, tensor in named_tensors:
        if name not in (_DECLARATION, _ATTEMPT, _PAYLOAD):
            raise InvalidArgument(f"{name!r} is no message of dcr.sglang")
        messages.append((name, tensor.cpu().numpy().data))
    (kind, header), payloads = messages[0], [payload for _, payload in messages[1:]]
    if kind == _DECLARATION:
        _set_worker(model, None)  # its memory goes to the next
        _set_worker(model, _Worker(model, json.loads(bytes(header))))
        return
    worker: _Worker | None = getattr(model, "_dcr_worker", None)
    if worker is None:
        raise InvalidArgument("the engine has had no declaration: was it started anew?")
    worker.run(json.loads(bytes(header)), payloads)


def _set_worker(model: torch.nn.Module, worker: "_Worker | None") -> None:
    object.__setattr__(model, "_dcr_worker", worker)  # lives as long as the model


class _Worker:
    """A worker's receiver, from a declaration on."""

    def __init__(self, model: torch.nn.Module, values: dict[str, Any]) -> None:
        if hasattr(model, "post_load_weights"):
            raise Unsupported(
                f"{type(model).__name__} computes weights of its own after it has loaded "
                "(post_load_weights), which a refit would leave as they were"
            )
        self._receiver = ModelReceiver(
            model,
            {
                name: (torch_dtype(dtype), tuple(shape))
                for name, dtype, shape in values["tensors"]
            },
            owners=values["owners"],
            never_loaded=values["never_loaded"],
        )
        refused = refusals(self._receiver.prewarm())
        self._audited = False
        _answer(Path(values["replies"]), {"needs": self._receiver.needs, "refused": refused})

    def run(self, header: dict[str, Any], payloads: Sequence[memoryview]) -> None:
        """One attempt, from its first payload to its last."""
        verify = bool(header["verify"])
        if not verify and not self._audited:
            raise InvalidArgument("a refit before the audit")
        self._receiver.begin(
            run=bytes.fromhex(header["run"]),
            attempt=header["attempt"],
            base_version=header["base_version"],
            target_version=header["target_version"],
            verify=verify,
            overwrite_only=header["overwrite_only"],
        )
        for owner, count in enumerate(header["payloads"]):
            self._receiver.end_of_owner(owner, count)
        for payload in payloads:  # in their order, so that each has its turn when it comes
            found = self._receiver.ingest(payload)
            if found != "queued":
                raise Mismatch(f"a payload in another's place: {found.replace('_', ' ')}")
            self._receiver.apply()
        counts = self._receiver.finish()
        if verify:
            self._audited = counts.different == 0
        if counts.different != 0:
            raise Mismatch(
                f"{counts.different} of {counts.destinations} resident words are not what the "
                f"loader makes of version {header['target_version']}"
            )


def _attempt(
    prepared: Sequence[PreparedRefit],
    owner: ModelOwner,
    *,
    verify: bool = False,
    overwrite_only: bool = False,
) -> list[Message]:
    header = {
        "run": owner.run.hex(),
        "attempt": owner.attempt,
        "base_version": prepared[0].base_version,
        "target_version": prepared[0].target_version,
        "verify": verify,
        "overwrite_only": overwrite_only,
        "payloads": [len(one.payloads) for one in prepared],
    }
    messages = [(_ATTEMPT, _bytes_tensor(json.dumps(header).encode()))]
    for of_all in zip_longest(*(one.payloads for one in prepared)):  # the order of application
        messages += [(_PAYLOAD, _bytes_tensor(one)) for one in of_all if one is not None]
    return messages


def _bytes_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _answer(directory: Path, values: dict[str, Any]) -> None:
    """A file of this worker's own, which nobody reads before it is whole."""
    with tempfile.NamedTemporaryFile("w", dir=directory, suffix=".part", delete=False) as file:
        json.dump(values, file)
    part = Path(file.name)
    part.rename(part.with_suffix(".json"))
