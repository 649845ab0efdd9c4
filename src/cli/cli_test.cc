// The commands over a stand-in for the library: what they ask of it, what they make of its answers,
// and every exit code. tests/cli_test.py runs the program itself on real files.
#include "cli/cli.h"

#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/run_commands.h"
#include "cli/test_run.h"
#include "dcr/delta.h"
#include "simd/kernels.h"

namespace dcr {
namespace {

// What the stand-in was asked, and what it answers.
struct Library {
  std::string call;  // "diff old new out"
  DeltaOptions options;
  VerifyOptions verify_options;
  std::optional<Status> failure;
  std::optional<Status> kernels_failure;
  std::function<void()> during;  // runs inside the call
  DiffResult diff;
  ApplyResult apply;
  VerifyResult verify;
  InspectResult inspect;

  template <typename T>
  Result<T> answer(std::string words, const DeltaOptions& given, const T& value) {
    call = std::move(words);
    options = given;
    if (options.progress) options.progress({"work", 4'000'000, 4'000'000});
    if (during) during();
    if (failure) return *failure;
    return value;
  }
};
Library library;

std::string join(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += word + " ";
  return all;
}

class CliTest : public testing::Test {
 protected:
  void SetUp() override { library = {}; }
};

}  // namespace

Result<DiffResult> diff(const CheckpointSource& before, const CheckpointSource& after,
                        const std::string& output, const DeltaOptions& options) {
  return library.answer("diff " + before.path + " " + after.path + " " + output, options,
                        library.diff);
}

Result<ApplyResult> apply(const std::vector<std::string>& deltas, const std::string& base,
                          const std::string& output, const DeltaOptions& options) {
  return library.answer("apply " + join(deltas) + "to " + base + " as " + output, options,
                        library.apply);
}

Result<ApplyResult> apply_in_place(const std::vector<std::string>& deltas, const std::string& base,
                                   const DeltaOptions& options) {
  return library.answer("apply " + join(deltas) + "into " + base, options, library.apply);
}

Result<VerifyResult> verify(const CheckpointSource& a, const CheckpointSource& b,
                            const VerifyOptions& what, const DeltaOptions& options) {
  library.verify_options = what;
  return library.answer("verify " + a.path + " " + b.path, options, library.verify);
}

Result<InspectResult> inspect(const std::string& delta, const DeltaOptions& options) {
  return library.answer("inspect " + delta, options, library.inspect);
}

bool is_run_command(Command command) { return command >= Command::kLocal; }

Result<Outcome> run_cluster_command(const CommandLine& line, const CancelToken& /*cancel*/,
                                    const Say& /*say*/, const Show& /*show*/) {
  library.call = std::string(command_name(line.command)) + " of " + line.run.config + " as " +
                 line.run.name + " " + line.run.path;
  for (const std::string& kill : line.run.kills) library.call += " " + kill;
  if (library.failure) return *library.failure;
  return Outcome{};
}

Result<const Kernels*> select_kernels() {
  if (library.kernels_failure) return *library.kernels_failure;
  return static_cast<const Kernels*>(nullptr);
}

namespace {

TEST(ExitCode, OneForEachCode) {
  EXPECT_EQ(exit_code_for(Code::kOk), 0);
  EXPECT_EQ(exit_code_for(Code::kInvalidArgument), 2);
  EXPECT_EQ(exit_code_for(Code::kExists), 2);
  EXPECT_EQ(exit_code_for(Code::kCorrupt), 3);
  EXPECT_EQ(exit_code_for(Code::kTooLarge), 3);
  EXPECT_EQ(exit_code_for(Code::kUnsupported), 3);
  EXPECT_EQ(exit_code_for(Code::kMismatch), 3);
  EXPECT_EQ(exit_code_for(Code::kNotFound), 3);
  EXPECT_EQ(exit_code_for(Code::kIo), 4);
  EXPECT_EQ(exit_code_for(Code::kCancelled), 4);
  EXPECT_EQ(exit_code_for(Code::kInternal), 4);
  EXPECT_EQ(exit_code_for(Code::kUnavailable), 4);
  EXPECT_EQ(exit_code_for(Code::kConflict), 5);
  EXPECT_EQ(exit_code_for(Code::kLostLeadership), 5);
  EXPECT_EQ(exit_code_for(Code::kUnknownOutcome), 5);
}

TEST_F(CliTest, CommandsOfClusters) {
  EXPECT_EQ(run({"owner", "--config", "run.toml", "--name", "owner-0"}).exit_code, 0);
  EXPECT_EQ(library.call, "owner of run.toml as owner-0 ");
  EXPECT_EQ(run({"refit", "--config", "run.toml", "new"}).exit_code, 0);
  EXPECT_EQ(library.call, "refit of run.toml as operator new");
  EXPECT_EQ(run({"refit", "--config", "run.toml", "old", "new"}).exit_code, 2);
  EXPECT_EQ(run({"status", "--config", "run.toml", "--name", "observer"}).exit_code, 0);
  EXPECT_EQ(library.call, "status of run.toml as observer ");
  EXPECT_EQ(run({"local", "--from", "a", "--to", "b", "--to", "c", "--kill", "receiver@apply:2",
                 "--kill", "pause:owner@send,9"})
                .exit_code,
            0);
  EXPECT_EQ(library.call, "local of  as operator  receiver@apply:2 pause:owner@send,9");
  EXPECT_EQ(run({"owner", "--config", "run.toml"}).exit_code, 2);
  EXPECT_EQ(run({"local", "--from", "a", "--to", "b", "--mode", "both"}).exit_code, 2);
  library.failure = Status(Code::kConflict, "an attempt is active");
  const Ran failed = run({"restore", "--config", "run.toml"});
  EXPECT_EQ(failed.exit_code, 5);
  EXPECT_EQ(failed.err, "dcr restore: an attempt is active\n");
}

TEST_F(CliTest, PassesWhatWasAskedFor) {
  EXPECT_EQ(run({"diff", "a", "b", "-o", "c"}).exit_code, 0);
  EXPECT_EQ(library.call, "diff a b c");
  EXPECT_EQ(library.options.threads, 0U);
  EXPECT_EQ(library.options.memory_bytes_max, std::uint64_t{1} << 30);
  EXPECT_FALSE(library.options.force);
  EXPECT_NE(library.options.cancel, nullptr);

  EXPECT_EQ(
      run({"diff", "-o", "c", "--force", "--threads", "3", "--memory=512M", "a", "b"}).exit_code,
      0);
  EXPECT_EQ(library.call, "diff a b c");
  EXPECT_EQ(library.options.threads, 3U);
  EXPECT_EQ(library.options.memory_bytes_max, std::uint64_t{512} << 20);
  EXPECT_TRUE(library.options.force);

  EXPECT_EQ(run({"apply", "d1", "d2", "base", "-o", "out"}).exit_code, 0);
  EXPECT_EQ(library.call, "apply d1 d2 to base as out");
  EXPECT_EQ(run({"apply", "-o", "out", "d1", "base"}).exit_code, 0);
  EXPECT_EQ(library.call, "apply d1 to base as out");
  EXPECT_EQ(run({"apply", "--in-place", "d1", "[a,b]"}).exit_code, 0);
  EXPECT_EQ(library.call, "apply d1 into ./[a,b]");

  EXPECT_EQ(run({"verify", "a", "b"}).exit_code, 0);
  EXPECT_EQ(library.call, "verify a b");
  EXPECT_FALSE(library.verify_options.files);
  EXPECT_EQ(run({"verify", "--files", "--", "-a", "-b"}).exit_code, 0);
  EXPECT_EQ(library.call, "verify -a -b");
  EXPECT_TRUE(library.verify_options.files);

  EXPECT_EQ(run({"inspect", "d"}).exit_code, 0);
  EXPECT_EQ(library.call, "inspect d");
}

TEST_F(CliTest, UsageErrorsExitWithTwoAndCallNothing) {
  const std::vector<std::pair<std::vector<const char*>, std::string>> cases = {
      {{}, "A subcommand is required"},
      {{"frobnicate"}, "frobnicate"},
      {{"diff", "a", "b"}, "--output"},
      {{"diff", "a", "b", "-o", ""}, "-o FILE"},
      {{"diff", "a", "-o", "c"}, "NEW"},
      {{"diff", "a", "b", "x", "-o", "c"}, "x"},
      {{"diff", "a", "b", "-o", "c", "--bogus"}, "--bogus"},
      {{"diff", "a", "b", "-o", "c", "-o", "d"}, "--output"},
      {{"diff", "a", "b", "-o", "c", "--threads", "many"}, "--threads"},
      {{"diff", "a", "b", "-o", "c", "--threads", "-1"}, "--threads"},
      {{"diff", "a", "b", "-o", "c", "--threads", "1025"}, "1025"},
      {{"diff", "a", "b", "-o", "c", "--memory", "lots"}, "--memory: \"lots\" is not a size"},
      {{"diff", "a", "b", "-o", "c", "--memory", ""}, "--memory"},
      {{"diff", "a", "b", "-o", "c", "--memory", "255M"}, "at least 256M"},
      {{"diff", "a", "b", "-o", "c", "--in-place"}, "--in-place"},
      {{"apply", "d"}, "at least one delta file"},
      {{"apply"}, "at least one delta file"},
      {{"apply", "d", "a"}, "--in-place"},
      {{"apply", "d", "a", "--in-place", "-o", "x"}, "excludes"},
      {{"verify", "a"}, "B"},
      {{"verify", "a", "b", "--force"}, "--force"},
      {{"inspect"}, "DELTA"},
      {{"inspect", "a", "b"}, "b"},
  };
  for (const auto& [arguments, words] : cases) {
    library.call.clear();
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.exit_code, 2) << words;
    EXPECT_EQ(ran.out, "") << words;
    EXPECT_TRUE(holds(ran.err, words)) << ran.err;
    EXPECT_TRUE(holds(ran.err, "--help")) << ran.err;
    EXPECT_EQ(library.call, "") << words;
  }
}

TEST_F(CliTest, UsageErrorsAreJsonWhenAskedFor) {
  const Ran ran = run({"diff", "a", "b", "--json"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.json()["error"]["code"], "invalid_argument");
  EXPECT_TRUE(holds(ran.json()["error"]["message"], "--output"));
  EXPECT_EQ(run({"diff", "a", "--", "--json"}).out, "");  // a path
}

TEST_F(CliTest, VersionAndHelp) {
  const Ran version = run({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_TRUE(version.out.starts_with("dcr ")) << version.out;
  EXPECT_TRUE(version.out.ends_with(" (delta format version 0)\n")) << version.out;
  const Ran help = run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* word : {"diff", "apply", "verify", "inspect", "Exit codes: 0 done"}) {
    EXPECT_TRUE(holds(help.out, word)) << word;
  }
  const Ran apply_help = run({"apply", "--help"});
  EXPECT_EQ(apply_help.exit_code, 0);
  EXPECT_TRUE(holds(apply_help.out, "--in-place")) << apply_help.out;
}

TEST_F(CliTest, AForcedInstructionSetThatIsNotThereIsAUsageError) {
  library.kernels_failure = Status(Code::kUnsupported, "DCR_FORCE_ISA names AVX9");
  const Ran ran = run({"inspect", "d"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_TRUE(holds(ran.err, "AVX9"));
  EXPECT_EQ(library.call, "");
  EXPECT_EQ(run({"--version"}).exit_code, 0);
}

TEST_F(CliTest, ErrorsOfTheLibraryKeepCodeMessageAndTensor) {
  library.failure = Status(Code::kMismatch, "w differs from the base", "w");
  Ran ran = run({"apply", "d", "a", "-o", "x"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_EQ(ran.out, "");
  EXPECT_TRUE(holds(ran.err, "dcr apply: w differs from the base\n")) << ran.err;

  ran = run({"apply", "d", "a", "-o", "x", "--json"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.out,
            "{\"error\":{\"code\":\"mismatch\",\"message\":\"w differs from the base\","
            "\"tensor\":\"w\"}}\n");

  library.failure = Status(Code::kIo, "disk full", "layer\n1");
  ran = run({"apply", "d", "a", "-o", "x"});
  EXPECT_EQ(ran.exit_code, 4);
  EXPECT_TRUE(holds(ran.err, "dcr apply: disk full (tensor layer\\x0a1)\n")) << ran.err;

  library.failure = Status(Code::kIo, "disk full");
  EXPECT_FALSE(run({"inspect", "d", "--json"}).json()["error"].contains("tensor"));
}

TEST_F(CliTest, ExceptionsBecomeErrors) {
  library.during = [] { throw std::bad_alloc(); };
  Ran ran = run({"inspect", "d"});
  EXPECT_EQ(ran.exit_code, 4);
  EXPECT_TRUE(holds(ran.err, "out of memory")) << ran.err;
  library.during = [] { throw std::runtime_error("no more threads"); };
  ran = run({"inspect", "d", "--json"});
  EXPECT_EQ(ran.exit_code, 4);
  EXPECT_EQ(ran.json()["error"]["code"], "internal");
  EXPECT_EQ(ran.json()["error"]["message"], "no more threads");
}

DiffResult some_diff() {
  DiffResult result;
  result.tensors = 103;
  result.elements = 20'000'000;
  result.changed = 160'000;
  result.delta_bytes = 182'000;
  result.payload_bytes = 170'000;
  result.encodings = {{"add", 100}, {"overwrite", 3}};
  return result;
}

TEST_F(CliTest, DiffEndsWithOneLine) {
  library.diff = some_diff();
  Ran ran = run({"diff", "a", "b", "-o", "step.dcr"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(without_time(ran.out),
            "step.dcr: 182 kB, 0.800 % of 20.0 M elements in 103 tensors changed, 9.1 bits per "
            "change");
  EXPECT_TRUE(ran.out.ends_with("/s)\n")) << ran.out;
  EXPECT_TRUE(ran.err.starts_with("work: 4.00 MB of 4.00 MB (100 %)")) << ran.err;

  library.diff.changed = 0;
  library.diff.added = {"x"};
  library.diff.removed = {"y", "z"};
  library.diff.replaced = {"u"};
  library.diff.left_out = {{"model\x1b.pt", "a pickle"}};
  ran = run({"diff", "a", "b", "-o", "step.dcr"});
  EXPECT_EQ(without_time(ran.out),
            "step.dcr: 182 kB, no change in 20.0 M elements of 103 tensors, 1 tensor added, 2 "
            "tensors removed, 1 tensor replaced");
  EXPECT_TRUE(holds(ran.err, "dcr diff: warning: left out model\\x1b.pt: a pickle\n")) << ran.err;
}

TEST_F(CliTest, DiffJson) {
  library.diff = some_diff();
  library.diff.added = {"x\xFF"};
  library.diff.carried_files = {"config.json"};
  library.diff.left_out = {{"model.pt", "a pickle"}};
  const Ran ran = run({"diff", "a", "b", "-o", "step.dcr", "--json"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.err, "");  // no progress, and the warning is in the object
  EXPECT_EQ(ran.out.find('\n'), ran.out.size() - 1);
  auto json = ran.json();
  EXPECT_GE(json["seconds"].get<double>(), 0);
  EXPECT_GT(json["peak_rss_bytes"].get<std::uint64_t>(), 100'000U);
  json.erase("seconds");
  json.erase("peak_rss_bytes");
  EXPECT_EQ(json, nlohmann::json::parse(R"({
    "tensors": 103, "elements": 20000000, "changed": 160000, "change_rate": 0.008,
    "delta_bytes": 182000, "payload_bytes": 170000, "bits_per_change": 9.1,
    "encodings": {"add": 100, "overwrite": 3}, "added": ["x\ufffd"], "removed": [],
    "replaced": [], "carried_files": ["config.json"],
    "left_out": [{"name": "model.pt", "reason": "a pickle"}]})"));
}

TEST_F(CliTest, DiffJsonOfNoChange) {
  const auto json = run({"diff", "a", "b", "-o", "c", "--json"}).json();
  EXPECT_TRUE(json["bits_per_change"].is_null());
  EXPECT_EQ(json["change_rate"], 0.0);
  EXPECT_EQ(json["encodings"], nlohmann::json::object());
}

TEST_F(CliTest, JsonShowsProgressOnATerminalOnly) {
  EXPECT_EQ(run({"diff", "a", "b", "-o", "c", "--json"}).err, "");
  EXPECT_TRUE(run({"diff", "a", "b", "-o", "c", "--json"}, true).err.starts_with("\rwork: "));
}

TEST_F(CliTest, Apply) {
  library.apply.tensors = 103;
  library.apply.changed = 20'000;
  library.apply.bytes_written = 45'000'000;
  library.apply.files = {"config.json", "model.safetensors"};
  Ran ran = run({"apply", "d1", "d2", "a", "-o", "out"});
  EXPECT_EQ(without_time(ran.out),
            "out: 2 deltas applied, 20.0 k elements in 103 tensors changed, 45.0 MB written");
  auto json = run({"apply", "d1", "d2", "a", "-o", "out", "--json"}).json();
  json.erase("seconds");
  json.erase("peak_rss_bytes");
  EXPECT_EQ(json, nlohmann::json::parse(R"({"deltas": 2, "in_place": false, "tensors": 103,
    "changed": 20000, "bytes_written": 45000000, "already_target": false,
    "replayed_journal": false, "files": ["config.json", "model.safetensors"]})"));

  library.apply.replayed_journal = true;
  ran = run({"apply", "d1", "a", "--in-place"});
  EXPECT_TRUE(ran.out.starts_with("a: interrupted run completed, 1 delta applied, ")) << ran.out;
  library.apply.replayed_journal = false;
  library.apply.already_target = true;
  ran = run({"apply", "d1", "a", "--in-place"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(without_time(ran.out), "a: already the target, 103 tensors checked");
  EXPECT_EQ(run({"apply", "d1", "a", "--in-place", "--json"}).json()["already_target"], true);
}

TEST_F(CliTest, VerifySaysWhatItCompared) {
  library.verify.tensors = 2;
  library.verify.elements = 12'000'000;
  library.verify.bytes = 24'000'000;
  library.verify.files = 6;
  Ran ran = run({"verify", "a", "b"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(without_time(ran.out), "equal; 2 tensors, 12.0 M elements, 24.0 MB compared");
  ran = run({"verify", "a", "b", "--files"});
  EXPECT_EQ(without_time(ran.out), "equal; 2 tensors, 12.0 M elements, 24.0 MB, 6 files compared");

  library.verify.differing = 101;
  library.verify.differences = {{"bits", "w", "3 of 8 elements"}};
  ran = run({"verify", "a", "b"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(without_time(ran.out),
            "bits w: 3 of 8 elements\nand 100 more\ndifferent: 101 differences; 2 tensors, 12.0 M "
            "elements, 24.0 MB compared");
  ran = run({"verify", "a", "b", "--json"});
  EXPECT_EQ(ran.exit_code, 1);
  auto json = ran.json();
  json.erase("seconds");
  json.erase("peak_rss_bytes");
  EXPECT_EQ(json, nlohmann::json::parse(R"({"equal": false, "tensors": 2, "elements": 12000000,
    "bytes": 24000000, "files": 6, "differing": 101,
    "differences": [{"kind": "bits", "name": "w", "detail": "3 of 8 elements"}]})"));
}

InspectResult some_inspection() {
  InspectResult result;
  result.delta_bytes = 2000;
  result.payloads = 1;
  result.items = 2;
  result.tensors = 3;
  result.elements = 4000;
  result.changed = 400;
  result.base_identity = "00ff";
  result.target_identity = "11ee";
  result.encodings = {{"add", 2}};
  result.streams = {{"items", 0, 100, 80}, {"values", 2, 4000, 1000}};
  result.groups = {{"small", 1, 1000, 10, 5}, {"model.*.w", 2, 3000, 390, 95}};
  result.added = {"new.bias"};
  result.files = {{"config.json", 500, 0, "base"}, {"model.safetensors", 120, 60, "carried"}};
  result.left_out = {{"model.pt", "a pickle"}};
  return result;
}

TEST_F(CliTest, InspectShowsSections) {
  library.inspect = some_inspection();
  const Ran ran = run({"inspect", "d.dcr"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out.substr(0, ran.out.rfind(" in ")),
            R"(Delta
  format version     0
  size               2.00 kB in 1 payload, 2 items
  base               00ff
  target             11ee
  tensors in both    3 tensors, 4000 elements, 400 changed (10.0 %)
  items by encoding  add 2

Streams of the payloads
  stream  width        raw    stored   share
  items       -  100 bytes  80 bytes  7.41 %
  values      2    4.00 kB   1.00 kB  92.6 %

Tensor groups (raw: bytes in the streams before compression)
  group      tensors  elements  changed    rate       raw   share
  model.*.w        2      3000      390  13.0 %  95 bytes  95.0 %
  small            1      1000       10  1.00 %   5 bytes  5.00 %

Tensors added, carried whole
  new.bias

Other files and headers (from: "base" equals OLD's, "carried" is in the delta)
  file                   bytes    stored  from
  config.json        500 bytes   0 bytes  base
  model.safetensors  120 bytes  60 bytes  carried

Left out
  model.pt  a pickle

d.dcr: 2.00 kB, 10.0 % of 4000 elements in 3 tensors changed, )"
            "40.0 bits per change, 1 tensor added, checked");
}

TEST_F(CliTest, InspectJson) {
  library.inspect = some_inspection();
  auto json = run({"inspect", "d.dcr", "--json"}).json();
  json.erase("seconds");
  json.erase("peak_rss_bytes");
  EXPECT_EQ(json, nlohmann::json::parse(R"({"format_version": 0, "delta_bytes": 2000,
    "payloads": 1, "items": 2, "tensors": 3, "elements": 4000, "changed": 400, "change_rate": 0.1,
    "bits_per_change": 40.0, "base_identity": "00ff", "target_identity": "11ee",
    "encodings": {"add": 2},
    "streams": [{"kind": "items", "width": 0, "raw_bytes": 100, "stored_bytes": 80},
                {"kind": "values", "width": 2, "raw_bytes": 4000, "stored_bytes": 1000}],
    "groups": [{"name": "small", "tensors": 1, "elements": 1000, "changed": 10,
                "change_rate": 0.01, "raw_bytes": 5},
               {"name": "model.*.w", "tensors": 2, "elements": 3000, "changed": 390,
                "change_rate": 0.13, "raw_bytes": 95}],
    "added": ["new.bias"], "removed": [], "replaced": [],
    "files": [{"name": "config.json", "bytes": 500, "stored_bytes": 0, "source": "base"},
              {"name": "model.safetensors", "bytes": 120, "stored_bytes": 60,
               "source": "carried"}],
    "left_out": [{"name": "model.pt", "reason": "a pickle"}]})"));
}

TEST_F(CliTest, AResultThatCannotBeWrittenIsAnError) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  MemoryStream err;
  const CancelToken cancel;
  const char* arguments[] = {"dcr", "inspect", "d"};
  EXPECT_EQ(run_cli(3, arguments, {full, err.file(), false}, cancel), 4);
  EXPECT_TRUE(holds(err.text(), "cannot write the result to standard output: No space left"))
      << err.text();
  static_cast<void>(std::fclose(full));
}

}  // namespace
}  // namespace dcr
