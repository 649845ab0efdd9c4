// A chain of checkpoints and the deltas between them, on a disk in memory, for tests of in-place
// application.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/assert.h"
#include "delta/diff.h"
#include "delta/in_place.h"
#include "runtime/threads.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/test_checkpoint.h"

namespace dcr {

inline constexpr const char* kScenarioPath = "w/ckpt";

struct Scenario {
  std::vector<TestCheckpoint> checkpoints;
  std::vector<std::map<std::string, Bytes>> versions;  // the checkpoints' files, at kScenarioPath
  std::vector<std::string> deltas;                     // from each to the next
  std::unique_ptr<MemoryFileSystem> disk;              // the first version, and the deltas

  // Another disk, with other files at kScenarioPath.
  std::unique_ptr<MemoryFileSystem> with_checkpoint(
      const std::map<std::string, Bytes>& files) const {
    auto made = std::make_unique<MemoryFileSystem>();
    for (const auto& [path, bytes] : files) made->put(path, bytes);
    for (const std::string& delta : deltas) made->put(delta, disk->get(delta));
    return made;
  }
};

inline Work scenario_work(FileSystem& files, Executor& executor) {
  return {&files, &executor, std::uint64_t{256} << 20, false, nullptr, {}};
}

inline Scenario make_scenario(std::vector<TestCheckpoint> checkpoints) {
  Scenario made;
  made.checkpoints = std::move(checkpoints);
  MemoryFileSystem work_disk;
  work_disk.put("d/unused", {});
  const auto executor = make_executor(1);
  for (std::size_t i = 0; i < made.checkpoints.size(); ++i) {
    made.versions.push_back(made.checkpoints[i].files(kScenarioPath));
    for (const auto& [path, bytes] : made.checkpoints[i].files("v" + std::to_string(i))) {
      work_disk.put(path, bytes);
    }
    if (i == 0) continue;
    const std::string delta = "d/step" + std::to_string(i) + ".dcr";
    const Result<DiffReport> diff =
        write_diff(scenario_work(work_disk, *executor), "v" + std::to_string(i - 1),
                   "v" + std::to_string(i), delta);
    if (!diff.ok()) std::fprintf(stderr, "%s\n", diff.status().message().c_str());
    DCR_ASSERT(diff.ok());
    made.deltas.push_back(delta);
  }
  made.disk = std::make_unique<MemoryFileSystem>();
  for (const auto& [path, bytes] : made.versions[0]) made.disk->put(path, bytes);
  for (const std::string& delta : made.deltas) made.disk->put(delta, work_disk.get(delta));
  return made;
}

inline Scenario random_scenario(std::uint64_t seed, std::uint64_t steps) {
  Prng prng(seed);
  std::vector<TestCheckpoint> checkpoints{random_checkpoint(prng)};
  for (std::uint64_t i = 0; i < steps; ++i) {
    checkpoints.push_back(random_successor(prng, checkpoints.back()));
  }
  return make_scenario(std::move(checkpoints));
}

// A single file of three tensors of a few pages: "a", "b", "c".
inline TestCheckpoint plain_checkpoint() {
  Prng prng(42);
  TestCheckpoint made;
  made.directory = false;
  for (const char* name : {"a", "b", "c"}) {
    made.tensors[name] = {Dtype::kBF16, {6000}, random_bytes(prng, 12000), 0};
  }
  return made;
}

// The same with changes in several pages of each tensor.
inline TestCheckpoint changed_checkpoint() {
  TestCheckpoint made = plain_checkpoint();
  for (auto& [name, tensor] : made.tensors) {
    for (const std::size_t at : {0u, 4200u, 4204u, 11998u}) tensor.bytes[at] ^= 1;
  }
  return made;
}

// A directory in which all happens: items in place, files beside, removals, another index.
inline Scenario busy_scenario() {
  TestCheckpoint old_one = plain_checkpoint();
  old_one.directory = true;
  for (auto& [name, tensor] : old_one.tensors) {
    tensor.bytes.resize(5000);
    tensor.shape = {2500};
  }
  old_one.tensors["b"].shard = 1;
  old_one.tensors["c"].shard = 2;
  old_one.others = {{"config.json", "1"}, {"gone.txt", "2"}};
  TestCheckpoint new_one = old_one;
  for (const std::size_t at : {0u, 4200u}) {
    for (auto& [name, tensor] : new_one.tensors) tensor.bytes[at] ^= 1;
  }
  new_one.tensors["d"] = new_one.tensors["c"];
  new_one.others = {{"config.json", "3"}, {"new.txt", "4"}};
  return make_scenario({old_one, new_one});
}

// `batch_bytes` of 1 makes a batch of each item.
inline Result<InPlaceResult> run_in_place(FileSystem& files, const std::vector<std::string>& deltas,
                                          std::uint64_t batch_bytes = 0,
                                          const std::string& path = kScenarioPath,
                                          unsigned threads = 1) {
  const auto executor = make_executor(threads);
  return apply_chain_in_place(scenario_work(files, *executor), deltas, path, batch_bytes);
}

// The files that are not deltas: checkpoint, journal and whatever was left behind.
inline std::map<std::string, Bytes> checkpoint_files(const MemoryFileSystem& disk) {
  std::map<std::string, Bytes> files = disk.all();
  std::erase_if(files, [](const auto& file) { return file.first.starts_with("d/"); });
  return files;
}

// The disk after a run in batches of one item was killed in the middle of writing batch `batch`
// into the checkpoint.
inline std::unique_ptr<MemoryFileSystem> interrupted_in_batch(const Scenario& scenario,
                                                              std::uint64_t batch) {
  // The writes into weights come after as many renames of a journal as there were batches.
  auto trial = scenario.disk->recover(Unsynced::kAll);
  FaultFileSystem recorder(*trial);
  DCR_ASSERT(run_in_place(recorder, scenario.deltas, 1).ok());
  const std::vector<std::string> trace = recorder.trace();
  std::uint64_t journals = 0, operation = 0;
  for (; operation < trace.size(); ++operation) {
    if (trace[operation].starts_with("rename ") && ++journals == batch + 1) break;
  }
  auto disk = scenario.disk->recover(Unsynced::kAll);
  FaultFileSystem files(*disk);
  files.set_fault({.operation = operation + 3, .kind = Fault::Kind::kKill, .half_done = true});
  DCR_ASSERT(!run_in_place(files, scenario.deltas, 1).ok() && files.fired());
  return disk;
}

}  // namespace dcr
