#include "delta/chain_applier.h"

#include <algorithm>

#include "base/assert.h"
#include "codec/item_reader.h"
#include "delta/compose.h"
#include "delta/contents.h"
#include "source/pipeline.h"
#include "tensor/text.h"

namespace dcr {

Result<DeltaChain> DeltaChain::open(FileSystem& files, const std::vector<std::string>& paths) {
  if (paths.empty()) return Status(Code::kInvalidArgument, "no delta to apply");
  DeltaChain chain;
  for (const std::string& path : paths) {
    DCR_ASSIGN(DeltaReader delta, DeltaReader::open(files, path));
    chain.deltas.push_back(std::move(delta));
  }
  DCR_TRY(check_chain(chain.deltas));
  return chain;
}

Status DeltaChain::validate(const Work& work) {
  if (apply_window(deltas, work.memory_bytes_max, 1) == 0) {
    return {Code::kTooLarge, "the deltas together cannot be decoded within " +
                                 std::to_string(work.memory_bytes_max / kMiB) +
                                 " MiB; apply them in parts, or raise the memory limit (--memory)"};
  }
  for (const DeltaReader& delta : deltas) {
    DCR_ASSIGN(std::vector<ItemPlace> of_delta, delta.validate_all(work));
    places.push_back(std::move(of_delta));
  }
  return {};
}

// Where the target's tensor comes from: the last delta that carries it whole, else the base.
Result<ChainApplier::Job> ChainApplier::trace(const std::string& name) const {
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

void ChainApplier::cut(std::uint32_t index) {
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
Status ChainApplier::make_jobs() {
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

Status ChainApplier::apply_items(const Step& step, MutableByteSpan bytes) {
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

Status ChainApplier::fill(const Step& step, MutableByteSpan bytes, StepDigests* digests) {
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

Result<ChainApplier::StepDigests> ChainApplier::make(const Step& step, const TensorWriter& write) {
  StepDigests digests;
  Bytes bytes = buffers_.take(static_cast<std::size_t>(step.bytes));
  Status status = fill(step, bytes, &digests);
  if (status.ok() && step.write) {
    status = write(jobs_[step.job].indices.back(), step.offset, bytes);
  }
  buffers_.give_back(std::move(bytes));
  if (!status.ok()) return status;
  return digests;
}

Status ChainApplier::check(const Step& step, StepDigests&& digests) {
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

Status ChainApplier::run(const TensorWriter& write) {
  DCR_TRY(make_jobs());
  std::uint64_t bytes_total = 0;
  for (const Step& step : steps_) bytes_total += step.bytes;
  ProgressCounter progress(work_, "apply", bytes_total);
  const std::uint64_t window =
      apply_window(chain_, work_.memory_bytes_max, work_.executor->threads());
  return ordered_map<StepDigests>(
      *work_.executor, steps_.size(), window, work_.cancel,
      [&](std::uint64_t i) { return make(steps_[static_cast<std::size_t>(i)], write); },
      [&](std::uint64_t i, StepDigests&& digests) -> Status {
        const Step& step = steps_[static_cast<std::size_t>(i)];
        progress.add(step.bytes);
        return check(step, std::move(digests));
      });
}

Status ChainApplier::write_items(
    const std::function<MutableByteSpan(std::uint32_t tensor)>& memory) {
  const std::uint64_t window =
      apply_window(chain_, work_.memory_bytes_max, work_.executor->threads());
  return ordered_map<bool>(
      *work_.executor, steps_.size(), window, nullptr,
      [&](std::uint64_t i) -> Result<bool> {
        const Step& step = steps_[static_cast<std::size_t>(i)];
        const MutableByteSpan bytes = memory(jobs_[step.job].indices.back());
        if (bytes.empty()) return true;
        DCR_TRY(apply_items(step, bytes.subspan(static_cast<std::size_t>(step.offset),
                                                static_cast<std::size_t>(step.bytes))));
        return true;
      },
      [](std::uint64_t, bool&&) -> Status { return {}; });
}

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

}  // namespace dcr
