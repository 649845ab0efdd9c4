#!/usr/bin/env python3
"""Shows that every rule of tools/tidy.py fires, and that it keeps still where it should."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tidy  # noqa: E402


def findings(files):
    """What tidy says of a tree with these files (path -> text)."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
        return tidy.check(root)


def header(text):
    return "#pragma once\n" + text


class TidyTest(unittest.TestCase):
    def fires(self, files, *parts):
        lines = findings(files)
        self.assertEqual(len(lines), 1, lines)
        for part in parts:
            self.assertIn(part, lines[0])

    def clean(self, files):
        self.assertEqual(findings(files), [])

    def test_layers(self):
        self.fires({"src/base/a.h": header('#include "runtime/file.h"\n')},
                   "src/base/a.h:2: [layers] base may not include runtime")
        self.fires({"src/codec/a.h": header('#include "source/pipeline.h"\n')}, "[layers]")
        self.fires({"src/base/a.h": header('#include "a.h"\n')}, "[layers]", "no layer")
        self.fires({"src/odd/a.h": header('#include "base/a.h"\n')}, "[layers]", "src/odd")
        self.fires({"src/simd/a.h": header('#include "dcr/delta.h"\n')}, "[layers]")
        self.fires({"include/dcr/a.h": header('#include "base/a.h"\n')}, "[layers]", "public")
        self.fires({"src/base/a.h": header('#include "tests/support/a.h"\n')}, "[layers]")
        self.fires({"python/src/a.h": header('#include "runtime/file.h"\n')}, "[layers]")
        self.fires({"src/protocol/a.h": header('#include "control/a.h"\n')}, "[layers]")
        self.fires({"src/codec/a_test.cc": '#include "control/a.h"\n'}, "[layers]")
        self.clean({"src/source/a.h": header('#include "source/b.h"\n#include "codec/c.h"\n'
                                             '#include "dcr/status.h"\n'),
                    "src/cli/a.h": header('#include "dcr/delta.h"\n'),
                    "src/base/a_test.cc": '#include "tests/support/a.h"\n',
                    "python/src/a.h": header('#include "b.h"\n#include "dcr/delta.h"\n'),
                    "src/protocol/a_test.cc": '#include "control/a.h"\n',
                    "bench/a.h": header('#include "delta/a.h"\n')})

    def test_libraries(self):
        self.fires({"src/tensor/a.h": header("#include <zstd.h>\n")},
                   "src/tensor/a.h:2: [libraries] <zstd.h> is for bench codec")
        for name in ("sodium.h", "xxhash.h", "hwy/highway.h", "CLI/CLI.hpp", "fmt/format.h",
                     "spdlog/spdlog.h", "gtest/gtest.h", "rapidcheck.h", "thread", "random",
                     "iostream", "filesystem", "unistd.h", "sys/stat.h", "chrono",
                     "nanobind/nanobind.h"):
            self.fires({"src/codec/a.h": header(f"#include <{name}>\n")}, "[libraries]", name)
        self.clean({"src/base/a.h": header("#include <sodium.h>\n#include <xxhash.h>\n"),
                    "src/codec/a.h": header("#include <zstd.h>\n#include <vector>\n"),
                    "src/simd/a_test.cc": "#include <gtest/gtest.h>\n#include <thread>\n",
                    "src/runtime/a.h": header("#include <thread>\n#include <sys/stat.h>\n"),
                    "python/src/a.h": header("#include <nanobind/nanobind.h>\n")})

    def test_json_once(self):
        include = "#include <nlohmann/json.hpp>\n"
        self.fires({"src/tensor/a.h": header(include), "src/tensor/b.h": header(include)},
                   "src/tensor/b.h:1: [json] src/tensor/a.h")
        self.clean({"src/tensor/a.h": header(include), "src/tensor/a_test.cc": include,
                    "src/cli/b.h": header(include)})

    def test_banned(self):
        for code, instead in (
                ("std::thread t;", "Executor"),
                ("auto f = std::async(g);", "Executor"),
                ("std::condition_variable c;", "BoundedQueue"),
                ("std::random_device d;", "Prng"),
                ("int x = rand();", "Prng"),
                ("std::srand(1);", "Prng"),
                ("auto t = std::chrono::system_clock::now();", "shells"),
                ("auto t = std::chrono::steady_clock::now();", "shells"),
                ("auto t = time(nullptr);", "shells"),
                ("auto p = new Thing();", "make_unique"),
                ("delete p;", "unique_ptr"),
                ("void* p = malloc(3);", "vector"),
                ('printf("x");', "shells print"),
                ('std::fprintf(stderr, "x");', "shells print"),
                ('std::cout << "x";', "shells print"),
                ('std::snprintf(b, 3, "x");', "fmt"),
                ("mmap(a, b);", "File::read"),
                ("std::exit(1);", "Status"),
                ("abort();", "DCR_ASSERT"),
                ("assert(x);", "DCR_ASSERT")):
            self.fires({"src/codec/a.h": header(f"void f() {{\n  {code}\n}}\n")},
                       "src/codec/a.h:3: [banned]", instead)
        self.clean({
            "src/codec/a.h": header("// a new thread may rand() and printf(), a delete p too\n"
                                    "/* abort(); */ A(const A&) = delete;\n"
                                    "A& operator=(const A&) = delete;\n"
                                    'const char* k = "std::thread new X assert(1)";\n'
                                    "static_assert(true); x.free(); renew(); f_assert(1);\n"),
            "src/runtime/a.h": header("std::thread t;\n"),
            "src/cli/a.h": header('printf("x"); auto t = steady_clock::now();\n'),
            "src/base/assert.h": header('std::fprintf(stderr, "x"); std::abort();\n'),
            "src/codec/a_test.cc": "std::thread t;\n"})

    def test_shape(self):
        self.fires({"src/base/a.h": header("\n" * 600)}, "[file-lines] 601 lines")
        self.clean({"src/base/a.h": header("\n" * 599)})
        self.fires({"src/base/a.h": header("// " + "x" * 98 + "\n")}, ":2: [columns] 101")
        self.clean({"src/base/a.h": header("// " + "é" * 97 + "\n")})
        self.fires({"src/base/a.h": "int x();\n"}, "[guard]")

    def test_function_lines(self):
        def function(lines, head="int f(int x)"):
            return head + " {\n" + "  g();\n" * (lines - 2) + "}\n"

        self.clean({"src/base/a.h": header(function(70))})
        self.fires({"src/base/a.h": header(function(71))}, ":2: [function-lines] 71 lines")
        for head in ("TEST(A, B)", "void A::f() const noexcept",
                     "template <typename T>\nint f(T x)",
                     "A::A(int x) : x_(x), y_{x}", "auto operator=(const A&) -> A&"):
            self.fires({"src/base/a.h": header("namespace dcr {\nclass A final : public B {\n"
                                               " public:\n" + function(80, head) + "};\n}\n")},
                       "[function-lines]")
        # What is not a function, and blocks inside of one.
        self.clean({"src/base/a.h": header(
            "namespace dcr {\nnamespace {\nclass A {\n" + function(69, "int f()") * 3 + "};\n"
            "enum class E {\n" + "  kA,\n" * 100 + "};\n"
            "const int kTable[] = {\n" + "  1,\n" * 100 + "};\n}\n}\n")})
        inner = ("  for (int i = 0; i < 3; ++i) {\n    if (x) {\n"
                 "      g([] { return 1; });\n    }\n  }\n")
        self.fires({"src/base/a.h": header("void f() {\n" + inner * 14 + "}\n")}, "72 lines")
        # Braces in comments, literals and macros do not count.
        self.clean({"src/base/a.h": header(
            "#define M(x) \\\n  if (x) { \\\n    f(\n"
            "void f() {\n  // {\n  g(\"{\", '{', R\"({)\");\n}\n" + function(70))})

    def test_words(self):
        for word in ("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK"):
            self.fires({"docs/a.md": f"one\n{word}: two\n"}, "docs/a.md:2: [words]")
        self.clean({"docs/a.md": "HACKING, XXXXXX, todo\n"})

    def test_machine_paths(self):
        for place in ("/ro" + "ot/x", "/ho" + "me/me", "/wo" + "rk/x"):
            self.fires({"tools/a.sh": f"cd {place}\n"}, "[machine-path]")
        self.clean({"tools/a.sh": "cd docs/wo" + "rk/x ~/ho" + "me/y\n"})

    def test_tested(self):
        self.fires({"src/base/a.cc": "\n"}, "src/base/a.cc:1: [tested] src/base/a_test.cc")
        self.clean({"src/base/a.cc": "\n", "src/base/a_test.cc": "\n"})
        test, _ = tidy.TESTED_BY["src/cli/json.cc"]
        self.clean({"src/cli/json.cc": "\n", test: "\n"})
        self.fires({"src/cli/json.cc": "\n"}, "[tested]", test)
        both = findings({"src/cli/json.cc": "\n", test: "\n", "src/cli/json_test.cc": "\n"})
        self.assertIn("drop it from TESTED_BY", both[0])
        gone = findings({"tools/tidy.py": "\n"})
        self.assertEqual(len(gone), len(tidy.TESTED_BY))
        self.assertIn("which is gone", gone[0])

    def test_links(self):
        self.fires({"README.md": "[a](docs/none.md)\n"}, "README.md:1: [links] docs/none.md")
        self.fires({"README.md": "[a](docs/b.md#none)\n", "docs/b.md": "# Some `code`, here\n"},
                   "[links]", "no such heading")
        self.clean({"README.md": "[a](docs/b.md#some-code-here) [b](#one) "
                                 "[c](https://x/y)\n# One\n",
                    "docs/b.md": "# Some `code`, here\n[up](../README.md)\n"})

    def test_citations(self):
        docs = {"docs/b.md": "# B\n## One `thing`, and another\n"}
        for cited in ("docs/none.md", 'docs/b.md "Other"', 'docs/b.md "One\n// other thing"'):
            self.fires({"src/base/a.h": header(f"int x();\n// See {cited}.\n"), **docs},
                       "src/base/a.h:3: [cites]")
        self.clean({"src/base/a.h": header('// (docs/b.md "One thing,\n//   and another"; "Two")\n'
                                           "// docs/b.md, or docs/b.md.\n"), **docs})

    def test_exit_codes(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(tidy.main(["tidy", root]), 0)
            os.makedirs(os.path.join(root, "src/base"))
            with open(os.path.join(root, "src/base/a.cc"), "w", encoding="utf-8") as file:
                file.write("\n")
            self.assertEqual(tidy.main(["tidy", root]), 1)


if __name__ == "__main__":
    unittest.main()
