"""Where a loader would put tensors, by geometry alone."""

from collections.abc import Callable, Iterable, Mapping

import torch

from dcr import _core
from dcr.torch.loader import LoadWeights, TorchLoader
from dcr.torch.receiver import TensorLike, never_loaded_names, tensor_tuples


def trace_geometry(
    module: torch.nn.Module,
    tensors: Mapping[str, TensorLike],
    load_weights: LoadWeights | None = None,
    *,
    never_loaded: Iterable[str] = (),
    batch_entries_max: int = 256,
    stage: Callable[[str], None] | None = None,
) -> dict[str, _core.TensorClass]:
    """Says of each canonical tensor how it would get to the module's parameters.

    Every name is loaded twice, without a value being read or written, so that the module may lie on
    the meta device at a model's real size. Destinations must be disjoint and cover every parameter.
    What only values can decide (a copy from a temporary) is refused for that reason.

    Args:
        module, load_weights, batch_entries_max: as for `TorchLoader`.
        tensors: canonical names with tensors, or pairs of dtype and shape.
        never_loaded: as for `ModelReceiver`.
        stage: is called with the name of each stage that begins.

    Raises:
        dcr.errors.Mismatch: a byte of a parameter that no load explains, by name.
    """
    loader = TorchLoader(module, load_weights, batch_entries_max=batch_entries_max)
    tuples = tensor_tuples(tensors)
    classes = _core.trace_geometry(
        tuples,
        loader,
        loader.storages.memory,
        never_loaded=never_loaded_names(module, never_loaded),
        stage=stage,
    )
    return dict(zip(sorted((name for name, _, _ in tuples), key=str.encode), classes, strict=True))
