// One attempt's or restore's way from an owner into the object store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "codec/container.h"
#include "dcr/ports.h"
#include "protocol/owner.h"
#include "run/process_context.h"
#include "transport/object_transport.h"

namespace dcr {

// Everything given outlives it. `progress` is told of each payload.
class TransportSink final : public PayloadSink {
 public:
  TransportSink(ProcessContext& context, ObjectOwnerTransport& transport, std::uint32_t rank,
                std::uint64_t attempt, const std::function<void(OwnerEvent)>& progress)
      : context_(context),
        transport_(transport),
        rank_(rank),
        attempt_(attempt),
        progress_(progress) {}

  Status send(std::uint64_t number, std::span<const std::uint8_t> bytes) override {
    if (bytes.size() < kPayloadDigestOffset + sizeof(Digest)) {
      return {Code::kInternal, "a payload that is shorter than its head"};
    }
    Digest digest{};
    std::copy_n(bytes.begin() + kPayloadDigestOffset, digest.size(), digest.begin());
    context_.points().after("encode");
    context_.points().before("send");
    {
      const SpanTimer timer(&context_.spans(), "submit_to_queued", rank_);
      DCR_TRY(transport_.send(attempt_, number, bytes, digest));
    }
    context_.points().after("send");
    context_.points().before("encode");  // of the next
    payloads_ = number + 1;
    bytes_sent_ += bytes.size();
    progress_(OwnerProgress{payloads_, bytes_sent_});
    return {};
  }

  std::uint64_t payloads() const { return payloads_; }
  std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  ProcessContext& context_;
  ObjectOwnerTransport& transport_;
  const std::uint32_t rank_;
  const std::uint64_t attempt_;
  const std::function<void(OwnerEvent)>& progress_;
  std::uint64_t payloads_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace dcr
