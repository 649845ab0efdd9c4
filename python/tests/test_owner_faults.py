"""What callers of an owner may get wrong, and what must not come of it."""

import os

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import dcr  # noqa: E402
from dcr.torch import ModelOwner  # noqa: E402


def test_no_other_call_while_one_is_under_way() -> None:
    seen: list[str] = []
    owners: list[ModelOwner] = []
    model = torch.nn.Linear(300, 400)

    def progress(_: object) -> None:
        for owner in owners:
            for call in (owner._core.clear_storages, owner._core.drop_attempt, owner.restore):
                with pytest.raises(RuntimeError, match="another call of the owner is under way"):
                    call()
                seen.append(call.__name__)

    owners.append(ModelOwner(model, progress=progress))
    with torch.no_grad():
        model.weight += 1
    refit = owners[0].prepare()
    assert set(seen) == {"clear_storages", "drop_attempt", "restore"}
    assert refit.result.changed_source_elements == 300 * 400


def test_a_storage_that_is_gone_is_not_read() -> None:
    model = torch.nn.Linear(3, 4, bias=False)
    owner = ModelOwner(model)
    model.weight.untyped_storage().resize_(0)
    with pytest.raises(dcr.errors.Mismatch, match="weight: its storage has 0 bytes"):
        owner.prepare()
    assert model.weight.untyped_storage().nbytes() == 0


def test_what_was_committed_stays_so_where_the_weights_have_gone() -> None:
    model = torch.nn.Linear(3, 4, bias=False)
    owner = ModelOwner(model)
    with torch.no_grad():
        model.weight += 1
    owner.prepare()
    kept = model.weight.detach().clone()
    model.weight.untyped_storage().resize_(0)
    with pytest.raises(dcr.errors.Mismatch, match="weight: its storage has 0 bytes"):
        owner.commit()
    assert (owner.version, owner.open_refit) == (1, None)
    model.weight.untyped_storage().resize_(kept.untyped_storage().nbytes())
    with torch.no_grad():
        model.weight.copy_(kept + 1)
    assert owner.prepare().result.mode == "dense"


def test_what_follows_an_abort_is_exact_on_whatever_was_applied() -> None:
    model = torch.nn.Linear(3, 4, bias=False)
    owner = ModelOwner(model)
    for applied, mode in ((False, "mixed"), (True, "dense")):
        owner.prepare()
        owner.abort(applied=applied)
        assert owner.prepare().result.mode == mode
        owner.abort(applied=False)


def test_what_follows_a_retry_that_failed_is_dense() -> None:
    model = torch.nn.Linear(3, 4, bias=False)
    owner = ModelOwner(model)
    owner.prepare()
    with pytest.raises(dcr.errors.InvalidArgument, match="needs of 2"):
        owner.prepare(needs=["any", "any"])
    assert owner.prepare().result.mode == "dense"
    assert owner.prepare().result.mode == "dense"


def test_a_child_may_let_go_of_it() -> None:
    owner = ModelOwner(torch.nn.Linear(3, 4), threads=2)
    child = os.fork()
    if child == 0:
        del owner
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert owner.version == 0
