#include "api/refit_context.h"

#include <malloc.h>

namespace dcr {

Result<Arena> refit_arena(const RefitContext& context, const std::string& name,
                          std::uint64_t bytes) {
  if (context.options.arena_directory.empty()) return Arena::anonymous(bytes);
  return Arena::mapped(context.options.arena_directory + "/dcr-" + name + ".arena", bytes);
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
