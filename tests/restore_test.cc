// Receivers that restore the committed version from owners' baselines, and that prove a base
// checkpoint by its digests, over random models and layouts.
#include <gtest/gtest.h>

#include <algorithm>

#include "receiver/base_check.h"
#include "tests/random_model.h"
#include "tests/random_words.h"
#include "tests/refit_world.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

constexpr std::uint64_t kVersion = 4;

Status take(Receiver* receiver, const AttemptHeader& header, const RefitWorld::Payloads& payloads) {
  DCR_TRY(receiver->begin_attempt(header));
  for (std::uint32_t owner = 0; owner < payloads.size(); ++owner) {
    DCR_TRY(receiver->end_of_owner(owner, payloads[owner].size()));
  }
  std::size_t most = 0;
  for (const auto& of_owner : payloads) most = std::max(most, of_owner.size());
  for (std::size_t number = 0; number < most; ++number) {
    for (const auto& of_owner : payloads) {
      if (number >= of_owner.size()) continue;
      DCR_ASSIGN(const Ingested ingested, receiver->ingest(of_owner[number]));
      if (ingested != Ingested::kQueued) return Status(Code::kInternal, "it was not queued");
    }
    DCR_TRY(receiver->apply().status());
  }
  return receiver->finish().status();
}

class Restoring {
 public:
  explicit Restoring(std::uint64_t seed) : prng_(seed), model_(prng_), words_(prng_, model_) {}

  Status run() {
    WorldOptions options;
    options.full_conversion = prng_.below(4) == 0;
    constexpr std::uint64_t kBytes[] = {1, 200, 5000, std::uint64_t{1} << 20};
    options.owners.bucket_bytes = kBytes[prng_.below(std::size(kBytes))];
    options.receivers.prefer_scratch = prng_.below(4) == 0;
    if (prng_.below(4) == 0) convert_some();
    DCR_ASSIGN(world_,
               RefitWorld::make(model_.catalogue, model_.owners, model_.receivers, options));
    world_->truth.tensors = words_.tensors;
    DCR_TRY(world_->start(kVersion));
    DCR_TRY(check_digests());
    const std::vector<Bytes> committed = words_.tensors;
    DCR_TRY(write_another_candidate());
    DCR_TRY(restore());
    world_->truth.tensors = committed;
    return world_->compare();
  }

  std::string layouts() const { return model_.text(); }

 private:
  // Some rules are converted instead of projected.
  void convert_some() {
    constexpr std::string_view kClass = "\"class\"";
    constexpr std::string_view kPath = "\"path\": \"convert\", ";
    for (std::size_t at = 0; (at = model_.owners.find(kClass, at)) != std::string::npos;) {
      if (prng_.below(2) == 0) {
        model_.owners.insert(at, kPath);
        at += kPath.size();
      }
      at += kClass.size();
    }
  }

  // Owner and receiver agree on the base, until one bit of it differs.
  Status check_digests() {
    DCR_ASSIGN(const auto digests, world_->group().baseline_digests(kVersion));
    const auto read = [this](std::uint32_t tensor, std::uint64_t first, MutableByteSpan out) {
      return world_->truth.read(tensor, first, out);
    };
    DCR_TRY(check_base(model_.catalogue, world_->owner_boxes(), digests, read));
    const auto tensor = static_cast<std::uint32_t>(prng_.below(model_.catalogue.size()));
    Bytes& bytes = world_->truth.tensors[tensor];
    if (bytes.empty()) return {};
    std::uint8_t& byte = bytes[prng_.below(bytes.size())];
    const auto bit = static_cast<std::uint8_t>(1U << prng_.below(8));
    byte ^= bit;
    const Status differs = check_base(model_.catalogue, world_->owner_boxes(), digests, read);
    byte ^= bit;
    if (differs.code() != Code::kMismatch) return {Code::kInternal, "a bit went unnoticed"};
    if (differs.tensor() != model_.catalogue[tensor].name) {
      return {Code::kInternal, "another tensor is named: " + differs.message()};
    }
    return {};
  }

  // Leaves receivers with other weights, and the owners with an open candidate that is prepared.
  Status write_another_candidate() {
    words_.change();
    world_->truth.tensors = words_.tensors;
    DCR_TRY(world_->load_owners());
    Attempt attempt;
    attempt.run = model_.catalogue.schema();
    attempt.attempt = 9;
    attempt.candidate = 1;
    attempt.base_version = kVersion;
    attempt.target_version = kVersion + 1;
    DCR_ASSIGN(const RefitWorld::Payloads payloads, world_->prepare(attempt));
    for (std::size_t rank = 0; rank < world_->receivers(); ++rank) {
      AttemptHeader header;
      header.run = attempt.run;
      header.attempt = attempt.attempt;
      header.base_version = attempt.base_version;
      header.target_version = attempt.target_version;
      DCR_TRY(take(&world_->receiver(rank), header, payloads));
    }
    return world_->compare();
  }

  Status restore() {
    AttemptHeader header;
    header.run = model_.catalogue.schema();
    header.attempt = kVersion + 1;
    header.base_version = kVersion;
    header.target_version = kVersion;
    header.overwrite_only = true;
    DCR_ASSIGN(const RefitWorld::Payloads payloads,
               world_->restore({header.run, header.attempt, kVersion}));
    for (std::size_t rank = 0; rank < world_->receivers(); ++rank) {
      DCR_TRY(take(&world_->receiver(rank), header, payloads));
    }
    return {};
  }

  Prng prng_;
  RandomModel model_;
  RandomWords words_;
  std::unique_ptr<RefitWorld> world_;
};

TEST(Restore, EveryByteIsADenseLoadsOfTheCommittedVersion) {
  const std::uint64_t first = 3'000'000;
  for (std::uint64_t seed = first; seed < first + campaign_cases(1000); ++seed) {
    Restoring restoring(seed);
    const Status done = restoring.run();
    ASSERT_TRUE(done.ok()) << "seed " << seed << ": " << done.message() << "\n"
                           << restoring.layouts();
  }
}

}  // namespace
}  // namespace dcr
