#include "api/refit_context.h"

#include <malloc.h>

#include "base/checked.h"
#include "source/source_plan.h"

namespace dcr {

std::uint64_t storages_bytes(std::span<const std::uint64_t> storages) {
  std::optional<std::uint64_t> bytes = 0;
  for (const std::uint64_t storage : storages) {
    if (bytes) bytes = checked_add(*bytes, arena_bytes_of(storage));
  }
  return bytes.value_or(~std::uint64_t{0});
}

std::vector<MutableByteSpan> storages_in(const Arena& arena,
                                         std::span<const std::uint64_t> storages) {
  std::vector<MutableByteSpan> spans;
  spans.reserve(storages.size());
  std::uint64_t offset = 0;
  for (const std::uint64_t storage : storages) {
    spans.push_back(
        arena.bytes().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(storage)));
    offset += arena_bytes_of(storage);
  }
  return spans;
}

Result<Arena> refit_arena(const RefitContext& context, const std::string& name,
                          std::uint64_t bytes) {
  if (context.options.arena_directory.empty()) return Arena::anonymous(bytes);
  return Arena::mapped(context.options.arena_directory + "/dcr-" + name + ".arena", bytes);
}

Result<Catalogue> checkpoint_catalogue(const Checkpoint& checkpoint) {
  std::vector<CanonicalTensor> tensors;
  tensors.reserve(checkpoint.tensors.size());
  for (const CheckpointTensor& tensor : checkpoint.tensors) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, 0});
  }
  return Catalogue::make(std::move(tensors));
}

std::uint64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

Status refit_parallel(const RefitContext& context, const char* stage, std::uint64_t count,
                      const std::function<std::uint64_t(std::uint64_t)>& weight,
                      const std::function<Status(std::uint64_t)>& work) {
  std::uint64_t total = 0;
  for (std::uint64_t i = 0; i < count; ++i) total += weight(i);
  std::uint64_t done = 0;
  return ordered_map<bool>(
      context.executor, count, 2 * std::uint64_t{context.executor.threads()},
      context.options.cancel,
      [&](std::uint64_t i) -> Result<bool> {
        DCR_TRY(work(i));
        return true;
      },
      [&](std::uint64_t i, bool&&) -> Status {
        done += weight(i);
        if (context.options.progress) context.options.progress({stage, done, total});
        return {};
      });
}

}  // namespace dcr
