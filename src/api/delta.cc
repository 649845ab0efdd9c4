// The functions of dcr/delta.h: they give src/delta what it works with, and callers what they asked
// for.
#include "dcr/delta.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "api/call_limits.h"
#include "delta/apply.h"
#include "delta/apply_memory.h"
#include "delta/delta_file.h"
#include "delta/diff.h"
#include "delta/in_place.h"
#include "delta/inspect.h"
#include "delta/verify.h"
#include "runtime/file.h"
#include "runtime/threads.h"

namespace dcr {
namespace {

constexpr std::size_t kDifferencesKept = 100;

// A call's Work, and the threads that it owns.
class Session {
 public:
  static Result<std::unique_ptr<Session>> open(const DeltaOptions& options) {
    DCR_TRY(check_call(options.memory_bytes_max, options.threads));
    return std::make_unique<Session>(options);
  }

  explicit Session(const DeltaOptions& options) : executor_(make_call_executor(options.threads)) {
    work_.files = options.files != nullptr ? options.files : &posix_file_system();
    work_.executor = executor_.get();
    work_.memory_bytes_max = options.memory_bytes_max;
    work_.force = options.force;
    work_.cancel = options.cancel;
    if (options.progress) {
      work_.progress = [call = options.progress](const char* stage, std::uint64_t done,
                                                 std::uint64_t total) {
        call(Progress{stage, done, total});
      };
    }
  }

  const Work& work() const { return work_; }

 private:
  std::unique_ptr<Executor> executor_;
  Work work_;
};

// The tensors that are not common, by what happened to them.
struct TensorLists {
  std::vector<std::string> added, removed, replaced;
};

TensorLists uncommon_tensors(const DeltaFooter& footer) {
  TensorLists lists;
  for (const DeltaTensor& tensor : footer.tensors) {
    if (tensor.common()) continue;
    std::vector<std::string>& list = !tensor.base.present     ? lists.added
                                     : !tensor.target.present ? lists.removed
                                                              : lists.replaced;
    list.push_back(tensor.name);
  }
  return lists;
}

std::vector<LeftOut> left_out_files(const DeltaFooter& footer) {
  std::vector<LeftOut> files;
  for (const LeftOutEntry& entry : footer.left_out) files.push_back({entry.name, entry.reason});
  return files;
}

// Common tensors, and their elements.
std::pair<std::uint64_t, std::uint64_t> count_common(const DeltaFooter& footer) {
  std::uint64_t tensors = 0, elements = 0;
  for (const DeltaTensor& tensor : footer.tensors) {
    if (!tensor.common()) continue;
    ++tensors;
    // The table was validated, so the shape is within its limits.
    elements += tensor_elements(tensor.target.shape).value();
  }
  return {tensors, elements};
}

std::string kind_name(DifferenceKind kind) {
  switch (kind) {
    case DifferenceKind::kMissing:
      return "missing";
    case DifferenceKind::kExtra:
      return "extra";
    case DifferenceKind::kDtype:
      return "dtype";
    case DifferenceKind::kShape:
      return "shape";
    case DifferenceKind::kBits:
      return "bits";
    case DifferenceKind::kMetadata:
      return "metadata";
    case DifferenceKind::kFile:
      return "file";
  }
  return "unknown";
}

ApplyResult result_of(ApplyReport&& report) {
  ApplyResult result;
  result.tensors = report.tensors;
  result.changed = report.changed;
  result.bytes_written = report.bytes_written;
  result.files = std::move(report.files);
  return result;
}

void add_contents(DeltaContents&& contents, InspectResult* result) {
  result->items = contents.items;
  for (const auto& [encoding, items] : contents.encodings) {
    result->encodings[encoding_name(encoding)] = items;
  }
  for (const auto& [stream, totals] : contents.streams) {
    result->streams.push_back(
        {stream_name(stream.first), stream.second, totals.raw_bytes, totals.stored_bytes});
  }
  for (const auto& [name, group] : contents.groups) {
    result->groups.push_back({name, group.tensors, group.elements, group.changed, group.raw_bytes});
  }
}

}  // namespace

Result<DiffResult> diff(const CheckpointSource& before, const CheckpointSource& after,
                        const std::string& output, const DeltaOptions& options) {
  DCR_ASSIGN(const std::unique_ptr<Session> session, Session::open(options));
  DCR_ASSIGN(const DiffReport report, write_diff(session->work(), before, after, output));
  DiffResult result;
  std::tie(result.tensors, result.elements) = count_common(report.footer);
  result.changed = report.footer.changed;
  result.delta_bytes = report.delta_bytes;
  result.payload_bytes = report.pipeline.payload_bytes;
  for (const Encoding encoding : {Encoding::kOverwrite, Encoding::kXor, Encoding::kAdd}) {
    const std::uint64_t items = report.pipeline.items_by_encoding[static_cast<unsigned>(encoding)];
    if (items > 0) result.encodings[encoding_name(encoding)] = items;
  }
  TensorLists lists = uncommon_tensors(report.footer);
  result.added = std::move(lists.added);
  result.removed = std::move(lists.removed);
  result.replaced = std::move(lists.replaced);
  for (const DeltaFile& file : report.footer.files) {
    if (file.is_carried() && file.role == FileRole::kOther) {
      result.carried_files.push_back(file.name);
    }
  }
  result.left_out = left_out_files(report.footer);
  return result;
}

Result<ApplyResult> apply(const std::vector<std::string>& deltas, const std::string& base,
                          const std::string& output, const DeltaOptions& options) {
  DCR_ASSIGN(const std::unique_ptr<Session> session, Session::open(options));
  DCR_ASSIGN(ApplyReport report, apply_chain(session->work(), deltas, base, output));
  return result_of(std::move(report));
}

Result<ApplyResult> apply_to_memory(const std::vector<std::string>& deltas,
                                    const CheckpointSource& base, const TensorMemory& memory,
                                    const DeltaOptions& options) {
  DCR_ASSIGN(const std::unique_ptr<Session> session, Session::open(options));
  DCR_ASSIGN(ApplyReport report, apply_chain_to_memory(session->work(), deltas, base, memory));
  return result_of(std::move(report));
}

Result<ApplyResult> apply_in_place(const std::vector<std::string>& deltas,
                                   std::span<const MemoryTensor> base,
                                   const DeltaOptions& options) {
  DCR_ASSIGN(const std::unique_ptr<Session> session, Session::open(options));
  DCR_ASSIGN(ApplyReport report, apply_chain_in_memory(session->work(), deltas, base));
  return result_of(std::move(report));
}

Result<ApplyResult> apply_in_place(const std::vector<std::string>& deltas, const std::string& base,
                                   const DeltaOptions& options) {
  DCR_ASSIGN(const std::unique_ptr<Session> session, Session::open(options));
  DCR_ASSIGN(InPlaceResult report, apply_chain_in_place(session->work(), deltas, base));
  ApplyResult result;
  result.tensors = report.tensors;
  result.changed = report.changed;
  result.bytes_written = report.bytes_written;
  result.already_target = report.already_target;
  result.replayed_journal = report.replayed_journal;
  result.files = std::move(report.files);
  return result;
}

Result<VerifyResult> verify(const CheckpointSource& a, const CheckpointSource& b,
                            const VerifyOptions& what, const DeltaOptions& options) {
  DCR_ASSIGN(const std::unique_ptr<Session> session, Session::open(options));
  VerifyResult result;
  const auto found = [&result](DifferenceKind kind, const std::string& name,
                               const std::string& detail) {
    if (result.differences.size() == kDifferencesKept) return;
    result.differences.push_back({kind_name(kind), name, detail});
  };
  DCR_ASSIGN(const VerifyReport report,
             compare_checkpoints(session->work(), a, b, what.files, found));
  result.tensors = report.tensors;
  result.elements = report.elements;
  result.bytes = report.bytes;
  result.files = report.files;
  result.differing = report.differing;
  return result;
}

Result<InspectResult> inspect(const std::string& delta, const DeltaOptions& options) {
  DCR_ASSIGN(const std::unique_ptr<Session> session, Session::open(options));
  DCR_ASSIGN(const DeltaReader reader, DeltaReader::open(*session->work().files, delta));
  DCR_ASSIGN(DeltaContents contents, read_contents(session->work(), reader));
  const DeltaFooter& footer = reader.footer();
  InspectResult result;
  result.format_version = kFormatVersion;
  result.delta_bytes = reader.file_bytes();
  result.payloads = footer.payloads.size();
  std::tie(result.tensors, result.elements) = count_common(footer);
  result.changed = footer.changed;
  result.base_identity = digest_text(footer.base_identity);
  result.target_identity = digest_text(footer.target_identity);
  add_contents(std::move(contents), &result);
  TensorLists lists = uncommon_tensors(footer);
  result.added = std::move(lists.added);
  result.removed = std::move(lists.removed);
  result.replaced = std::move(lists.replaced);
  for (const DeltaFile& file : footer.files) {
    if (!file.in_target) continue;
    result.files.push_back({file.name, file.target_content_bytes,
                            file.is_carried() ? file.carried.stored_bytes : 0,
                            file.is_carried() ? "carried" : "base"});
  }
  result.left_out = left_out_files(footer);
  return result;
}

}  // namespace dcr
