#include "delta/apply.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "base/assert.h"
#include "codec/item_reader.h"
#include "delta/compose.h"
#include "delta/contents.h"
#include "delta/output.h"
#include "source/pipeline.h"
#include "tensor/text.h"

namespace dcr {
namespace {

// A tensor of the base, of the target, or of both.
struct Job {
  std::string name;
  std::int64_t base = -1;              // index into Checkpoint::tensors
  const TensorSide* target = nullptr;  // of the last delta
  std::size_t first_delta = 0;         // the first one that is applied
  bool from_base = false;              // else the first delta carries it whole
  std::vector<std::uint32_t> indices;  // in the tables of the deltas from the first one on
};

// A piece of a job. A tensor that is copied from the base is read, checked, changed and written in
// one step; one that a delta carries is written in one and its base side checked in another.
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

// Brings the target's tensors into the output's files.
class Applier {
 public:
  Applier(const Work& work, const std::vector<DeltaReader>& chain,
          const std::vector<std::vector<ItemPlace>>& places, const Checkpoint& base)
      : work_(work), chain_(chain), places_(places), base_(base) {
    for (const DeltaReader& delta : chain) {
      caches_.push_back(std::make_unique<PayloadCache>(&delta));
    }
  }

  // `files`: one per file of the last footer; null where it is no weights file of the target.
  Status run(const std::vector<File*>& files);

  std::uint64_t changed() const { return changed_.load(); }

 private:
  Status make_jobs();
  Result<Job> trace(const std::string& name) const;
  void cut(std::uint32_t index);
  Result<StepDigests> make(const Step& step, const std::vector<File*>& files);
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

// Where the target's tensor comes from: the last delta that carries it whole, else the base.
Result<Job> Applier::trace(const std::string& name) const {
  Job job;
  job.name = name;
  std::size_t k = chain_.size();
  bool whole = false;
  while (k > 0 && !whole) {
    const std::vector<DeltaTensor>& tensors = chain_[k - 1].footer().tensors;
    const std::int64_t index = find_delta_tensor(tensors, name);
    if (index < 0 || !tensors[static_cast<std::size_t>(index)].target.present) {
      return Status(Code::kMismatch,
                    chain_[k - 1].path() + ": tensor " + quoted_name(name) +
                        " is not in its target, though the next delta needs it",
                    name);
    }
    const DeltaTensor& tensor = tensors[static_cast<std::size_t>(index)];
    if (k == chain_.size()) job.target = &tensor.target;
    job.indices.insert(job.indices.begin(), static_cast<std::uint32_t>(index));
    whole = !tensor.common();
    --k;
  }
  job.first_delta = k;
  job.from_base = !whole;
  return job;
}

void Applier::cut(std::uint32_t index) {
  const Job& job = jobs_[index];
  const auto cut_side = [&](Dtype dtype, std::uint64_t bytes, bool read_base, bool write) {
    const unsigned width = word_bytes(dtype);
    const std::uint64_t piece = piece_words(width) * width;
    std::uint64_t offset = 0;
    do {  // an empty tensor has one empty step, which checks it
      Step step{index, offset, std::min(piece, bytes - offset), read_base, write, false, false};
      offset += step.bytes;
      step.last_of_base = read_base && offset == bytes;
      step.last_of_target = write && offset == bytes;
      steps_.push_back(step);
    } while (offset < bytes);
  };
  const bool one_step = job.target != nullptr && job.from_base;
  if (job.base >= 0 && !one_step) {
    const CheckpointTensor& tensor = base_.tensors[static_cast<std::size_t>(job.base)];
    cut_side(tensor.dtype, tensor.bytes, true, false);
  }
  if (job.target != nullptr) cut_side(job.target->dtype, job.target->bytes, one_step, true);
}

// The union of the base's tensors and the target's, by name.
Status Applier::make_jobs() {
  const std::vector<DeltaTensor>& tensors = chain_.back().footer().tensors;
  std::size_t b = 0, t = 0;
  while (true) {
    while (t < tensors.size() && !tensors[t].target.present) ++t;
    const bool no_base = b == base_.tensors.size(), no_target = t == tensors.size();
    if (no_base && no_target) break;
    const int order = no_base ? 1 : no_target ? -1 : base_.tensors[b].name.compare(tensors[t].name);
    Job job;
    job.name = order < 0 ? base_.tensors[b].name : tensors[t].name;
    if (order >= 0) {
      DCR_ASSIGN(job, trace(tensors[t].name));
      ++t;
    }
    if (order <= 0) job.base = static_cast<std::int64_t>(b++);
    if (job.from_base && job.base < 0) {
      return {Code::kMismatch,
              "tensor " + quoted_name(job.name) + " is missing from " + quoted_name(base_.path),
              job.name};
    }
    jobs_.push_back(std::move(job));
    cut(static_cast<std::uint32_t>(jobs_.size() - 1));
  }
  return {};
}

Status Applier::apply_items(const Step& step, MutableByteSpan bytes) {
  const Job& job = jobs_[step.job];
  const std::uint64_t word = step.offset / word_bytes(job.target->dtype);
  for (std::size_t i = 0; i < job.indices.size(); ++i) {
    const std::size_t delta = job.first_delta + i;
    const std::vector<ItemPlace>& places = places_[delta];
    const auto found =
        std::lower_bound(places.begin(), places.end(), std::pair(job.indices[i], word),
                         [](const ItemPlace& place, const auto& wanted) {
                           return std::pair(place.tensor, place.offset) < wanted;
                         });
    if (found == places.end() || found->tensor != job.indices[i] || found->offset != word) continue;
    DCR_ASSIGN(const std::shared_ptr<const Payload> payload, caches_[delta]->get(found->payload));
    changed_ += apply_item(payload->items()[found->item], bytes);
  }
  return {};
}

Status Applier::fill(const Step& step, MutableByteSpan bytes, StepDigests* digests) {
  const Job& job = jobs_[step.job];
  if (step.read_base) {
    const CheckpointTensor& tensor = base_.tensors[static_cast<std::size_t>(job.base)];
    DCR_TRY(read_tensor(base_, tensor, step.offset, bytes));
    digests->base = digest_leaves(bytes);
  }
  if (step.write) {
    DCR_TRY(apply_items(step, bytes));
    digests->target = digest_leaves(bytes);
  }
  return {};
}

Result<StepDigests> Applier::make(const Step& step, const std::vector<File*>& files) {
  StepDigests digests;
  Bytes bytes = buffers_.take(static_cast<std::size_t>(step.bytes));
  Status status = fill(step, bytes, &digests);
  if (status.ok() && step.write) {
    const TensorSide& target = *jobs_[step.job].target;
    status = files[target.file]->write(target.offset + step.offset, bytes);
  }
  buffers_.give_back(std::move(bytes));
  if (!status.ok()) return status;
  return digests;
}

Status Applier::check(const Step& step, StepDigests&& digests) {
  const Job& job = jobs_[step.job];
  base_leaves_.insert(base_leaves_.end(), digests.base.begin(), digests.base.end());
  target_leaves_.insert(target_leaves_.end(), digests.target.begin(), digests.target.end());
  if (step.last_of_base) {
    const std::vector<DeltaTensor>& tensors = chain_.front().footer().tensors;
    const std::int64_t index = find_delta_tensor(tensors, job.name);
    DCR_ASSERT(index >= 0);  // check_table
    const Digest digest = combine_leaves(std::exchange(base_leaves_, {}));
    if (digest != tensors[static_cast<std::size_t>(index)].base.digest) {
      return {Code::kMismatch,
              quoted_name(base_.path) + " is not the base of " + chain_.front().path() +
                  ": tensor " + quoted_name(job.name) + " has other bits",
              job.name};
    }
  }
  if (step.last_of_target) {
    const Digest digest = combine_leaves(std::exchange(target_leaves_, {}));
    if (digest != job.target->digest) {
      return {Code::kCorrupt,
              chain_.back().path() + ": tensor " + quoted_name(job.name) +
                  " does not come out with the bits that the delta says",
              job.name};
    }
  }
  return {};
}

Status Applier::run(const std::vector<File*>& files) {
  DCR_TRY(make_jobs());
  std::uint64_t bytes_total = 0;
  for (const Step& step : steps_) bytes_total += step.bytes;
  ProgressCounter progress(work_, "apply", bytes_total);
  const std::uint64_t window =
      apply_window(chain_, work_.memory_bytes_max, work_.executor->threads());
  return ordered_map<StepDigests>(
      *work_.executor, steps_.size(), window, work_.cancel,
      [&](std::uint64_t i) { return make(steps_[static_cast<std::size_t>(i)], files); },
      [&](std::uint64_t i, StepDigests&& digests) -> Status {
        const Step& step = steps_[static_cast<std::size_t>(i)];
        progress.add(step.bytes);
        return check(step, std::move(digests));
      });
}

// The two kinds of output behind one face.
class Output {
 public:
  static Result<Output> create(FileSystem& files, const std::string& path, bool directory) {
    Output output;
    if (directory) {
      DCR_ASSIGN(output.directory_, PartialDirectory::create(files, path));
    } else {
      DCR_ASSIGN(output.file_, PartialFile::create(files, path));
    }
    return output;
  }

  Result<File*> add(const DeltaFile& file) {
    if (directory_) return directory_->add(file.name, file.permissions);
    permissions_ = file.permissions;
    return &file_->file();
  }
  Status commit() { return directory_ ? directory_->commit() : file_->commit(permissions_); }
  Status discard(const Status& why) {
    return directory_ ? directory_->discard(why) : file_->discard(why);
  }

 private:
  std::optional<PartialFile> file_;
  std::optional<PartialDirectory> directory_;
  std::uint32_t permissions_ = 0;
};

// Creates the target's files with their contents; `weights` gets those that tensors go into.
Status write_contents(const Work& work, const std::vector<DeltaReader>& chain,
                      const Checkpoint& base, Output* output, std::vector<File*>* weights,
                      ApplyReport* report) {
  const std::vector<DeltaFile>& files = chain.back().footer().files;
  weights->assign(files.size(), nullptr);
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    if (!files[i].in_target) continue;
    if (work.cancel != nullptr && work.cancel->cancelled()) return {Code::kCancelled, "cancelled"};
    DCR_ASSIGN(const Bytes content, target_content(*work.files, chain, base, i));
    DCR_ASSIGN(File * file, output->add(files[i]));
    DCR_TRY(file->write(0, content));
    report->bytes_written += files[i].target_size;
    report->files.push_back(files[i].name);
    if (files[i].role == FileRole::kWeights) (*weights)[i] = file;
  }
  return {};
}

// `status`, or that the base needs nothing because it is a target of the chain already. That is
// only looked for when the base could be: when the tensor that differs has a target's bits.
Status explain_mismatch(const Work& work, const std::vector<DeltaReader>& chain,
                        const Checkpoint& base, const Status& status) {
  if (status.code() != Code::kMismatch) return status;
  const std::int64_t at = find_tensor(base, status.tensor());
  if (at >= 0) {
    const std::size_t which[] = {static_cast<std::size_t>(at)};
    DCR_ASSIGN(const std::vector<Digest> digests, digest_tensors(work, base, which, nullptr));
    const auto is_target = [&](const DeltaReader& delta) {
      const std::vector<DeltaTensor>& tensors = delta.footer().tensors;
      const std::int64_t index = find_delta_tensor(tensors, status.tensor());
      return index >= 0 && tensors[static_cast<std::size_t>(index)].target.digest == digests[0];
    };
    if (std::none_of(chain.begin(), chain.end(), is_target)) return status;
  }
  DCR_ASSIGN(const DeltaReader* target, find_target(work, base, chain));
  if (target == nullptr) return status;
  return {Code::kMismatch, quoted_name(base.path) + " is already at the target of " +
                               target->path() +
                               (target == &chain.back() ? "; there is nothing to apply"
                                                        : "; apply only the deltas after it")};
}

Result<ApplyReport> write_output(const Work& work, const std::vector<DeltaReader>& chain,
                                 const std::vector<std::vector<ItemPlace>>& places,
                                 const Checkpoint& base, Output* output) {
  ApplyReport report;
  std::vector<File*> weights;
  DCR_TRY(write_contents(work, chain, base, output, &weights, &report));
  Applier applier(work, chain, places, base);
  DCR_TRY(applier.run(weights));
  report.changed = applier.changed();
  for (const DeltaTensor& tensor : chain.back().footer().tensors) {
    if (tensor.target.present) ++report.tensors;
  }
  return report;
}

}  // namespace

std::uint64_t apply_window(const std::vector<DeltaReader>& chain, std::uint64_t memory_bytes_max,
                           unsigned threads) {
  // Each delta keeps the payload that it read last, and reads the next one; each piece that is
  // worked on may hold an older one of every delta, and has its own bytes.
  std::uint64_t fixed = 0, piece = kPieceBytesMax;
  for (const DeltaReader& delta : chain) {
    fixed += delta.read_bytes_max();
    piece += delta.payload_bytes_max();
  }
  if (fixed + piece > memory_bytes_max) return 0;
  return std::min<std::uint64_t>((memory_bytes_max - fixed) / piece, std::uint64_t{2} * threads);
}

Result<ApplyReport> apply_chain(const Work& work, const std::vector<std::string>& deltas,
                                const std::string& base_path, const std::string& output_path) {
  if (deltas.empty()) return Status(Code::kInvalidArgument, "no delta to apply");
  std::vector<DeltaReader> chain;
  for (const std::string& path : deltas) {
    DCR_ASSIGN(DeltaReader delta, DeltaReader::open(*work.files, path));
    chain.push_back(std::move(delta));
  }
  DCR_TRY(check_chain(chain));
  DCR_ASSIGN(const Checkpoint base, open_checkpoint(*work.files, base_path));
  std::vector<std::string> inputs = input_paths(base);
  inputs.insert(inputs.end(), deltas.begin(), deltas.end());
  const bool directory = chain.back().footer().directory;
  DCR_TRY(check_output(*work.files, output_path, directory, work.force, inputs));
  if (Status status = check_table(base, chain.front(), false); !status.ok()) {
    return explain_mismatch(work, chain, base, status);
  }
  if (apply_window(chain, work.memory_bytes_max, 1) == 0) {
    return Status(Code::kTooLarge,
                  "the deltas together cannot be decoded within " +
                      std::to_string(work.memory_bytes_max / kMiB) +
                      " MiB; apply them in parts, or raise the memory limit (--memory)");
  }
  std::vector<std::vector<ItemPlace>> places;
  for (const DeltaReader& delta : chain) {
    DCR_ASSIGN(std::vector<ItemPlace> of_delta, delta.validate_all(work));
    places.push_back(std::move(of_delta));
  }
  DCR_ASSIGN(Output output, Output::create(*work.files, output_path, directory));
  Result<ApplyReport> report = write_output(work, chain, places, base, &output);
  if (!report.ok()) {
    return output.discard(explain_mismatch(work, chain, base, report.status()));
  }
  DCR_TRY(output.commit());
  if (!directory) report->files = {base_name(output_path)};
  return report;
}

}  // namespace dcr
