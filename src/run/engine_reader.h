// What an engine does with its weights while its gate is open: reads all of them, again and again,
// and compares what it reads with the version whose label they carry. It stands for requests: one
// reading is one request, which a closing gate drains.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "run/run_model.h"
#include "run/serving_model.h"
#include "runtime/threads.h"

namespace dcr {

struct ReaderCounts {
  std::uint64_t reads = 0;  // of all weights, whole, that were compared
  std::uint64_t different =
      0;  // of these, the ones that were not the label's version: 0, or a fault
};

class EngineReader {
 public:
  // Called at once, by the thread that reads, for the first reading of each label that is not the
  // label's version.
  using Different = std::function<void(const std::string& label)>;

  // `ranks` are the engine's, and must outlive this, as must `model`. Without `requests` nothing is
  // read but what compare() is asked for.
  EngineReader(const RunModel& model, std::vector<ServingModel*> ranks, bool requests,
               Different different);
  ~EngineReader();

  // Requests run from now on, of the version with this label: the path of a checkpoint. Where it is
  // none that can be loaded there is nothing to compare requests with, and none is counted.
  void open(const std::string& label);
  // Returns when none runs any more.
  void close();

  // Compares every byte of every rank with a dense load. Runs between two requests. Error
  // kUnavailable while the gate is closed.
  Result<StorageComparison> compare(const std::string& checkpoint);

  ReaderCounts counts();

 private:
  struct Version {
    bool known = false;
    bool told = false;            // that a reading differed
    std::vector<Digest> digests;  // by rank
  };

  void read_on();
  Result<Version> dense_version(const std::string& checkpoint);
  void read_once();

  const RunModel& model_;
  const std::vector<ServingModel*> ranks_;
  const Different different_;
  std::mutex reading_;  // held by a request, and by who lets none run
  std::mutex mutex_;
  // Guarded by mutex_.
  bool open_ = false;
  std::string label_;
  ReaderCounts counts_;
  // Of the reading thread only: the last label's version.
  std::string version_label_;
  Version version_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Executor> thread_;  // none without requests
};

}  // namespace dcr
