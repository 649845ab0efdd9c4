"""Owners of plain modules: what one rank declares, and what its payloads say."""

import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import dcr  # noqa: E402
from dcr.torch import ModelOwner, OpenRefit  # noqa: E402
from dcr.torch.conversion import Export  # noqa: E402
from dcr.torch.owner import heard_from, said_of  # noqa: E402
from owner_checks import ThreadedRanks  # noqa: E402


class Tied(torch.nn.Module):
    """Two names of one tensor, a persistent and a transient buffer, a transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 4, dtype=torch.bfloat16)
        self.head = torch.nn.Linear(4, 7, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embedding.weight
        self.turned = torch.nn.Parameter(torch.randn(5, 3).t())
        self.register_buffer("steps", torch.arange(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def test_names_and_boxes() -> None:
    owner = ModelOwner(Tied())
    assert owner.tensors == [
        ("embedding.weight", "BF16", (7, 4)),
        ("steps", "I64", (3,)),
        ("turned", "F32", (3, 5)),
    ]
    assert len(owner.boxes) == 1
    assert {box[0] for box in owner.boxes[0]} == {0, 1, 2}
    assert owner.sizes.source_elements == 28 + 3 + 15


def test_modes_and_numbers() -> None:
    model = Tied()
    owner = ModelOwner(model)
    with torch.no_grad():
        model.turned[1, 2] += 1
        model.embedding.weight[3, 3] += 1
    refit = owner.prepare()
    assert (refit.base_version, refit.target_version) == (0, 1)
    assert refit.result.mode == "mixed"
    assert refit.result.changed_source_elements == 2
    assert refit.result.entries == 2
    assert sum(len(payload) for payload in refit.payloads) == refit.result.payload_bytes
    retry = owner.prepare()
    assert retry.result.entries == 2
    assert set(retry.result.encodings) == {"overwrite"}
    owner.commit()
    assert owner.version == 1
    unchanged = owner.prepare()
    assert unchanged.result.changed_source_elements == 0
    assert unchanged.payloads == []
    owner.abort()
    assert owner.restore().result.mode == "dense"


def test_a_change_between_prepare_and_commit_is_found() -> None:
    model = Tied()
    owner = ModelOwner(model)
    with torch.no_grad():
        model.turned += 1
    owner.prepare()
    with torch.no_grad():
        model.turned += 1
    with pytest.raises(dcr.errors.Mismatch, match="turned"):
        owner.commit()
    assert owner.prepare().result.mode == "dense"
    owner.commit()
    assert owner.prepare().result.mode == "mixed"


def test_an_open_refit_refuses_optimizer_steps() -> None:
    model = Tied()
    owner = ModelOwner(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    owner.prepare(7)
    with pytest.raises(OpenRefit, match="version 7 is open"):
        optimizer.step()
    other.step()
    owner.abort()
    optimizer.step()
    owner.close()


def test_a_prepare_that_fails_leaves_nothing_open() -> None:
    model = Tied()
    owner = ModelOwner(model)
    owner.prepare()
    with pytest.raises(dcr.errors.InvalidArgument, match="needs of 1 tensors"):
        owner.prepare(needs=["any"])
    assert owner.open_refit is None
    with torch.no_grad():
        model.turned += 1
    # What was prepared first may have been applied.
    assert owner.prepare().result.mode == "dense"


def test_replaced_storage_is_found() -> None:
    model = Tied()
    owner = ModelOwner(model)
    model.turned.data = model.turned.data.clone()
    with torch.no_grad():
        model.turned[0, 0] += 1
    assert owner.prepare().result.changed_source_elements == 1
    owner.abort()
    model.turned.data = model.turned.data.contiguous()
    with pytest.raises(dcr.errors.Mismatch, match="turned"):
        owner.prepare()


def test_masters_are_cast() -> None:
    model = torch.nn.Linear(8, 8)
    owner = ModelOwner(model, dtype=torch.bfloat16)
    assert [dtype for _, dtype, _ in owner.tensors] == ["BF16", "BF16"]
    with torch.no_grad():
        # Too little to show in BF16.
        model.weight[0, 0] = torch.nextafter(model.weight[0, 0], torch.tensor(9.0))
        model.weight[1, 1] += 1
    before = owner.prepare().result
    assert before.changed_canonical_words in (1, 2)


def test_an_export_function_that_moves_elements() -> None:
    def export(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        up, down = state["weight"].chunk(2)
        return {"up": up, "down": down.t().contiguous(), "bias": state["bias"]}

    model = torch.nn.Linear(3, 8)
    owner = ModelOwner(model, export=export)
    assert owner.tensors == [("bias", "F32", (8,)), ("down", "F32", (3, 4)), ("up", "F32", (4, 3))]
    with torch.no_grad():
        model.weight[5, 1] += 1
    assert owner.prepare().result.changed_canonical_words == 1
    assert not owner.source.computed


Exported = dict[str, torch.Tensor]


def scaled(state: Exported) -> Exported:
    """Fuses a scale into a weight, transposes and casts; leaves the rest as it is."""
    weight = state["weight"] * (1 + state["scale"])[:, None]
    return {"weight": weight.t().bfloat16(), "bias": state["bias"]}


class Scaled(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 4)
        self.scale = torch.nn.Parameter(torch.randn(4))


def test_an_export_function_that_computes() -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    from owner_checks import check_transitions

    torch.manual_seed(1)
    model = Scaled()
    owner = ModelOwner(model, export=scaled)
    assert owner.source.computed
    assert owner.tensors == [("bias", "F32", (4,)), ("weight", "BF16", (5, 4))]

    def step(number: int) -> None:
        with torch.no_grad():
            model.scale[number % 4] += 1
            model.bias[0] += 1

    def saved() -> Exported:
        return scaled({name: one.detach() for name, one in model.state_dict().items()})

    check_transitions(
        owner, lambda mine: [mine], step=step, saved=saved, judge=True, where="computed"
    )
    step(1)
    refit = owner.prepare().result
    assert refit.changed_canonical_words == 5 + 1  # a column, and one of the biases
    # What was computed stays, whatever becomes of what it was computed of.
    with torch.no_grad():
        model.scale += 1
    assert owner.prepare().result.changed_canonical_words == 5 + 1
    owner.commit()
    with torch.no_grad():
        model.scale -= 1
    assert owner.prepare().payloads == []
    owner.abort()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    owner.prepare()
    with pytest.raises(OpenRefit):
        optimizer.step()
    owner.close()


@pytest.mark.parametrize(
    "export",
    [
        lambda state: {"weight": state["weight"].abs()},
        lambda state: {"weight": state["weight"].clamp(min=0)},
        lambda state: {"weight": state["weight"].double().to(state["weight"].dtype) * 1},
        lambda state: {"weight": state["weight"] + 1},
        lambda state: {"bias": state["bias"].cumsum(0)},
        lambda state: {"weight": state["weight"].bfloat16()},
        # By itself it moves; with the others there it does not.
        lambda state: {"weight": state["weight"] * (2 if "scale" in state else 1)},
    ],
)
def test_what_computes_is_not_taken_for_moving(export: Export) -> None:
    owner = ModelOwner(Scaled(), export=export)
    assert owner.source.computed


def test_what_export_must_not_do() -> None:
    def writes(state: Exported) -> Exported:
        return {"weight": state["weight"].mul_(2.5)}

    calls = [0]

    def changes(state: Exported) -> Exported:
        calls[0] += 1
        more = {"late": state["bias"] * 2.5} if calls[0] > 12 else {}
        return {"weight": state["weight"] * 2.5, **more}

    for export, said in (
        (writes, "export wrote to weight: it has to make new tensors"),
        (lambda state: {"weight": 1}, "export made weight a int, not a tensor"),
        (lambda state: list(state), "export made a list, not a dict of tensors"),
        (lambda state: {"weight": state["nothing"]}, "export failed: 'nothing'"),
    ):
        model = Scaled()
        before = model.weight.detach().clone()
        with pytest.raises(dcr.errors.InvalidArgument, match=said):
            ModelOwner(model, export=export)
        assert export is not writes or torch.equal(model.weight, before)
    owner = ModelOwner(Scaled(), export=changes)
    calls[0] = 100
    with pytest.raises(dcr.errors.Mismatch, match="export made late, which it had not made before"):
        owner.prepare()


def test_an_export_may_refuse_odd_values() -> None:
    def moves(state: Exported) -> Exported:
        assert all(bool(one.isfinite().all()) for one in state.values())
        return {f"model.{name}": one for name, one in state.items()}

    model = Scaled()
    owner = ModelOwner(model, export=moves)
    assert owner.source.computed
    with torch.no_grad():
        model.bias[1] += 1
    assert owner.prepare().result.changed_canonical_words == 1


def test_export_is_called_on_all_ranks_or_on_none() -> None:
    calls = [0, 0]
    ranks = ThreadedRanks(2)

    def owner_of(rank: int) -> ModelOwner:
        def export(state: Exported) -> Exported:
            calls[rank] += 1
            return {name: one * 2.5 if "head" in name else one for name, one in state.items()}

        stage = torch.nn.Module()
        stage.register_module("head" if rank else "body", torch.nn.Linear(3, 2))
        return ModelOwner(stage, export=export, exchange=ranks.exchange(rank), rank=rank, ranks=2)

    owners = ranks.run(owner_of)
    assert [owner.source.computed for owner in owners] == [True, True]
    before = list(calls)
    with torch.no_grad():
        owners[0].source.model.body.weight[0, 0] += 1
    prepared = ranks.run(lambda rank: owners[rank].prepare())
    assert [one.result.changed_canonical_words for one in prepared] == [1, 0]
    assert calls == [one + 1 for one in before]


@pytest.mark.parametrize("late", [False, True])
def test_what_a_rank_raises_is_heard_by_all(late: bool) -> None:
    """Before ranks agree on whether export computes, and after."""
    ranks = ThreadedRanks(2)

    def export(state: Exported) -> Exported:
        if late and all(one.dtype == torch.float32 for one in state.values()):
            raise MemoryError("no room")
        return {name: one * 2.5 for name, one in state.items()}

    class Broken(torch.nn.Module):
        def state_dict(self, *_: Any, **__: Any) -> Any:
            raise MemoryError("no room")

    def owner_of(rank: int) -> Exception:
        model = Broken() if rank and not late else torch.nn.Linear(3, 2)
        of = export if rank else lambda state: {name: one * 2 for name, one in state.items()}
        with pytest.raises(Exception) as raised:
            ModelOwner(model, export=of, exchange=ranks.exchange(rank), rank=rank, ranks=2)
        return raised.value

    first, second = ranks.run(owner_of)
    assert type(first) is type(second) is (dcr.errors.InvalidArgument if late else MemoryError)
    assert str(second) == ("export failed: no room" if late else "no room")
    assert str(first) == f"rank 1 has no owner: {second}"


@pytest.mark.parametrize(
    ("error", "kind", "tensor"),
    [
        (dcr.errors.NotFound("gone", "w"), dcr.errors.NotFound, "w"),
        (KeyError("w"), KeyError, ""),
        (torch.OutOfMemoryError("full"), RuntimeError, ""),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"), RuntimeError, ""),
        (StopIteration("ended"), RuntimeError, ""),
    ],
)
def test_another_ranks_error_is_of_its_class(
    error: Exception, kind: type[Exception], tensor: str
) -> None:
    heard = heard_from(said_of(error), "rank 3")
    assert type(heard) is kind
    assert heard.args[0] == f"rank 3: {error}"
    assert getattr(heard, "tensor", "") == tensor


@pytest.mark.parametrize("said", ["no room", "[]", "{}", '{"failed": 1}', "null"])
def test_another_ranks_words_may_be_others(said: str) -> None:
    heard = heard_from(said, "rank 3")
    assert (type(heard), heard.args[0]) == (RuntimeError, f"rank 3: {said}")


def test_a_rank_without_room_for_its_baseline(tmp_path: Path) -> None:
    ranks = ThreadedRanks(2)

    def owner_of(rank: int) -> Exception:
        with pytest.raises(dcr.errors.Error) as raised:
            ModelOwner(
                torch.nn.Linear(3, 2),
                exchange=ranks.exchange(rank),
                rank=rank,
                ranks=2,
                baseline_file=str(tmp_path / "none" / "baseline") if rank else "",
            )
        return raised.value

    first, second = ranks.run(owner_of)
    assert type(first) is type(second)
    assert str(first) == f"rank 1 has no owner: {second}"
    assert "baseline" in str(second)


def test_refused_by_name() -> None:
    class LoraLinear(torch.nn.Linear):
        pass

    LoraLinear.__module__ = "peft.tuners.lora.layer"
    with pytest.raises(dcr.errors.Unsupported, match="0 is a PEFT module"):
        ModelOwner(torch.nn.Sequential(LoraLinear(2, 2)))
    with pytest.raises(dcr.errors.Unsupported, match="weight is on meta"):
        ModelOwner(torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(dcr.errors.InvalidArgument, match="2 ranks without an exchange"):
        ModelOwner(torch.nn.Linear(2, 2), ranks=2)


def test_wrappers_leave_no_trace_in_names() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    inner = torch.nn.Sequential(checkpoint_wrapper(torch.nn.Linear(2, 2)), torch.nn.Linear(2, 2))
    inner[1] = torch.compile(inner[1])
    owner = ModelOwner(torch.compile(inner))
    assert [name for name, _, _ in owner.tensors] == ["0.bias", "0.weight", "1.bias", "1.weight"]


def test_hostile_declarations() -> None:
    from dcr import _core

    box = (0, 0, [(2, 1, 1)])
    good = _core.encode_declaration(
        0, 1, [("a", "F32", [2])], [("a", "F32", [2], [1], [box], [(0, box)])]
    )
    assert _core.EmbeddedOwner([good], 0).ranks == 1
    for size in range(len(good)):
        with pytest.raises(dcr.Error):
            _core.EmbeddedOwner([good[:size]], 0)
    for at in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            try:
                _core.EmbeddedOwner([bytes(bad)], 0)
            except dcr.Error:
                pass
    with pytest.raises(dcr.errors.Mismatch, match="declaration 0 of 2"):
        _core.EmbeddedOwner([good, good], 0)


def test_not_after_a_fork_and_not_pickled() -> None:
    import pickle

    owner = ModelOwner(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError):
        pickle.dumps(owner._core)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child() -> None:
        try:
            owner._core.rank
        except RuntimeError as error:
            queue.put(str(error))

    process = context.Process(target=child)
    process.start()
    assert "another process" in queue.get()
    process.join()
