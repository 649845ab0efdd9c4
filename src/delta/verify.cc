#include "delta/verify.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "base/cancelled.h"
#include "delta/compose.h"
#include "delta/contents.h"
#include "simd/kernels.h"
#include "tensor/checkpoint.h"
#include "tensor/text.h"

namespace dcr {
namespace {

// What is compared at a time. Two buffers of it are in the cache together.
constexpr std::uint64_t kPartBytes = 512 * kKiB;

// Parts of one task, so that a task is worth its hand-over.
constexpr std::uint64_t kTaskBytes = 8 * kMiB;

struct Task {
  std::size_t a = 0, b = 0;  // tensors
  std::uint64_t offset = 0, bytes = 0;
  bool last = false;  // of its tensor
};

// Of a task, then summed up over a tensor.
struct Count {
  std::uint64_t words = 0;  // that differ
  std::uint64_t first = 0;  // the first of them
};

class Comparer {
 public:
  Comparer(const Work& work, const Checkpoint& a, const Checkpoint& b, const DifferenceSink& found)
      : work_(work), a_(a), b_(b), found_(found) {}

  Result<VerifyReport> run(bool metadata, bool files) {
    match_tensors();
    DCR_TRY(compare_bits());
    if (metadata) compare_metadata();
    if (files) DCR_TRY(compare_files());
    return report_;
  }

 private:
  void differ(DifferenceKind kind, const std::string& name, const std::string& detail) {
    ++report_.differing;
    found_(kind, name, detail);
  }

  void match_tensors();
  void match_pair(std::size_t a, std::size_t b);
  Result<Count> compare_task(const Task& task) const;
  Status compare_bits();
  void report_bits(const Task& task, const Count& count);
  void compare_metadata();
  Status compare_files();
  Status compare_file(const std::string& name, FileRole role);

  const Work& work_;
  const Checkpoint& a_;
  const Checkpoint& b_;
  const DifferenceSink& found_;
  std::vector<Task> tasks_;
  VerifyReport report_;
};

void Comparer::match_pair(std::size_t a, std::size_t b) {
  const CheckpointTensor& x = a_.tensors[a];
  const CheckpointTensor& y = b_.tensors[b];
  if (x.dtype != y.dtype) {
    differ(DifferenceKind::kDtype, x.name,
           std::string(dtype_name(x.dtype)) + " and " + std::string(dtype_name(y.dtype)));
    return;
  }
  if (x.shape != y.shape) {
    differ(DifferenceKind::kShape, x.name, shape_text(x.shape) + " and " + shape_text(y.shape));
    return;
  }
  ++report_.tensors;
  report_.bytes += x.bytes;
  report_.elements += tensor_elements(x.shape).value();
  for (std::uint64_t offset = 0; offset < x.bytes; offset += kTaskBytes) {
    const std::uint64_t bytes = std::min(kTaskBytes, x.bytes - offset);
    tasks_.push_back({a, b, offset, bytes, offset + bytes == x.bytes});
  }
}

void Comparer::match_tensors() {
  std::size_t a = 0, b = 0;
  while (a < a_.tensors.size() || b < b_.tensors.size()) {
    const bool no_a = a == a_.tensors.size(), no_b = b == b_.tensors.size();
    const int order = no_a ? 1 : no_b ? -1 : a_.tensors[a].name.compare(b_.tensors[b].name);
    if (order < 0) {
      differ(DifferenceKind::kMissing, a_.tensors[a++].name, "only in " + quoted_name(a_.path));
    } else if (order > 0) {
      differ(DifferenceKind::kExtra, b_.tensors[b++].name, "only in " + quoted_name(b_.path));
    } else {
      match_pair(a++, b++);
    }
  }
}

// The first word that differs in two parts that do.
std::uint64_t first_difference(const Bytes& x, const Bytes& y, std::size_t bytes, unsigned width) {
  const auto at =
      std::mismatch(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(bytes), y.begin());
  return static_cast<std::uint64_t>(at.first - x.begin()) / width;
}

Result<Count> Comparer::compare_task(const Task& task) const {
  const CheckpointTensor& x = a_.tensors[task.a];
  const CheckpointTensor& y = b_.tensors[task.b];
  const unsigned width = word_bytes(x.dtype);
  const auto size = static_cast<std::size_t>(std::min(kPartBytes, task.bytes));
  Bytes from_a(size), from_b(size);
  Count count;
  for (std::uint64_t at = 0; at < task.bytes; at += size) {
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(size, task.bytes - at));
    const std::uint64_t offset = task.offset + at;
    DCR_TRY(read_tensor(a_, x, offset, MutableByteSpan(from_a).first(bytes)));
    DCR_TRY(read_tensor(b_, y, offset, MutableByteSpan(from_b).first(bytes)));
    if (std::memcmp(from_a.data(), from_b.data(), bytes) == 0) continue;
    if (count.words == 0) {
      count.first = offset / width + first_difference(from_a, from_b, bytes, width);
    }
    ScanBox box;
    box.old_words = from_a.data();
    box.new_words = from_b.data();
    box.row_words = bytes / width;
    count.words += kernels().count_changes(width, box);
  }
  return count;
}

void Comparer::report_bits(const Task& task, const Count& count) {
  const CheckpointTensor& tensor = a_.tensors[task.a];
  // The words of sub-byte dtypes are bytes, which hold more than one element.
  const bool elements = dtype_bits(tensor.dtype) == 8 * word_bytes(tensor.dtype);
  const std::uint64_t words = tensor.bytes / word_bytes(tensor.dtype);
  differ(DifferenceKind::kBits, tensor.name,
         std::to_string(count.words) + " of " + std::to_string(words) +
             (elements ? " elements" : " bytes") + (count.words == 1 ? " differs" : " differ") +
             ", the first at index " + std::to_string(count.first));
}

Status Comparer::compare_bits() {
  ProgressCounter progress(work_, "verify", report_.bytes);
  const std::uint64_t window =
      pieces_in_flight(*work_.executor, work_.memory_bytes_max / 4, 2 * kPartBytes);
  Count sum;
  return ordered_map<Count>(
      *work_.executor, tasks_.size(), window, work_.cancel,
      [this](std::uint64_t i) { return compare_task(tasks_[static_cast<std::size_t>(i)]); },
      [&](std::uint64_t i, Count&& count) -> Status {
        const Task& task = tasks_[static_cast<std::size_t>(i)];
        if (sum.words == 0) sum.first = count.first;
        sum.words += count.words;
        if (task.last && sum.words > 0) report_bits(task, sum);
        if (task.last) sum = Count();
        progress.add(task.bytes);
        return {};
      });
}

// Entries of all files' metadata, each once: sharding decides how often one is written.
std::set<std::pair<std::string, std::string>> metadata_of(const Checkpoint& checkpoint) {
  std::set<std::pair<std::string, std::string>> entries;
  for (const CheckpointFile& file : checkpoint.files) {
    entries.insert(file.header.metadata.begin(), file.header.metadata.end());
  }
  return entries;
}

void Comparer::compare_metadata() {
  const auto of_a = metadata_of(a_), of_b = metadata_of(b_);
  const auto report = [this](const auto& entries, const auto& others, const Checkpoint& in) {
    for (const auto& [key, value] : entries) {
      if (others.contains({key, value})) continue;
      differ(DifferenceKind::kMetadata, key,
             quoted_name(value) + " is only in " + quoted_name(in.path));
    }
  };
  report(of_a, of_b, a_);
  report(of_b, of_a, b_);
}

Status Comparer::compare_file(const std::string& name, FileRole role) {
  DCR_ASSIGN(const Bytes x, read_content(*work_.files, a_, name, role));
  DCR_ASSIGN(const Bytes y, read_content(*work_.files, b_, name, role));
  ++report_.files;
  if (x == y) return {};
  const auto at = std::mismatch(
      x.begin(), x.begin() + static_cast<std::ptrdiff_t>(std::min(x.size(), y.size())), y.begin());
  differ(DifferenceKind::kFile, name,
         std::string(role == FileRole::kWeights ? "headers" : "contents") + " of " +
             std::to_string(x.size()) + " and " + std::to_string(y.size()) +
             " bytes differ, first at byte " + std::to_string(at.first - x.begin()));
  return {};
}

Status Comparer::compare_files() {
  const auto names_of = [](const Checkpoint& checkpoint) {
    std::set<std::pair<std::string, FileRole>> names;
    for (const CheckpointFile& file : checkpoint.files) {
      names.emplace(delta_name(checkpoint, file.name), FileRole::kWeights);
    }
    for (const OtherFile& file : checkpoint.others) names.emplace(file.name, FileRole::kOther);
    return names;
  };
  const auto of_a = names_of(a_), of_b = names_of(b_);
  for (const auto& [name, role] : of_a) {
    DCR_TRY(check_cancelled(work_.cancel));
    if (of_b.contains({name, role})) {
      DCR_TRY(compare_file(name, role));
    } else {
      differ(DifferenceKind::kFile, name, "only in " + quoted_name(a_.path));
    }
  }
  for (const auto& [name, role] : of_b) {
    if (!of_a.contains({name, role})) {
      differ(DifferenceKind::kFile, name, "only in " + quoted_name(b_.path));
    }
  }
  return {};
}

}  // namespace

Result<VerifyReport> compare_checkpoints(const Work& work, const CheckpointSource& a,
                                         const CheckpointSource& b, bool files,
                                         const DifferenceSink& found) {
  const bool on_disk = !a.in_memory && !b.in_memory;
  if (files && !on_disk) {
    return Status(Code::kInvalidArgument, "tensors in memory have no files to compare");
  }
  DCR_ASSIGN(const Checkpoint first, open_source(*work.files, a, "a"));
  DCR_ASSIGN(const Checkpoint second, open_source(*work.files, b, "b"));
  return Comparer(work, first, second, found).run(on_disk, files);
}

}  // namespace dcr
