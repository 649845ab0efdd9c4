#!/usr/bin/env python3
"""Checks the house rules that no compiler checks (docs/HACKING.md). Standard library only.

    tools/tidy.py [ROOT]

Prints one line for each finding, "path:line: [rule] what, and what to do instead", and exits 1 if
there is any. tools/tidy_test.py shows that every rule fires.
"""

import os
import re
import sys

# A layer includes only what its row names, and COMMON_HEADERS.
LAYERS = {
    "base": [],
    "runtime": ["base"],
    "simd": ["base"],
    "tensor": ["base", "runtime"],
    "codec": ["base", "simd", "tensor"],
    "source": ["base", "runtime", "simd", "tensor", "codec"],
    "receiver": ["base", "runtime", "simd", "tensor", "codec"],
    "device": ["base", "tensor"],
    "layout": ["base", "tensor"],
    "delta": ["base", "runtime", "simd", "tensor", "codec", "source", "receiver"],
    "control": ["base", "runtime"],
    "channel": ["base", "runtime"],
    "transport": ["base", "runtime", "channel"],
    "protocol": ["base", "tensor", "codec", "source", "receiver"],
    "run": ["base", "runtime", "tensor", "codec", "source", "receiver", "layout", "control",
            "channel", "transport", "protocol"],
    "api": ["base", "runtime", "simd", "tensor", "codec", "source", "receiver", "device", "layout",
            "delta", "control", "channel", "transport", "protocol", "run"],
    "cli": ["base", "runtime", "simd", "tensor", "codec", "source", "receiver", "layout", "delta",
            "control", "channel", "transport",
            "protocol", "run", "api"],
}
# What a layer's tests may include beside it: a reference to run against.
TEST_LAYERS = {"protocol": ["control"],
               "device": ["runtime", "simd", "codec", "receiver"]}
COMMON_HEADERS = {"dcr/status.h", "dcr/tensor.h", "dcr/options.h", "dcr/ports.h",
                  "dcr/cancel.h", "dcr/control.h", "dcr/receiver.h", "dcr/transport.h"}
# The other public headers belong to those who implement or use them.
PUBLIC_HEADER_USERS = {"delta", "api", "cli"}

# The module's calls that take long: their threads, and how often signals are looked for.
PYTHON_CALLS = "python/src/blocking.cc"

# A library's headers (by prefix) and the folders (or single files) that may include them. Folders:
# those of src/, "include", "python", "bench", "fuzz", "tests", "sim", and "test" for every
# x_test.cc, x_bench.cc, test_x.h.
OS_FOLDERS = {"runtime", "channel", "cli", "bench", "fuzz", "tests", "sim", "test"}
LIBRARIES = [
    ("sodium", {"base", "channel"}),
    ("xxhash", {"base"}),
    ("xxh3", {"base"}),
    ("spdlog/", {"base", "cli"}),
    ("sqlite3.h", {"control", "test"}),
    ("zmq.h", {"channel"}),
    ("zstd", {"codec", "bench"}),
    ("zdict", {"codec", "bench"}),
    ("hwy/", {"simd", "bench"}),
    ("nlohmann/", {"tensor", "layout", "cli", "bench", "sim", "test", "tests"}),
    ("CLI/", {"cli", "bench", "sim"}),
    ("toml++/", {"run"}),
    ("fmt/", {"cli", "bench", "test", "tests"}),
    ("gtest/", {"test", "tests"}),
    ("gmock/", {"test", "tests"}),
    ("rapidcheck", {"test", "tests"}),
    ("benchmark/", {"test", "bench"}),
    ("nanobind/", {"python"}),
    ("Python.h", set()),
    ("thread", {"runtime", "bench", "test", "tests", PYTHON_CALLS}),
    ("condition_variable", {"runtime", "test", "tests", PYTHON_CALLS}),
    ("future", set()),
    ("random", set()),
    ("regex", set()),
    ("mutex", {"runtime", "run", "source", "receiver", "device", "delta", "control", "channel",
               "transport",
               "api",
               "cli", "bench", "test", "tests", "python"}),
    ("chrono", {"runtime", "cli", "bench", "test", "tests", PYTHON_CALLS}),
    ("iostream", {"cli", "bench", "fuzz"}),
    ("filesystem", {"bench", "fuzz", "test", "tests"}),
    ("fstream", {"bench", "fuzz", "test", "tests"}),
    ("unistd.h", OS_FOLDERS | {"python/src/handle.h"}),
    ("fcntl.h", OS_FOLDERS),
    ("dirent.h", OS_FOLDERS),
    ("signal.h", OS_FOLDERS),
    ("csignal", OS_FOLDERS),
    ("spawn.h", OS_FOLDERS),
    ("sys/", OS_FOLDERS),
]

# What code must not say, where it may all the same, and what to do instead. Comments and string
# literals do not count. A path in `allowed` is a folder as above or one file.
BANNED = [
    (r"\bstd::(jthread|thread|async)\b", {"runtime", "bench", "test", "tests", PYTHON_CALLS},
     "take an Executor (runtime/threads.h)"),
    (r"\bstd::condition_variable\b", {"runtime", "test", "tests", PYTHON_CALLS},
     "use BoundedQueue or Executor::wait"),
    (r"\bstd::(random_device|mt19937(_64)?|default_random_engine)\b", set(),
     "use a seeded Prng (base/prng.h)"),
    (r"(?<![\w.>])(std::)?s?rand\s*\(", set(), "use a seeded Prng (base/prng.h)"),
    (r"\b(system_clock|steady_clock|high_resolution_clock)\s*::\s*now\b|"
     r"(?<![\w.>:])(time|clock_gettime|gettimeofday)\s*\(\s*(NULL|nullptr|0|CLOCK|&)",
     {"cli", "bench", "tests", "src/runtime/clock.cc", PYTHON_CALLS},
     "take the Clock that the shells make (runtime/clock.h)"),
    (r"(?<![\w:])new\s+[A-Za-z_:]", set(), "use std::make_unique"),
    (r"(?<![\w=] )(?<!=)\bdelete(\[\])?\s+[A-Za-z_*(]", set(), "use std::unique_ptr"),
    (r"(?<![\w.>])(std::)?(malloc|calloc|realloc|free)\s*\(", {"test"},
     "use std::vector or std::unique_ptr"),
    (r"(?<![\w.>])(std::)?(f|v|vf)?printf\s*\(|\b(std::)?(puts|putchar|fputs|fputc)\s*\(",
     {"cli", "bench", "fuzz", "sim", "test", "tests", "src/base/assert.h"},
     "return a Status; only the shells print"),
    (r"\bstd::(cout|cerr|clog|cin)\b", {"cli", "bench", "fuzz", "test", "tests"},
     "return a Status; only the shells print"),
    (r"(?<![\w.>])(std::)?s(n)?printf\s*\(|(?<![\w.>])(strcpy|strcat|gets|strtok)\s*\(", set(),
     "use std::string or fmt"),
    (r"(?<![\w.>])(::)?(mmap|munmap)\s*\(",
     {"bench", "test", "src/runtime/arena.cc", "src/channel/descriptors.cc"},
     "read by File::read: a mapping ends the process when the file shrinks"),
    (r"(?<![\w.>])(std::)?(exit|_exit|quick_exit)\s*\(",
     {"cli", "bench", "fuzz", "test", "tests", "src/runtime/child_process.cc"},
     "return a Status"),
    (r"(?<![\w.>])(std::)?abort\s*\(", {"src/base/assert.h", "fuzz", "test", "tests"},
     "use DCR_ASSERT"),
    (r"(?<![\w.>])assert\s*\(", set(), "use DCR_ASSERT (base/assert.h)"),
    (r"#\s*pragma\s+omp\b", set(), "take an Executor (runtime/threads.h)"),
]

# A file whose test has another name than its own: x.cc and why that test is the one.
TESTED_BY = {
    "src/base/control.cc": ("tests/control_conformance_test.cc", "what all stores go by"),
    "src/simd/kernels_scalar.cc": ("src/simd/kernels_test.cc", "the reference it compares with"),
    "src/simd/kernels_highway.cc": ("src/simd/kernels_test.cc", "compared with the reference"),
    "src/tensor/json.cc": ("src/tensor/safetensors_test.cc", "reached through the parsers only"),
    "src/tensor/text.cc": ("src/tensor/safetensors_test.cc", "reached through the parsers only"),
    "src/tensor/target.cc": ("src/receiver/host_memory_test.cc", "what memories refuse"),
    "src/tensor/box_compose.cc": ("src/tensor/box_test.cc", "part of box.h"),
    "src/tensor/box_cover.cc": ("src/tensor/box_test.cc", "part of box.h"),
    "src/codec/item_check.cc": ("src/codec/item_test.cc", "part of item.h"),
    "src/codec/item_encoder.cc": ("src/codec/item_test.cc", "tested as a round trip"),
    "src/codec/item_parser.cc": ("src/codec/item_test.cc", "part of item.h"),
    "src/codec/item_reader.cc": ("src/codec/item_test.cc", "tested as a round trip"),
    "src/codec/payload_writer.cc": ("src/codec/payload_test.cc", "tested as a round trip"),
    "src/device/load_device.cc": ("src/device/device_memory_test.cc", "what devices come from"),
    "src/layout/local_tensor.cc": ("src/layout/owner_plan_test.cc", "compared with formulas"),
    "src/layout/receiver_plan.cc": ("src/layout/reference_loader_test.cc", "what it loads by"),
    "src/layout/shard.cc": ("src/layout/owner_plan_test.cc", "the inverse of a plan's tasks"),
    "src/source/buckets.cc": ("src/source/pipeline_test.cc", "the stages are tested together"),
    "src/source/local_collective.cc": ("src/source/owner_group_test.cc", "what a group works over"),
    "src/source/residual_share.cc": ("src/source/owner_test.cc", "part of an owner"),
    "src/receiver/applier.cc": ("src/receiver/receiver_test.cc", "what apply() does"),
    "src/receiver/attempt_items.cc": ("src/receiver/receiver_test.cc", "seen as errors of ingest"),
    "src/receiver/decoded.cc": ("src/receiver/receiver_test.cc", "part of ingest"),
    "src/receiver/grid.cc": ("src/receiver/host_memory_test.cc", "the arithmetic of apply"),
    "src/receiver/index_map.cc": ("src/receiver/plan_test.cc", "boxes that plans are made of"),
    "src/receiver/ownership.cc": ("src/receiver/receiver_test.cc", "seen as errors of ingest"),
    "src/receiver/probe.cc": ("src/receiver/prewarm_test.cc", "part of a trace"),
    "src/receiver/regions.cc": ("src/receiver/prewarm_test.cc", "part of a trial"),
    "src/receiver/scratch.cc": ("src/receiver/receiver_property_test.cc", "equal to dense loads"),
    "src/receiver/trial.cc": ("src/receiver/prewarm_test.cc", "seen as classes"),
    "src/receiver/views.cc": ("src/receiver/host_memory_test.cc", "what read and write go by"),
    "src/delta/chain_applier.cc": ("src/delta/apply_test.cc", "what apply does"),
    "src/delta/compose.cc": ("src/delta/in_place_test.cc", "what is shown before a write"),
    "src/delta/contents.cc": ("src/delta/delta_file_test.cc", "part of a delta file"),
    "src/delta/footer.cc": ("src/delta/delta_file_test.cc", "part of a delta file"),
    "src/delta/footer_parser.cc": ("src/delta/delta_file_test.cc", "part of a delta file"),
    "src/delta/in_place_batches.cc": ("src/delta/in_place_test.cc", "part of in_place.h"),
    "src/delta/in_place_plan.cc": ("src/delta/in_place_test.cc", "part of in_place.h"),
    "src/delta/in_place_step.cc": ("src/delta/in_place_test.cc", "part of in_place.h"),
    "src/delta/output.cc": ("src/delta/apply_test.cc", "how apply writes"),
    "src/control/memory_control.cc": ("tests/control_conformance_test.cc", "the suite of stores"),
    "src/control/transactions.cc": ("tests/control_conformance_test.cc", "what stores do"),
    "src/control/sqlite_database.cc": ("src/control/sqlite_control_test.cc", "what it works on"),
    "src/channel/channel_loop.cc": ("src/channel/channel_test.cc", "the thread of a channel"),
    "src/channel/event.cc": ("src/channel/channel_test.cc", "what a channel waits for"),
    "src/channel/sockets.cc": ("src/channel/channel_test.cc", "the sockets of a channel"),
    "src/transport/memory_store.cc": ("tests/transport_conformance_test.cc", "the suite of stores"),
    "src/transport/object_transport.cc": ("tests/transport_conformance_test.cc", "its suite"),
    "src/protocol/control_call.cc": ("src/protocol/member_test.cc", "how machines' calls are made"),
    "src/protocol/details.cc": ("src/protocol/messages_test.cc", "part of messages.h"),
    "src/protocol/message_text.cc": ("src/protocol/messages_test.cc", "part of every message"),
    "src/protocol/node_feed.cc": ("src/protocol/node_test.cc", "part of node.h"),
    "src/protocol/node_fetch.cc": ("src/protocol/node_test.cc", "part of node.h"),
    "src/protocol/node_stream.cc": ("src/protocol/node_property_test.cc", "part of node.h"),
    "src/protocol/owner_attempt.cc": ("src/protocol/owner_test.cc", "part of owner.h"),
    "src/protocol/owner_refit.cc": ("src/protocol/owner_test.cc", "part of owner.h"),
    "src/protocol/owner_work.cc": ("src/protocol/owner_test.cc", "part of owner.h"),
    "src/protocol/receiver_stream.cc": ("src/protocol/receiver_attempt_test.cc", "a stream's half"),
    "src/protocol/receiver_works.cc": ("src/protocol/receiver_attempt_test.cc", "what it has done"),
    "src/run/control_caller.cc": ("tests/cluster_test.py", "a cluster's parts"),
    "src/run/coordinator_process.cc": ("tests/cluster_test.py", "run whole"),
    "src/run/engine_process.cc": ("tests/cluster_test.py", "run whole"),
    "src/run/engine_reader.cc": ("tests/cluster_test.py", "run whole"),
    "src/run/local_cluster.cc": ("tests/cluster_test.py", "run whole"),
    "src/run/node_process.cc": ("tests/cluster_test.py", "run whole"),
    "src/run/operations.cc": ("tests/cluster_test.py", "where points are"),
    "src/run/owner_collective.cc": ("tests/cluster_cases_test.py", "run whole"),
    "src/run/owner_process.cc": ("tests/cluster_test.py", "run whole"),
    "src/run/owner_work.cc": ("tests/cluster_test.py", "a cluster's parts"),
    "src/run/process_context.cc": ("tests/cluster_test.py", "a cluster's parts"),
    "src/run/run_directory.cc": ("python/tests/test_run.py", "with the processes that it starts"),
    "src/run/run_identity.cc": ("python/tests/test_run_machines.py", "asks other processes"),
    "src/run/run_keeper.cc": ("python/tests/test_run.py", "runs in processes of its own"),
    "src/run/source_watch.cc": ("python/tests/test_run.py", "waits for other processes"),
    "src/api/run.cc": ("python/tests/test_run.py", "with the run's processes"),
    "src/api/run_gate.cc": ("python/tests/test_run.py", "with the run's processes"),
    "src/api/run_operator.cc": ("python/tests/test_run_driver.py", "with the run's processes"),
    "src/api/run_owner.cc": ("python/tests/test_run.py", "with the run's processes"),
    "src/api/run_receiver.cc": ("python/tests/test_run.py", "with the run's processes"),
    "src/run/receiver_host.cc": ("tests/cluster_test.py", "a cluster's parts"),
    "src/run/receiver_work.cc": ("tests/cluster_test.py", "a cluster's parts"),
    "src/run/run_model.cc": ("tests/cluster_test.py", "a cluster's parts"),
    "src/run/serving_model.cc": ("tests/cluster_test.py", "a cluster's parts"),
    "src/cli/run_command_line.cc": ("tests/cluster_test.py", "the commands are run whole"),
    "src/cli/run_commands.cc": ("tests/cluster_test.py", "the commands are run whole"),
    "src/layout/checkpoint_reader.cc": ("src/api/refit_test.cc", "where every weight comes from"),
    "src/api/refit_context.cc": ("src/api/refit_test.cc", "part of a refit"),
    "src/api/refit_owners.cc": ("src/api/refit_test.cc", "part of a refit"),
    "src/api/refit_receivers.cc": ("src/api/refit_test.cc", "part of a refit"),
    "src/cli/command_line.cc": ("src/cli/cli_test.cc", "the commands are run whole"),
    "src/cli/commands.cc": ("src/cli/cli_test.cc", "the commands are run whole"),
    "src/cli/exit_code.cc": ("src/cli/cli_test.cc", "the commands are run whole"),
    "src/cli/inspect_text.cc": ("src/cli/cli_test.cc", "the commands are run whole"),
    "src/cli/json.cc": ("src/cli/cli_test.cc", "the commands are run whole"),
    "src/cli/main.cc": ("src/cli/cli_test.cc", "hands its arguments on"),
    "src/cli/signals.cc": ("src/cli/cli_test.cc", "the commands are run whole"),
    "src/api/owner_tasks.cc": ("src/api/owner_test.cc", "seen as errors of create"),
    "src/api/stages.cc": ("src/api/refit_test.cc", "part of every result"),
}

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100

CODE_FOLDERS = ("src/", "include/", "python/", "bench/", "fuzz/", "tests/", "sim/")
WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(root|home|work)/")
# The checker and its test name what they look for.
SELF = {"tools/tidy.py", "tools/tidy_test.py"}


class Findings:
    def __init__(self):
        self.lines = []

    def add(self, path, line, rule, text):
        self.lines.append(f"{path}:{line}: [{rule}] {text}")


def list_files(root):
    """Every file of the tree by its path from the root, without build results and git's own."""
    result = []
    for folder, names, files in os.walk(root):
        names[:] = sorted(n for n in names if n not in (".git", "build", "__pycache__", "corpus"))
        for name in files:
            result.append(os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/"))
    return sorted(result)


def read_text(root, path):
    """The text of a file; None if it is no text."""
    with open(os.path.join(root, path), "rb") as file:
        data = file.read()
    try:
        return None if b"\0" in data else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


TOKENS = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def blank(match):
    """White space of the same shape, quotes kept."""
    text = match.group(0)
    body = re.sub(r"[^\n]", " ", text)
    return '"' + body[1:-1] + '"' if text[0] in "\"R" else body


def strip_comments(text):
    """C++ without comments and without what literals hold; lines and columns stay."""
    return TOKENS.sub(blank, text)


def is_test(path):
    name = path.rsplit("/", 1)[-1]
    return re.search(r"_(test|bench)\.(cc|h)$|^test_\w+\.h$", name) is not None


def folder_of(path):
    """The folder that rules speak of: a layer, or "include", "python", "bench", "fuzz", …"""
    parts = path.split("/")
    return parts[1] if parts[0] == "src" and len(parts) > 2 else parts[0]


def allowed_in(path, folders):
    names = {folder_of(path), path}
    if is_test(path):
        names.add("test")
    return bool(names & folders)


def check_project_include(path, line, header, findings):
    """An include in quotes: the layer table."""
    target = header.split("/")[0]
    folder = folder_of(path)
    if target == "dcr":
        if path.startswith("src/") and header not in COMMON_HEADERS and not is_test(path) and \
                folder not in PUBLIC_HEADER_USERS:
            findings.add(path, line, "layers", f"{header} is for {sorted(PUBLIC_HEADER_USERS)}")
        return
    if path.startswith("include/"):
        findings.add(path, line, "layers",
                     f"a public header includes {header}: it may only include dcr/…")
        return
    if path.startswith("python/"):
        if "/" in header:
            findings.add(path, line, "layers",
                         f"the bindings include {header}: they stand on dcr/… alone")
        return
    if not path.startswith("src/"):
        return
    if header.startswith("tests/support/") and is_test(path):
        return
    row = LAYERS.get(folder)
    if is_test(path) and target in TEST_LAYERS.get(folder, []):
        return
    if row is None:
        findings.add(path, line, "layers", f"src/{folder} is not in the layer table of {__file__}")
    elif target not in LAYERS:
        findings.add(path, line, "layers",
                     f'"{header}" starts with no layer: write it from src/ or include/')
    elif target != folder and target not in row:
        findings.add(path, line, "layers", f"{folder} may not include {target} ({header}); "
                     f"its row: {' '.join(row) or 'nothing'}")


def check_includes(path, text, findings):
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', line)
        if not match:
            continue
        if match.group(1):
            check_project_include(path, number, match.group(1), findings)
            continue
        header = match.group(2)
        for prefix, folders in LIBRARIES:
            exact = not prefix.endswith("/") and prefix not in ("rapidcheck", "zstd", "zdict",
                                                                "sodium", "xxhash", "xxh3")
            hit = header == prefix if exact else header.startswith(prefix)
            if hit and not allowed_in(path, folders):
                findings.add(path, number, "libraries",
                             f"<{header}> is for {' '.join(sorted(folders)) or 'nobody'}, "
                             f"not for {folder_of(path)}")


def check_json_once(sources, findings):
    """The JSON library is slow to compile: one file of a folder includes it (and one test)."""
    users = {}
    for path, text in sources:
        if re.search(r"^\s*#\s*include\s*<nlohmann/", text, re.MULTILINE):
            users.setdefault((os.path.dirname(path), is_test(path)), []).append(path)
    for (folder, _), paths in sorted(users.items()):
        for path in paths[1:]:
            findings.add(path, 1, "json", f"{paths[0]} of {folder} includes nlohmann already: "
                         "keep it to one file")


def check_banned(path, code, findings):
    lines = code.split("\n")
    for pattern, folders, instead in BANNED:
        if allowed_in(path, folders):
            continue
        for number, line in enumerate(lines, 1):
            match = re.search(pattern, line)
            if match:
                findings.add(path, number, "banned", f"{match.group(0).strip()}: {instead}")


def check_shape(path, text, findings):
    lines = text.split("\n")
    count = len(lines) - (1 if lines[-1] == "" else 0)
    if count > FILE_LINES_MAX:
        findings.add(path, count, "file-lines", f"{count} lines, more than {FILE_LINES_MAX}: split")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            findings.add(path, number, "columns", f"{len(line)} columns, more than {COLUMNS_MAX}")


TRANSPARENT = re.compile(r"^(inline\s+)?namespace\b|^extern\s*\"")
TYPE = re.compile(r"^(template\s*<.*>\s*)?(typedef\s+)?(class|struct|union|enum)\b")


def functions(code):
    """(first line, last line) of every outermost function body of C++ without comments.

    Braces are followed from the top; namespaces and classes are looked into, an initialiser or an
    enumeration is not a function, and all else that opens a brace is one.
    """
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)),
                  code, flags=re.MULTILINE)
    stack = []  # of (is a function, its first line)
    header, header_line, line = "", 1, 1
    inside = 0  # open blocks from the outermost function on
    for letter in code:
        if letter == "\n":
            line += 1
        if letter == "{":
            words = " ".join(header.split())
            words = re.sub(r"^((public|private|protected)\s*:\s*)+", "", words)
            looked_into = TRANSPARENT.match(words) or (TYPE.match(words) and
                                                       not words.endswith(")"))
            function = not looked_into and not inside and not words.endswith("=")
            if inside or not looked_into:
                inside += 1
            stack.append((function, header_line, not looked_into or inside > 0))
            header = ""
        elif letter == "}":
            if stack:
                function, first, counted = stack.pop()
                if counted and inside:
                    inside -= 1
                if function:
                    yield first, line
            header = ""
        elif letter == ";" and "(" in header and header.count("(") > header.count(")"):
            header += letter  # of a for
        elif letter == ";":
            header = ""
        else:
            if not header.strip():
                header_line = line
            header += letter


def check_functions(path, code, findings):
    for first, last in functions(code):
        if last - first + 1 > FUNCTION_LINES_MAX:
            findings.add(path, first, "function-lines",
                         f"{last - first + 1} lines, more than {FUNCTION_LINES_MAX}: split")


def check_words(path, text, findings):
    for number, line in enumerate(text.split("\n"), 1):
        match = WORDS.search(line)
        if match:
            findings.add(path, number, "words", f"{match.group(0)}: do it or file it")
        match = MACHINE_PATHS.search(line)
        if match:
            findings.add(path, number, "machine-path",
                         f"{match.group(0)} is a place on somebody's machine")


def check_tested(paths, findings):
    there = set(paths)
    for path in paths:
        if not path.startswith("src/") or not path.endswith(".cc") or is_test(path):
            continue
        test, _ = TESTED_BY.get(path, (path[:-3] + "_test.cc", ""))
        if test not in there:
            findings.add(path, 1, "tested", f"{test} is missing (or name another in TESTED_BY of "
                         "tools/tidy.py, and why)")
        elif path in TESTED_BY and path[:-3] + "_test.cc" in there:
            findings.add(path, 1, "tested", "has a test beside it: drop it from TESTED_BY")


def check_stale(paths, findings):
    """Entries of TESTED_BY for files that are gone. Only for the tree that this file lies in."""
    for path in sorted(set(TESTED_BY) - set(paths)):
        findings.add("tools/tidy.py", 1, "tested", f"TESTED_BY names {path}, which is gone")


def slug(heading):
    """The anchor that a Markdown heading gets."""
    heading = re.sub(r"[`*]", "", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def anchors(text):
    without_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {slug(m.group(1)) for m in re.finditer(r"^#+\s+(.*)$", without_code, re.MULTILINE)}


def check_links(root, path, text, findings):
    for number, line in enumerate(text.split("\n"), 1):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            place = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
            full = os.path.join(root, place)
            if not os.path.exists(full):
                findings.add(path, number, "links", f"{target} leads nowhere")
            elif anchor and anchor not in anchors(read_text(root, place) or ""):
                findings.add(path, number, "links", f"{target}: {place} has no such heading")


def check_citations(root, path, text, findings):
    """docs/NAME.md "Heading", over several lines of a comment too, is there."""
    flat = re.sub(r"\n\s*(?://|#)?[ \t]*", lambda match: " " * len(match.group(0)), text)
    for match in re.finditer(r'\b(docs/\w+\.md)\b(?:,? +"([A-Z][^"]*)")?', flat):
        line = text.count("\n", 0, match.start()) + 1
        place, heading = match.group(1), match.group(2)
        if not os.path.exists(os.path.join(root, place)):
            findings.add(path, line, "cites", f"there is no {place}")
        elif heading and slug(re.sub(" +", " ", heading)) not in anchors(read_text(root, place)):
            findings.add(path, line, "cites", f'{place} has no heading "{heading}"')


def check(root):
    """All findings of the tree at `root`, as lines."""
    findings = Findings()
    paths = list_files(root)
    sources = []
    for path in paths:
        text = read_text(root, path)
        if text is None:
            continue
        if path not in SELF:
            check_words(path, text, findings)
        if path.endswith((".cc", ".h", ".py", ".sh")):
            check_shape(path, text, findings)
            if path not in SELF:
                check_citations(root, path, text, findings)
        if path.endswith(".md"):
            check_links(root, path, text, findings)
        if path.endswith((".cc", ".h")) and path.startswith(CODE_FOLDERS):
            sources.append((path, text))
            code = strip_comments(text)
            check_includes(path, text, findings)
            check_banned(path, code, findings)
            check_functions(path, code, findings)
            if path.endswith(".h") and not re.search(r"^#pragma once$", text, re.MULTILINE):
                findings.add(path, 1, "guard", "a header starts with #pragma once")
    check_json_once(sources, findings)
    check_tested(paths, findings)
    if os.path.exists(os.path.join(root, "tools/tidy.py")):
        check_stale(paths, findings)
    return findings.lines


def main(arguments):
    root = arguments[1] if len(arguments) > 1 else os.path.join(os.path.dirname(__file__), "..")
    lines = check(root)
    for line in lines:
        print(line)
    print(f"tidy: {len(lines)} findings" if lines else "tidy: clean")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
