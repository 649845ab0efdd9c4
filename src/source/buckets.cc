#include "source/buckets.h"

#include <algorithm>
#include <utility>

namespace dcr {

Buckets::~Buckets() {
  for (const auto& payload : sealing_) wait_for(*payload);
}

Status Buckets::add(const EncodedItem& item, std::uint64_t input_bytes) {
  const bool full = bucket_bytes_ + input_bytes > options_.bytes ||
                    bucket_.raw_bytes() + item.raw_bytes() > options_.raw_bytes_max ||
                    bucket_.items() == kItemsPerPayloadMax;  // what readers take
  if (full) DCR_TRY(close());
  bucket_.append(item);
  bucket_bytes_ += input_bytes;
  ++result_.items;
  ++result_.items_by_encoding[static_cast<unsigned>(item.header.encoding)];
  return {};
}

Status Buckets::close() {
  if (bucket_.items() == 0) return {};
  if (sealing_.size() == options_.sealing) DCR_TRY(send_first());
  auto payload = std::make_unique<Sealing>();
  payload->writer = std::exchange(bucket_, PayloadWriter());
  payload->header = header_;
  ++header_.number;
  bucket_bytes_ = 0;
  result_.payload_raw_bytes_max =
      std::max(result_.payload_raw_bytes_max, payload->writer.raw_bytes());
  Sealing* sealing = payload.get();
  sealing_.push_back(std::move(payload));
  executor_.submit([this, sealing] {
    {
      const SpanTimer timer(options_.spans, "compress", sealing->header.owner);
      sealing->bytes = sealing->writer.seal(sealing->header, options_.key);
      sealing->writer = PayloadWriter();
    }
    sealing->done.store(true, std::memory_order_release);
  });
  return {};
}

Status Buckets::finish() {
  DCR_TRY(close());
  while (!sealing_.empty()) DCR_TRY(send_first());
  return {};
}

void Buckets::wait_for(const Sealing& payload) {
  executor_.wait([&payload] { return payload.done.load(std::memory_order_acquire); });
}

Status Buckets::send_first() {
  wait_for(*sealing_.front());
  const std::unique_ptr<Sealing> payload = std::move(sealing_.front());
  sealing_.pop_front();
  result_.payload_bytes += payload->bytes.size();
  result_.payload_stored_bytes_max =
      std::max<std::uint64_t>(result_.payload_stored_bytes_max, payload->bytes.size());
  ++result_.payloads;
  const SpanTimer timer(options_.spans, "send", payload->header.owner);
  return sink_.send(payload->header.number, payload->bytes);
}

}  // namespace dcr
