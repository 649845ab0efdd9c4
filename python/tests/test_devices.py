"""Modules on a device, as trainers and as servers: the same bits as in host memory. All of it runs
on a device that is none, and on CUDA where there is one."""

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dcr.errors
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

import dcr.run  # noqa: E402
import dcr.torch  # noqa: E402
from dcr import _core  # noqa: E402
from dcr.torch import ModelOwner, ModelReceiver, devices  # noqa: E402
from late_device import Cuda, Device, Late, build_late_device, reaching  # noqa: E402
from owner_checks import check_transitions  # noqa: E402
from refits import StateOwner, changed, refit  # noqa: E402
from run_parts import Engine, Net, run_directory, step  # noqa: E402
from test_torch_operations import DTYPES, Strided  # noqa: E402
from test_tracer import served  # noqa: E402
from test_tracer_refits import transition  # noqa: E402
from torch_loaders import all_bytes, checkpoint, random_words  # noqa: E402

Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_late_device(tmp_path_factory.mktemp("late"))


def cuda_is_missing() -> str:
    if not torch.cuda.is_available():
        return "torch finds no CUDA device: nothing was run on CUDA"
    return "" if devices.reach.library.exists() else f"there is no {devices.reach.library}"


@pytest.fixture(params=["late", "cuda"])
def device(request: pytest.FixtureRequest, library: Path) -> Iterator[Device]:
    if request.param == "cuda" and cuda_is_missing():
        pytest.skip(cuda_is_missing())
    reach: Device = Late(library) if request.param == "late" else Cuda()
    with reaching(reach):
        yield reach
        reach.check_done()
        gc.collect()  # the device is closed here, which finds what was not given back


def on_host(module: Any) -> Any:
    """The bits of all its tensors."""
    return {
        name: tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in module.state_dict().items()
    }


def receiver_of(module: Any, tensors: Tensors, state: StateOwner, **options: Any) -> ModelReceiver:
    receiver = ModelReceiver(module, tensors, owners=state.owner.boxes, **options)
    assert isinstance(receiver._loader.storages.memory, _core.DeviceTargets)
    return receiver


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("encoding", ["xor", "add", "overwrite"])
@pytest.mark.parametrize("prefer_scratch", [False, True])
def test_refits_equal_dense_loads(
    device: Device, size: int, encoding: Any, prefer_scratch: bool
) -> None:
    tensors = checkpoint(size)
    state = StateOwner(tensors)
    modules, receivers = [], []
    for rank in range(size):
        module = served(rank, size, tensors)
        device.put(module)
        receiver = receiver_of(
            module,
            tensors,
            state,
            prefer_scratch=prefer_scratch,
            post_apply_checks=rank == 1,
            threads=1 + 2 * rank,
        )
        classes = receiver.prewarm()
        on_cpu = ModelReceiver(
            served(rank, size, tensors), tensors, prefer_scratch=prefer_scratch
        )
        assert {n: str(one) for n, one in classes.items()} == {
            n: str(one) for n, one in on_cpu.prewarm().items()
        }
        receiver.audit(tensors)
        assert on_host(module) == on_host(served(rank, size, tensors))
        modules.append(module)
        receivers.append(receiver)
    for number, rate in enumerate((0.3, 0.02, 1.0)):
        tensors = transition(tensors, number, rate)
        refit(state, tensors, receivers, encoding=encoding)
        for rank, module in enumerate(modules):
            assert on_host(module) == on_host(served(rank, size, tensors)), (number, rank)
            receivers[rank].audit(tensors)
    verified = refit(state, tensors, receivers, mode="dense", verify=True)
    assert [one.different for one in verified] == [0] * size


@pytest.mark.parametrize("extra", ["indexed", "cat", "foreach", "doubled", "row", "zeroed"])
def test_odd_loaders(device: Device, extra: str) -> None:
    tensors = checkpoint(0, extra)
    if extra == "doubled":
        tensors["extra"] = torch.randn(4, 6).bfloat16()
    state = StateOwner(tensors)
    module = served(1, 2, tensors, extra)
    device.put(module)
    receiver = receiver_of(module, tensors, state)
    assert receiver.prewarm()["extra"].path != "refused"
    new = transition(tensors, 5, 0.3)
    if extra == "doubled":
        new["extra"] = torch.randn(4, 6).bfloat16()
    refit(state, new, [receiver])
    assert on_host(module) == on_host(served(1, 2, new, extra))


def test_every_dtype_and_stride(device: Device) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"b{number}_{shape}": random_words((4, 6), generator, dtype)
        for number, dtype in enumerate(DTYPES)
        if dtype != torch.bool
        for shape in range(3)
    }
    flags = {f"b0_{shape}": torch.rand(4, 6, generator=generator) < 0.5 for shape in range(3)}
    state = StateOwner({**tensors, **flags})
    module = Strided()
    module.load_weights([*tensors.items(), *flags.items()])
    device.put(module)
    receiver = receiver_of(module, {**tensors, **flags}, state, never_loaded=["gap*"])
    assert {one.path for one in receiver.prewarm().values()} == {"traced"}
    for number in range(6):
        tensors = changed(tensors, number, 0.3)
        flags = {name: tensor.roll(number + 1, 0) for name, tensor in flags.items()}
        refit(
            state,
            {**tensors, **flags},
            [receiver],
            encoding=("xor", "add", "overwrite")[number % 3],
        )
        fresh = Strided()
        fresh.load_weights([*tensors.items(), *flags.items()])
        assert on_host(module) == on_host(fresh), number


def test_parts_may_lie_in_host_memory(device: Device) -> None:
    tensors = checkpoint(0)
    state = StateOwner(tensors)
    module = served(0, 1, tensors)
    part = torch.nn.Module()
    part.stack = module.stack
    part.router = module.router
    device.put(part)
    receiver = receiver_of(module, tensors, state)
    receiver.prewarm()
    receiver.audit(tensors)
    new = transition(tensors, 1, 0.2)
    refit(state, new, [receiver])
    assert on_host(module) == on_host(served(0, 1, new))


class Trained(torch.nn.Module):
    """Parameters as trainers have them: slices of one buffer, a turned one, tied, two widths."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.randn(1 + 300 + 35 + 64).bfloat16()
        # No slice begins at a multiple of eight bytes.
        self.first = torch.nn.Parameter(flat[1:301].view(20, 15))
        self.second = torch.nn.Parameter(flat[301:336].view(5, 7))
        self.turned = torch.nn.Parameter(torch.randn(40, 30).t())
        self.large = torch.nn.Parameter(torch.randn(70, 60))  # more than a slice
        self.register_buffer("steps", torch.arange(3))
        self.tied = self.first


def trained_step(model: Any, number: int, finite: bool = False) -> None:
    """Changes a tenth of all elements, to any bits unless they are to be numbers."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            which = torch.rand(tensor.shape, generator=generator) < 0.1
            if finite:
                new = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            else:
                new = random_words(tuple(tensor.shape), generator, tensor.dtype)
            tensor.copy_(torch.where(which, new, tensor.cpu()))


def saved(model: Any) -> Tensors:
    return {name: one.cpu().clone() for name, one in model.state_dict().items() if name != "tied"}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_owners_read_what_the_stream_was_given(device: Device, dtype: Any) -> None:
    model = Trained()
    device.put(model)
    owner = ModelOwner(model, dtype=dtype, threads=2)

    def canonical() -> Tensors:
        floats = (torch.float32, torch.bfloat16)
        return {
            name: one.to(dtype) if dtype and one.dtype in floats else one
            for name, one in saved(model).items()
        }

    def late_step(number: int) -> None:
        # What torch makes of a NaN's payload in a cast depends on how it goes over a tensor.
        device.give(model, lambda: trained_step(model, number, finite=dtype is not None))

    check_transitions(
        owner,
        lambda payloads: [payloads],
        step=late_step,
        saved=canonical,
        judge=True,
        where="a device",
    )


def test_parameters_may_move(device: Device) -> None:
    model = Trained()
    owner = ModelOwner(model)
    device.put(model)
    trained_step(model, 1)
    assert owner.prepare().result.mode == "mixed"
    owner.commit()
    unchanged = owner.prepare()
    assert unchanged.payloads == []
    owner.abort(applied=False)
    for parameter in model.parameters():  # offloaded
        parameter.data = parameter.data.cpu().clone(memory_format=torch.preserve_format)
    assert owner.prepare().payloads == []


def test_a_run_on_devices(device: Device, tmp_path: Path) -> None:
    with run_directory(tmp_path / "run") as directory:
        served_net, model = Net(1), Net(2)
        device.put(served_net)
        device.put(model)
        engine = Engine(dcr.run.Run(directory), "engine", served_net)
        owner = dcr.torch.Owner(model, run=directory)
        for number in range(4):
            if number:
                device.give(model, lambda number=number: step(model, number))
            result = owner.refit(number, asynchronous=number == 2)
            engine.wait_for(str(number))
            assert on_host(served_net) == on_host(model), number
            assert result.mode == ("mixed" if number else "dense")
        owner.close()
        engine.close()


# What is missing is said, and receivers go on without it.


def test_without_the_library(tmp_path: Path, library: Path, caplog: Any) -> None:
    missing = Late(tmp_path / "libdcr_device.so")
    with reaching(missing):
        tensors = checkpoint(0)
        module = served(0, 1, tensors)
        missing.put(module)
        with caplog.at_level(logging.WARNING, logger="dcr"):
            receiver = ModelReceiver(module, tensors)
        assert receiver._loader.torch_operations
        assert "parameters on cuda:0 are changed by torch's operations" in caplog.text
        assert "install DCR again" in caplog.text
        with pytest.raises(dcr.errors.NotFound, match="libdcr_device.so.*install DCR again"):
            ModelReceiver(module, tensors, torch_operations=False)
        with pytest.raises(dcr.errors.NotFound, match="first is on cuda:0.*or move the model"):
            model = Trained()
            missing.put(model)
            ModelOwner(model)


def test_without_a_driver() -> None:
    path = devices.Reach.library
    if not path.exists():
        pytest.skip("DCR was built without nvcc")
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    with pytest.raises(dcr.errors.Unavailable, match="device 0: CUDA: .*driver"):
        _core.StagedDevice(str(path), 0)


IMPORTS = """
import dcr, dcr._core, dcr.torch, dcr.torch.devices
loaded = open("/proc/self/maps").read()
assert "libcuda.so" not in loaded and "libdcr_device" not in loaded
"""


def test_importing_loads_nothing_of_cuda() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_one_device_for_all_of_a_process(library: Path) -> None:
    reach = Late(library)
    with reaching(reach):
        where = torch.device("cuda", 0)
        first = devices.staged(where)
        assert devices.staged(where) is first
        assert (first.name, first.staging_bytes) == ("none", 16 << 10)
        assert devices.staged(torch.device("cuda", 1)) is not first
        with pytest.raises(dcr.errors.Unavailable, match="there is no device 2"):
            devices.staged(torch.device("cuda", 2))
        with pytest.raises(TypeError, match="cannot be pickled"):
            first.__reduce_ex__(4)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(RuntimeError, match="made in another process"):
                    first.follow(0)
                # Another device is opened in peace, and what is the parent's ends in peace.
                devices.staged(where).follow(0)
                del first
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
