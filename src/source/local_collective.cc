#include "source/local_collective.h"

#include <string>

namespace dcr {

Status LocalCollective::all_reduce_flags(std::span<std::uint8_t> /*flags*/) { return {}; }

Status LocalCollective::send_part(std::uint32_t to, const PartHeader& header,
                                  std::span<const std::uint8_t> bytes) {
  if (to >= ranks_.count() || ranks_.sink(to) == nullptr) {
    return {Code::kInternal, "rank " + std::to_string(rank_) + ": there is no rank " +
                                 std::to_string(to) + " to take a part"};
  }
  return ranks_.sink(to)->receive(header, bytes);
}

}  // namespace dcr
