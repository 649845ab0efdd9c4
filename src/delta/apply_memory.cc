#include "delta/apply_memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/assert.h"
#include "delta/chain_applier.h"
#include "delta/contents.h"
#include "tensor/memory_checkpoint.h"
#include "tensor/text.h"

namespace dcr {
namespace {

// What an error calls the tensors that the deltas are applied to.
constexpr const char* kBaseName = "base";

// A chain that fits the base's table and is validated.
Result<DeltaChain> open_chain(const Work& work, const std::vector<std::string>& deltas,
                              const Checkpoint& base) {
  DCR_ASSIGN(DeltaChain chain, DeltaChain::open(*work.files, deltas));
  if (Status status = check_table(base, chain.deltas.front(), false); !status.ok()) {
    return explain_mismatch(work, chain.deltas, base, status);
  }
  DCR_TRY(chain.validate(work));
  return chain;
}

// Counts the target's tensors and their bytes.
ApplyReport report_of(const ChainApplier& applier, const std::vector<DeltaTensor>& tensors) {
  ApplyReport report;
  report.changed = applier.changed();
  for (const DeltaTensor& tensor : tensors) {
    if (!tensor.target.present) continue;
    ++report.tensors;
    report.bytes_written += tensor.target.bytes;
  }
  return report;
}

// Arrays keep their dtype and shape: nothing may be added, removed or replaced.
Status check_common(const DeltaChain& chain) {
  for (const DeltaReader& delta : chain.deltas) {
    for (const DeltaTensor& tensor : delta.footer().tensors) {
      if (tensor.common()) continue;
      const char* what = !tensor.base.present     ? "adds"
                         : !tensor.target.present ? "removes"
                                                  : "gives another dtype or shape to";
      return {Code::kMismatch,
              delta.path() + " " + what + " tensor " + quoted_name(tensor.name) +
                  ", which cannot be done in place: apply it into new memory",
              tensor.name};
    }
  }
  return {};
}

// The memory of each tensor of the table, by its index; empty where another tensor has it too.
Result<std::vector<MutableByteSpan>> memory_of(const DeltaChain& chain,
                                               std::span<const MemoryTensor> base) {
  const std::vector<DeltaTensor>& tensors = chain.deltas.back().footer().tensors;
  std::vector<MutableByteSpan> memory(tensors.size());
  std::map<const std::uint8_t*, std::pair<const MemoryTensor*, std::int64_t>> taken;  // by start
  for (const MemoryTensor& tensor : base) {
    const std::int64_t index = find_delta_tensor(tensors, tensor.name);
    DCR_ASSERT(index >= 0);  // check_table, check_chain and check_common
    if (tensor.bytes.empty()) continue;
    const auto [place, first] = taken.try_emplace(tensor.bytes.data(), &tensor, index);
    if (first) {
      memory[static_cast<std::size_t>(index)] = tensor.bytes;
      continue;
    }
    const auto& [other, other_index] = place->second;
    const TensorSide& a = tensors[static_cast<std::size_t>(index)].target;
    const TensorSide& b = tensors[static_cast<std::size_t>(other_index)].target;
    if (a.bytes == b.bytes && a.digest != b.digest) {
      return Status(Code::kMismatch,
                    "tensors " + quoted_name(other->name) + " and " + quoted_name(tensor.name) +
                        " share memory, but get different bits",
                    tensor.name);
    }
  }
  return memory;
}

// Tensors overlap not at all or wholly.
Status check_overlaps(std::span<const MemoryTensor> base) {
  std::vector<const MemoryTensor*> sorted;
  for (const MemoryTensor& tensor : base) {
    if (!tensor.bytes.empty()) sorted.push_back(&tensor);
  }
  const auto start = [](const MemoryTensor* t) {
    return reinterpret_cast<std::uintptr_t>(t->bytes.data());
  };
  std::sort(sorted.begin(), sorted.end(), [&](const MemoryTensor* a, const MemoryTensor* b) {
    return start(a) != start(b) ? start(a) < start(b) : a->name < b->name;
  });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const MemoryTensor& a = *sorted[i - 1];
    const MemoryTensor& b = *sorted[i];
    const bool same = start(&a) == start(&b) && a.bytes.size() == b.bytes.size();
    if (same || start(&b) >= start(&a) + a.bytes.size()) continue;
    return {Code::kInvalidArgument,
            "tensors " + quoted_name(a.name) + " and " + quoted_name(b.name) +
                " share a part of their memory",
            b.name};
  }
  return {};
}

}  // namespace

Result<ApplyReport> apply_chain_to_memory(const Work& work, const std::vector<std::string>& deltas,
                                          const CheckpointSource& source,
                                          const TensorMemory& memory) {
  DCR_ASSIGN(const Checkpoint base, open_source(*work.files, source, kBaseName));
  DCR_ASSIGN(const DeltaChain chain, open_chain(work, deltas, base));
  const std::vector<DeltaTensor>& tensors = chain.deltas.back().footer().tensors;
  std::vector<MutableByteSpan> results(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSide& target = tensors[i].target;
    if (!target.present) continue;
    results[i] = memory({tensors[i].name, target.dtype, target.shape, 0});
    if (results[i].size() != target.bytes) {
      return Status(Code::kInvalidArgument,
                    "tensor " + quoted_name(tensors[i].name) + " got memory of another size",
                    tensors[i].name);
    }
  }
  ChainApplier applier(work, chain, base);
  const Status status =
      applier.run([&](std::uint32_t tensor, std::uint64_t offset, ByteSpan bytes) -> Status {
        if (!bytes.empty()) std::memcpy(&results[tensor][offset], bytes.data(), bytes.size());
        return {};
      });
  if (!status.ok()) return explain_mismatch(work, chain.deltas, base, status);
  return report_of(applier, tensors);
}

Result<ApplyReport> apply_chain_in_memory(const Work& work, const std::vector<std::string>& deltas,
                                          std::span<const MemoryTensor> tensors) {
  DCR_TRY(check_overlaps(tensors));
  DCR_ASSIGN(const Checkpoint base, memory_checkpoint(tensors, kBaseName));
  DCR_ASSIGN(const DeltaChain chain, open_chain(work, deltas, base));
  DCR_TRY(check_common(chain));
  DCR_ASSIGN(const std::vector<MutableByteSpan> memory, memory_of(chain, tensors));
  ChainApplier applier(work, chain, base);
  const Status shown =
      applier.run([](std::uint32_t, std::uint64_t, ByteSpan) -> Status { return {}; });
  if (!shown.ok()) return explain_mismatch(work, chain.deltas, base, shown);
  ApplyReport report = report_of(applier, chain.deltas.back().footer().tensors);
  // Fails only if a delta file that was read twice cannot be read again.
  const Status written = applier.write_items([&](std::uint32_t tensor) { return memory[tensor]; });
  if (!written.ok()) return written.with_context("a part of the base is changed");
  return report;
}

}  // namespace dcr
