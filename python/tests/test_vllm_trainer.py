"""vLLM's own trainer API with the backend dcr."""

import pickle
from pathlib import Path

import pytest
from run_parts import run_directory
from vllm_engines import Child, needs_vllm

needs_vllm()


def refits(directory: str) -> list[tuple[int, str, str]]:
    import dcr.run
    from dcr.errors import InvalidArgument
    from dcr.vllm.trainer import DcrTrainerInitInfo
    from run_parts import Engine, Net, digest, step
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.base import ModuleSource

    engine = Engine(dcr.run.Run(directory), "engine", Net(1))
    model = Net(2)
    info = pickle.loads(pickle.dumps(DcrTrainerInitInfo(rank=0, run=directory)))
    assert info == DcrTrainerInitInfo(rank=0, run=directory)
    with pytest.raises(InvalidArgument, match=r"source=ModuleSource\(model\)"):
        WeightTransferTrainerFactory.trainer_init(info, client=None)
    trainer = WeightTransferTrainerFactory.trainer_init(
        info, client=None, source=ModuleSource(model)
    )
    found = []
    for label in (None, "named", None):
        step(model, len(found))
        result = trainer.send_weights(label) if label else trainer.send_weights()
        engine.wait_for(result.label)
        assert digest(engine.model) == digest(model)
        found.append((result.version, result.label, result.mode))
    trainer.shutdown()
    return found


def test_the_trainer_factory(tmp_path: Path) -> None:
    with run_directory(tmp_path / "run") as directory:
        assert Child(refits, str(directory)).result() == [
            (1, "1", "dense"),
            (2, "named", "mixed"),
            (3, "3", "mixed"),
        ]
