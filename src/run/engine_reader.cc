#include "run/engine_reader.h"

#include <utility>

#include "runtime/event_queue.h"

namespace dcr {
namespace {

constexpr std::uint64_t kPauseMs = 5;  // between two requests, and while there is none

}  // namespace

EngineReader::EngineReader(const RunModel& model, std::vector<ServingModel*> ranks, bool requests,
                           Different different)
    : model_(model), ranks_(std::move(ranks)), different_(std::move(different)) {
  if (!requests) return;
  thread_ = make_executor(2);
  thread_->submit([this] { read_on(); });
}

EngineReader::~EngineReader() {
  stopping_ = true;
  thread_.reset();
}

void EngineReader::open(const std::string& label) {
  const std::lock_guard<std::mutex> lock(mutex_);
  label_ = label;
  open_ = true;
}

void EngineReader::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
  }
  // Whoever reads has begun before; once.
  const std::lock_guard<std::mutex> drained(reading_);
}

void EngineReader::read_on() {
  EventQueue<bool> nothing;
  while (!stopping_) {
    read_once();
    nothing.pop(kPauseMs);
  }
}

void EngineReader::read_once() {
  std::string label;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!open_) return;
    label = label_;
  }
  if (label != version_label_) {
    auto version = dense_version(label);
    version_ = version.ok() ? std::move(version).value() : Version();
    version_label_ = label;
  }
  const std::lock_guard<std::mutex> reading(reading_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!open_ || label_ != label) return;
  }
  if (!version_.known) return;  // nothing to compare it with
  std::size_t rank = 0;
  while (rank < ranks_.size() && storage_digest(*ranks_[rank]) == version_.digests[rank]) {
    ++rank;
  }
  const bool different = rank < ranks_.size();
  if (different && !std::exchange(version_.told, true)) different_(label);
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counts_.reads;
  if (different) ++counts_.different;
}

Result<EngineReader::Version> EngineReader::dense_version(const std::string& path) {
  DCR_ASSIGN(const Checkpoint checkpoint, open_candidate(model_, path));
  Version version;
  version.known = true;
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    DCR_ASSIGN(const std::unique_ptr<ServingModel> dense, ServingModel::make(model_, rank));
    DCR_TRY(dense->load(model_, checkpoint));
    version.digests.push_back(storage_digest(*dense));
  }
  return version;
}

Result<StorageComparison> EngineReader::compare(const std::string& path) {
  DCR_ASSIGN(const Checkpoint checkpoint, open_candidate(model_, path));
  StorageComparison all;
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    DCR_ASSIGN(const std::unique_ptr<ServingModel> dense, ServingModel::make(model_, rank));
    DCR_TRY(dense->load(model_, checkpoint));
    const std::lock_guard<std::mutex> reading(reading_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!open_) return Status(Code::kUnavailable, "the gate is closed");
    }
    const StorageComparison one = compare_storages(*ranks_[rank], *dense);
    all.bytes += one.bytes;
    all.differing += one.differing;
  }
  return all;
}

ReaderCounts EngineReader::counts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

}  // namespace dcr
