"""How a model's state dict becomes its checkpoint: names, splits and ties as placements.

Transformers renames, splits and merges tensors while it saves them. None of its rules stand here:
its own conversion runs once over tensors that hold the numbers of their own elements, and where
the numbers end up is the placement. It runs twice, with two codes, so that a conversion that
computes with values (adds 1, say) isn't taken for one that moves them. A user's function, of which
nothing is known, has to move random bits the same way, too, all tensors at once.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from dcr.errors import InvalidArgument, Unsupported
from dcr.torch.placement import Box, row_major_strides

__all__ = [
    "CanonicalPart",
    "Export",
    "boxes_of_codes",
    "is_of_transformers",
    "learn_conversion",
    "run_export",
    "whole_tensor",
]

_BOXES_MAX = 4096
_CODES_MAX = 1 << 31
_PLACEHOLDER = re.compile(r"\d+")


@dataclass(frozen=True)
class CanonicalPart:
    """Elements of a source tensor that stand in the checkpoint's tensor `name` of `shape`."""

    name: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...] = field(hash=False)


def whole_tensor(name: str, shape: Sequence[int]) -> CanonicalPart:
    """A tensor that is saved as it is, under `name`."""
    dims = [
        (size, stride, stride)
        for size, stride in zip(shape, row_major_strides(shape), strict=True)
    ]
    return CanonicalPart(name, tuple(shape), ((0, 0, dims),))


Export = Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]
"""From a state dict of whole tensors to the checkpoint's."""


def learn_conversion(
    model: torch.nn.Module, state: Mapping[str, torch.Tensor], export: Export | None = None
) -> dict[str, list[CanonicalPart]]:
    """By source tensor: where its elements stand in the checkpoint that the model saves.

    `state`: the state dict's tensors, tied ones once; only their dtypes and shapes count. Models
    that aren't of Transformers are saved as they are; `export` is what makes the checkpoint
    instead. Raises `Unsupported` naming the tensor where saving does more than to move elements.
    What is converted takes memory: four bytes for each element of the largest such tensor, a few
    times; `export` that of all tensors whole, and of what it makes of them.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if export is not None:
        learned = _Learner(partial(run_export, export), shapes, alike=False).learn()
        _prove(export, {name: tensor.dtype for name, tensor in state.items()}, shapes, learned)
        return learned
    convert = _save_conversion(model)
    if convert is None:
        return {name: [whole_tensor(name, shape)] for name, shape in shapes.items()}
    return _Learner(convert, shapes, alike=True).learn()


def run_export(export: Export, state: dict[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """What a user's function makes of a state dict.

    Raises:
        dcr.errors.InvalidArgument: what it raised, or that it wrote to what it was given.
    """

    def writes(tensor: torch.Tensor) -> int:
        # Of a DTensor its rank's part counts.
        local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
        return tensor._version + local._version

    before = {name: writes(tensor) for name, tensor in state.items()}
    try:
        with torch.no_grad():
            made = export(dict(state))
    except Exception as error:
        raise InvalidArgument(f"export failed: {error}") from error
    for name, tensor in state.items():
        if writes(tensor) != before[name]:
            raise InvalidArgument(f"export wrote to {name}: it has to make new tensors", name)
    if not isinstance(made, Mapping):
        raise InvalidArgument(f"export made a {type(made).__name__}, not a dict of tensors")
    for name, one in made.items():
        if not isinstance(one, torch.Tensor):
            raise InvalidArgument(f"export made {name} a {type(one).__name__}, not a tensor", name)
    return made


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _words(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(_WORDS[tensor.element_size()])


def _random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Whatever bits there are; a quarter of the numbers are NaNs, of every kind."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = _elements(shape)
    width = torch.empty(0, dtype=dtype).element_size()
    octets = torch.randint(0, 256, (count * width,), dtype=torch.uint8, generator=generator)
    numbers = octets.view(dtype)
    if dtype.is_floating_point:
        exponent = _words(torch.full((1,), float("inf")).to(dtype))
        chosen = torch.randint(0, 4, (count,), generator=generator) == 0
        words = _words(numbers)
        numbers = torch.where(chosen, words | exponent, words).view(dtype)
    return numbers.view(shape)


def _prove(
    export: Export,
    dtypes: Mapping[str, torch.dtype],
    shapes: Mapping[str, tuple[int, ...]],
    learned: Mapping[str, Sequence[CanonicalPart]],
) -> None:
    """Raises `Unsupported` unless the function does with random bits what was learned of it."""
    state = {
        name: _random(shape, dtypes[name], seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    try:
        made = run_export(export, state)
    except InvalidArgument as error:
        raise Unsupported(f"export does not take all bits: {error}") from error
    expected: dict[str, torch.Tensor] = {}
    of: dict[str, torch.dtype] = {}
    for name, parts in learned.items():
        source = _words(state[name]).view(-1)
        for part in parts:
            if of.setdefault(part.name, dtypes[name]) != dtypes[name]:
                raise Unsupported(f"{part.name} is made of several dtypes", part.name)
            into = expected.setdefault(part.name, torch.empty(part.shape, dtype=source.dtype))
            for offset, destination, dims in part.boxes:
                sizes = [size for size, _, _ in dims]
                box = source.as_strided(sizes, [step for _, step, _ in dims], offset)
                into.as_strided(sizes, [step for _, _, step in dims], destination).copy_(box)
    for name in sorted(expected.keys() | made.keys()):
        moved = (
            name in made
            and name in expected
            and made[name].dtype == of[name]
            and torch.equal(_words(made[name]), expected[name])
        )
        if not moved:
            raise Unsupported(f"export computes {name} instead of moving elements", name)


def is_of_transformers(model: torch.nn.Module) -> bool:
    """Whether it is one of Transformers' models, without importing Transformers."""
    return any(
        f"{base.__module__}.{base.__name__}" == "transformers.modeling_utils.PreTrainedModel"
        for base in type(model).__mro__
    )


def _save_conversion(model: Any) -> Export | None:
    """Transformers' conversion of this model as a function of state dicts, or None."""
    if not is_of_transformers(model):
        return None
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError as error:
        raise Unsupported(
            "this version of transformers has no revert_weight_conversion: version 5 is needed"
        ) from error
    return lambda state: revert_weight_conversion(model, state)


class _Learner:
    def __init__(
        self, convert: Export, shapes: Mapping[str, Sequence[int]], *, alike: bool = True
    ) -> None:
        self.convert = convert
        self.alike = alike  # one layer stands for the others
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.learned: dict[str, list[CanonicalPart]] = {}
        self.known: dict[object, list[CanonicalPart]] = {}  # by what a source looks like

    def learn(self) -> dict[str, list[CanonicalPart]]:
        given = self._blank(self.shapes)
        named = {id(tensor): name for name, tensor in given.items()}
        made = self._convert(given)
        shapes = {name: tuple(tensor.shape) for name, tensor in made.items()}
        missing = dict(shapes)
        for name, tensor in made.items():
            source = named.get(id(tensor))
            if source is None:
                continue
            # The very same tensor, under its name or another.
            self.learned.setdefault(source, []).append(whole_tensor(name, tensor.shape))
            del missing[name]
        rest = [name for name in self.shapes if name not in self.learned]
        together = [name for name in rest if not self._learn_alone(name, missing)]
        if together:
            self._learn_together(together, missing)
        if missing:
            # Something is made of a tensor that is saved as it is, too.
            self._learn_together(list(self.shapes), dict(shapes))
        return self.learned

    def _convert(self, state: dict[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        try:
            return self.convert(state)
        except Exception as error:
            names = ", ".join(list(state)[:3])
            message = f"the conversion to the checkpoint fails for {names}: {error}"
            raise Unsupported(message) from error

    def _blank(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        return {
            name: torch.empty(self.shapes[name], dtype=torch.int64, device="meta")
            for name in names
        }

    def _learn_alone(self, source: str, missing: dict[str, tuple[int, ...]]) -> bool:
        """Learns what a source makes by itself; False where it needs others for it."""
        try:
            made = self.convert(self._blank([source]))
        except Exception:  # whatever a conversion raises that misses its other sources
            return False
        outputs = {name: tuple(tensor.shape) for name, tensor in made.items()}
        if any(missing.get(name) != shape for name, shape in outputs.items()):
            return False
        # Layers are alike: one is traced, the others have their numbers in its names' places.
        looks = (
            _PLACEHOLDER.sub("#", source),
            self.shapes[source],
            tuple((_PLACEHOLDER.sub("#", name), shape) for name, shape in outputs.items()),
        )
        if looks not in self.known or not self.alike:
            parts = self._trace([source], {}, only=set(outputs))[source]
            order = {name: i for i, name in enumerate(outputs)}
            self.known[looks] = sorted(parts, key=lambda part: order[part.name])
        names = list(outputs)
        self.learned[source] = [
            CanonicalPart(name, part.shape, part.boxes)
            for name, part in zip(names, self.known[looks], strict=True)
        ]
        for name in names:
            del missing[name]
        return True

    def _learn_together(self, sources: list[str], missing: dict[str, tuple[int, ...]]) -> None:
        # With all others as they are, for conversions that look at them.
        others = {
            name: torch.full((), -1, dtype=torch.int32).expand(shape)
            for name, shape in self.shapes.items()
            if name not in sources
        }
        traced = self._trace(sources, others, only=set(missing))
        for source, parts in traced.items():
            self.learned[source] = parts
            for part in parts:
                if missing.pop(part.name, part.shape) != part.shape:
                    raise Unsupported(f"saving makes {part.name} of several shapes", part.name)
        if missing:
            raise Unsupported(f"saving makes {min(missing)} of no tensor of the model")

    def _trace(
        self, sources: list[str], others: dict[str, torch.Tensor], only: set[str]
    ) -> dict[str, list[CanonicalPart]]:
        """Converts numbered elements, twice, and reads off where they went in tensors `only`."""
        bases: list[int] = []
        total = 0
        for name in sources:
            bases.append(total)
            total += _elements(self.shapes[name])
        if total >= _CODES_MAX:
            raise Unsupported(
                f"the conversion of {sources[0]} needs {total} element numbers at once, of at most "
                f"{_CODES_MAX}",
                sources[0],
            )
        made = self._run(sources, others, bases, forward=True, last=total - 1)
        check = self._run(sources, others, bases, forward=False, last=total - 1)
        traced: dict[str, list[CanonicalPart]] = {name: [] for name in sources}
        for name, codes in made.items():
            if name not in only:
                continue
            pure = (
                codes.dtype == torch.int32
                and bool(torch.equal(check[name], total - 1 - codes))
                and (codes.numel() == 0 or (int(codes.min()) >= 0 and int(codes.max()) < total))
            )
            boxes = boxes_of_codes(codes, bases) if pure else None
            if boxes is None:
                raise Unsupported(
                    f"saving computes {name} from {', '.join(sources[:3])} instead of moving "
                    "elements: it can't be refitted",
                    name,
                )
            for index, found in boxes.items():
                part = CanonicalPart(name, tuple(codes.shape), tuple(found))
                traced[sources[index]].append(part)
        return traced

    def _run(
        self,
        sources: list[str],
        others: dict[str, torch.Tensor],
        bases: list[int],
        *,
        forward: bool,
        last: int,
    ) -> Mapping[str, torch.Tensor]:
        state = dict(others)
        for name, base in zip(sources, bases, strict=True):
            elements = _elements(self.shapes[name])
            codes = torch.arange(base, base + elements, dtype=torch.int32)
            if not forward:
                codes = codes.neg_().add_(last)
            state[name] = codes.view(self.shapes[name])
        return self._convert(state)


def _elements(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def boxes_of_codes(codes: torch.Tensor, bases: Sequence[int]) -> dict[int, list[Box]] | None:
    """Boxes from source elements to positions of `codes`, which holds the sources' numbers.

    Source i has the numbers from bases[i] to bases[i + 1]. By source; None where there is no such
    list, or only one of thousands of boxes.
    """
    found: list[Box] = []
    shape = tuple(codes.shape)
    if codes.numel() and not _collect(codes, row_major_strides(shape), 0, found):
        return None
    boxes: dict[int, list[Box]] = {}
    while found:
        box = found.pop()
        low, high = _source_of(bases, box[0]), _source_of(bases, _last(box))
        if low == high:
            boxes.setdefault(low, []).append((box[0] - bases[low], box[1], box[2]))
        else:
            found.extend(_cut_box(box, bases[low + 1]))
        if len(found) > _BOXES_MAX:
            return None
    return boxes


def _source_of(bases: Sequence[int], code: int) -> int:
    return max(i for i, base in enumerate(bases) if base <= code)


def _last(box: Box) -> int:
    return box[0] + sum((size - 1) * source for size, source, _ in box[2])


def _cut_box(box: Box, boundary: int) -> list[Box]:
    """The box in two along its longest stride in the source, the first below the boundary."""
    offset, destination, dims = box
    at = max(range(len(dims)), key=lambda i: dims[i][1] if dims[i][0] > 1 else -1)
    size, source, step = dims[at]
    low = min(max(-(-(boundary - offset) // source), 1), size - 1)
    first = [*dims[:at], (low, source, step), *dims[at + 1 :]]
    second = [*dims[:at], (size - low, source, step), *dims[at + 1 :]]
    return [
        (offset, destination, first),
        (offset + low * source, destination + low * step, second),
    ]


def _collect(codes: torch.Tensor, strides: list[int], offset: int, found: list[Box]) -> bool:
    """Adds the boxes of a view of the output that begins at `offset` and has these strides."""
    if len(found) >= _BOXES_MAX:
        return False
    dims = [dim for dim in range(codes.dim()) if codes.shape[dim] > 1]
    codes = codes.reshape([codes.shape[dim] for dim in dims])
    strides = [strides[dim] for dim in dims]
    first = codes[(0,) * codes.dim()]
    steps = []
    for dim in range(codes.dim()):
        line = codes[tuple(slice(None) if i == dim else 0 for i in range(codes.dim()))]
        deltas = line[1:] - line[:-1]
        breaks = (deltas != deltas[0]).nonzero()
        if len(breaks):
            return _cut(codes, strides, offset, dim, int(breaks[0]) + 1, found)
        steps.append(int(deltas[0]))
    if all(step > 0 for step in steps):
        want = first
        for dim, step in enumerate(steps):
            line = torch.arange(codes.shape[dim], dtype=codes.dtype) * step
            want = want + line.view([-1 if i == dim else 1 for i in range(codes.dim())])
        if torch.equal(want, codes):
            sizes = zip(codes.shape, steps, strides, strict=True)
            found.append((int(first), offset, list(sizes)))
            return True
    # Regular along the edges only: cut the longest dimension.
    if not steps:
        return False
    dim = max(range(codes.dim()), key=lambda i: codes.shape[i])
    return _cut(codes, strides, offset, dim, (codes.shape[dim] + 1) // 2, found)


def _cut(
    codes: torch.Tensor, strides: list[int], offset: int, dim: int, run: int, found: list[Box]
) -> bool:
    """Goes on with a dimension as two, if its length is so many regular runs, or with its parts."""
    size = codes.shape[dim]
    if run > 1 and size % run == 0 and size > run:
        folded = codes.reshape([*codes.shape[:dim], size // run, run, *codes.shape[dim + 1 :]])
        step = strides[dim]
        return _collect(
            folded, [*strides[:dim], run * step, step, *strides[dim + 1 :]], offset, found
        )
    return _collect(codes.narrow(dim, 0, run), strides, offset, found) and _collect(
        codes.narrow(dim, run, size - run), strides, offset + run * strides[dim], found
    )
