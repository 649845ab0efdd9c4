// The tensors that a chain of deltas makes of a base checkpoint, piece by piece: what apply is over
// files and over memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "codec/payload.h"
#include "dcr/status.h"
#include "delta/delta_file.h"
#include "delta/work.h"
#include "tensor/checkpoint.h"

namespace dcr {

// The chain: deltas, each one's base being the one before's target, and where their items are.
struct DeltaChain {
  std::vector<DeltaReader> deltas;
  std::vector<std::vector<ItemPlace>> places;  // one list per delta

  // Opens all deltas and checks that they follow each other. Errors: kInvalidArgument for none;
  // those of DeltaReader::open and check_chain.
  static Result<DeltaChain> open(FileSystem& files, const std::vector<std::string>& paths);

  // Reads and validates every payload. Errors: kTooLarge when the deltas together cannot be decoded
  // within the memory bound; kCorrupt; kIo; kCancelled.
  Status validate(const Work& work);
};

// The payloads of one delta, each decoded once as long as it is asked for in about ascending order.
// Thread-safe.
class PayloadCache {
 public:
  explicit PayloadCache(const DeltaReader* delta) : delta_(delta) {}

  // The payload lives as long as anyone holds it; the cache holds the one it read last.
  Result<std::shared_ptr<const Payload>> get(std::uint32_t index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (current_ != nullptr && current_index_ == index) return current_;
    if (std::shared_ptr<const Payload> before = previous_.lock();
        before != nullptr && previous_index_ == index) {
      return before;
    }
    previous_ = current_;
    previous_index_ = current_index_;
    current_.reset();
    DCR_ASSIGN(Payload payload, delta_->read_payload(index));
    current_ = std::make_shared<const Payload>(std::move(payload));
    current_index_ = index;
    return current_;
  }

 private:
  const DeltaReader* delta_;
  std::mutex mutex_;
  std::shared_ptr<const Payload> current_;  // guarded by mutex_, as the rest
  std::weak_ptr<const Payload> previous_;   // a piece that began late may still need it
  std::uint32_t current_index_ = 0, previous_index_ = 0;
};

// Buffers of one piece each, used again: fresh memory for every piece costs about as much as a
// digest of it. Thread-safe.
class BufferPool {
 public:
  Bytes take(std::size_t size) {
    Bytes bytes;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        bytes = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    bytes.resize(size);
    return bytes;
  }
  void give_back(Bytes&& bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(bytes));
  }

 private:
  std::mutex mutex_;
  std::vector<Bytes> idle_;
};

// Takes bytes of a target's tensor, by its index in the last delta's table. Called by several
// threads at a time, for different bytes.
using TensorWriter =
    std::function<Status(std::uint32_t tensor, std::uint64_t offset, ByteSpan bytes)>;

// REQUIRES: a validated chain; a base that check_table accepts.
class ChainApplier {
 public:
  ChainApplier(const Work& work, const DeltaChain& chain, const Checkpoint& base)
      : work_(work), chain_(chain.deltas), places_(chain.places), base_(base) {
    for (const DeltaReader& delta : chain_) {
      caches_.push_back(std::make_unique<PayloadCache>(&delta));
    }
  }

  // Makes all of the target's tensors and checks the base's bits and those that come out. Errors:
  // kMismatch naming the first tensor that differs from the base; kCorrupt; kIo; kCancelled; the
  // writer's.
  Status run(const TensorWriter& write);

  // Applies the items to the base's own bytes, which `memory` has by the index in the last delta's
  // table (an empty span: passed over). Nothing is checked and nothing cancels it. REQUIRES: run()
  // succeeded, and no delta carries a tensor whole.
  Status write_items(const std::function<MutableByteSpan(std::uint32_t tensor)>& memory);

  std::uint64_t changed() const { return changed_.load(); }

 private:
  // A tensor of the base, of the target, or of both.
  struct Job {
    std::string name;
    std::int64_t base = -1;              // index into Checkpoint::tensors
    const TensorSide* target = nullptr;  // of the last delta
    std::size_t first_delta = 0;         // the first one that is applied
    bool from_base = false;              // else the first delta carries it whole
    std::vector<std::uint32_t> indices;  // in the tables of the deltas from the first one on
  };

  // A piece of a job. A tensor that is copied from the base is read, checked, changed and written
  // in one step; one that a delta carries is written in one and its base side checked in another.
  struct Step {
    std::uint32_t job = 0;
    std::uint64_t offset = 0, bytes = 0;
    bool read_base = false, write = false;
    bool last_of_base = false, last_of_target = false;
  };

  // What a step leaves for the calling thread.
  struct StepDigests {
    std::vector<Digest> base, target;
  };

  Status make_jobs();
  Result<Job> trace(const std::string& name) const;
  void cut(std::uint32_t index);
  Result<StepDigests> make(const Step& step, const TensorWriter& write);
  Status fill(const Step& step, MutableByteSpan bytes, StepDigests* digests);
  Status apply_items(const Step& step, MutableByteSpan bytes);
  Status check(const Step& step, StepDigests&& digests);

  const Work& work_;
  const std::vector<DeltaReader>& chain_;
  const std::vector<std::vector<ItemPlace>>& places_;
  const Checkpoint& base_;
  std::vector<std::unique_ptr<PayloadCache>> caches_;
  BufferPool buffers_;
  std::vector<Job> jobs_;
  std::vector<Step> steps_;
  std::vector<Digest> base_leaves_, target_leaves_;  // of the tensor that is being checked
  std::atomic<std::uint64_t> changed_{0};
};

// How many pieces may be worked on at a time so that applying `chain` stays within
// `memory_bytes_max`; 0: not even one.
std::uint64_t apply_window(const std::vector<DeltaReader>& chain, std::uint64_t memory_bytes_max,
                           unsigned threads);

// `status`, or that the base needs nothing because it is a target of the chain already. That is
// only looked for when the base could be: when the tensor that differs has a target's bits.
Status explain_mismatch(const Work& work, const std::vector<DeltaReader>& chain,
                        const Checkpoint& base, const Status& status);

}  // namespace dcr
