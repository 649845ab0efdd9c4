// What an owner's process says to the other owners of its run: the Collective over a channel of its
// own, at the address that the run's file has for it.
#pragma once

#include <cstdint>
#include <memory>

#include "channel/channel_collective.h"
#include "dcr/ports.h"
#include "run/operation_points.h"
#include "run/process_context.h"

namespace dcr {

// Of owner `rank`. Errors: of its key file and the channel.
Result<std::unique_ptr<ChannelCollective>> open_owner_collective(ProcessContext& context,
                                                                 std::uint32_t rank);

// A Collective at whose operations the process may be killed or stopped.
class PointedCollective final : public Collective {
 public:
  PointedCollective(Collective& collective, OperationPoints& points)
      : collective_(collective), points_(points) {}

  std::uint32_t rank() const override { return collective_.rank(); }
  std::uint32_t size() const override { return collective_.size(); }
  Status all_reduce_flags(std::span<std::uint8_t> flags) override {
    points_.before("all_reduce_flags");
    Status status = collective_.all_reduce_flags(flags);
    points_.after("all_reduce_flags");
    return status;
  }
  Status send_part(std::uint32_t to, const PartHeader& header,
                   std::span<const std::uint8_t> bytes) override {
    points_.before("convert");  // which is converted, and has not been handed over
    Status status = collective_.send_part(to, header, bytes);
    points_.after("convert");
    return status;
  }

 private:
  Collective& collective_;
  OperationPoints& points_;
};

}  // namespace dcr
