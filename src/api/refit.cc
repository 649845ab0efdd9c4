// The function of dcr/refit.h.
#include "dcr/refit.h"

#include <algorithm>
#include <map>
#include <utility>

#include "api/call_limits.h"
#include "api/refit_context.h"
#include "api/refit_owners.h"
#include "api/refit_receivers.h"
#include "api/stages.h"
#include "layout/checkpoint_reader.h"
#include "layout/generators.h"
#include "layout/layout_file.h"
#include "runtime/file.h"

namespace dcr {
namespace {

constexpr std::uint64_t kBaseVersion = 1;
constexpr std::uint64_t kTargetVersion = 2;
constexpr std::uint64_t kCandidate = 1;

std::string name_of(const RefitLayout& layout) {
  return layout.file.empty() ? layout.generate : layout.file;
}

Result<std::string> read_layout(const RefitContext& context, const std::string& path) {
  FileSystem& files =
      context.options.files != nullptr ? *context.options.files : posix_file_system();
  DCR_ASSIGN(const Bytes bytes, read_file(files, path, kLayoutBytesMax));
  return std::string(bytes.begin(), bytes.end());
}

// One owner's way to the receivers.
class Delivery final : public PayloadSink {
 public:
  Delivery(std::uint32_t owner, RefitReceivers& receivers) : owner_(owner), receivers_(receivers) {}
  Status send(std::uint64_t number, std::span<const std::uint8_t> bytes) override {
    return receivers_.take(owner_, number, bytes);
  }

 private:
  const std::uint32_t owner_;
  RefitReceivers& receivers_;
};

class Refit {
 public:
  Refit(const RefitContext& context, const Checkpoint& old_one, const Checkpoint& new_one)
      : context_(context), old_(old_one), new_(new_one) {}

  Result<RefitResult> run() {
    const double start = seconds();
    DCR_TRY(start_up());
    add_stages();
    result_.startup_seconds = seconds() - start;
    DCR_TRY(owners_->load(new_));
    context_.spans.take();
    const double begin = seconds();
    const double busy = busy_seconds();
    DCR_TRY(transition());
    result_.refit_seconds = seconds() - begin;
    result_.refit_busy_seconds = busy_seconds() - busy;
    add_stages();
    receivers_->report(&result_);
    DCR_TRY(receivers_->compare(context_.options.verify ? old_ : new_, &result_));
    return std::move(result_);
  }

 private:
  double seconds() const {
    Clock* const clock = context_.options.clock;
    return clock == nullptr ? 0 : 1e-9 * static_cast<double>(clock->nanoseconds());
  }

  double busy_seconds() const {
    Clock* const clock = context_.options.clock;
    return clock == nullptr ? 0 : 1e-9 * static_cast<double>(clock->process_nanoseconds());
  }

  // A layout file, or what `generate` makes of its specification, parsed.
  template <typename Generate, typename Parse>
  Result<Layout> make_layout(const RefitLayout& layout, Generate generate, Parse parse) const {
    DCR_ASSIGN(const std::string text, layout.file.empty()
                                           ? generate(context_.catalogue, layout.generate)
                                           : read_layout(context_, layout.file));
    Result<Layout> parsed = parse(text);
    return parsed.ok() ? std::move(parsed) : parsed.status().with_context(name_of(layout));
  }

  // Owners and receivers that hold OLD.
  Status start_up() {
    DCR_ASSIGN(const Layout of_owners,
               make_layout(context_.options.owners, generate_owner_layout, parse_owner_layout));
    DCR_ASSIGN(
        const Layout of_receivers,
        make_layout(context_.options.receivers, generate_receiver_layout, parse_receiver_layout));
    DCR_ASSIGN(owners_, RefitOwners::create(context_, of_owners));
    DCR_ASSIGN(receivers_, RefitReceivers::create(context_, of_receivers, owners_->boxes()));
    DCR_TRY(owners_->load(old_));
    DCR_TRY(owners_->group().initialize(kBaseVersion));
    DCR_TRY(receivers_->load(old_));
    return receivers_->prewarm(old_);
  }

  // From the first comparison to the new baseline.
  Status transition() {
    Attempt attempt;
    attempt.run = context_.catalogue.schema();
    attempt.attempt = 1;
    attempt.candidate = kCandidate;
    attempt.base_version = kBaseVersion;
    attempt.target_version = kTargetVersion;
    attempt.needs = receivers_->needs();
    const bool verify = context_.options.verify;
    attempt.mode = verify ? AttemptMode::kDense
                   : context_.options.construction == RefitConstruction::kMixed
                       ? AttemptMode::kMixed
                       : AttemptMode::kOverwrite;
    DCR_TRY(receivers_->begin(
        {attempt.run, attempt.attempt, kBaseVersion, kTargetVersion,
         verify ? ApplyMode::kVerify : ApplyMode::kWrite, attempt.mode != AttemptMode::kMixed},
        owners_->ranks()));
    std::vector<Delivery> deliveries;
    for (std::uint32_t owner = 0; owner < owners_->ranks(); ++owner) {
      deliveries.emplace_back(owner, *receivers_);
    }
    std::vector<PayloadSink*> sinks;
    sinks.reserve(deliveries.size());
    for (Delivery& delivery : deliveries) sinks.push_back(&delivery);
    // What is sent is applied while the rest is constructed.
    owners_->measure_memory([this] { return receivers_->held_bytes(); });
    DCR_ASSIGN(const std::vector<PrepareResult> prepared, owners_->group().prepare(attempt, sinks));
    std::vector<std::uint64_t> owner_payloads;
    owner_payloads.reserve(prepared.size());
    for (const PrepareResult& owner : prepared) owner_payloads.push_back(owner.pipeline.payloads);
    DCR_TRY(receivers_->end(owner_payloads));
    count(prepared);
    if (!verify) return owners_->group().commit(kTargetVersion);
    owners_->group().drop_attempt();
    return {};
  }

  void count(const std::vector<PrepareResult>& prepared) {
    result_.owners = owners_->ranks();
    result_.tensors = context_.catalogue.size();
    for (const CanonicalTensor& tensor : context_.catalogue.tensors()) {
      result_.canonical_elements += tensor.words;
      result_.model_bytes += tensor.words * word_bytes(tensor.dtype);
    }
    constexpr Encoding kEncodings[] = {Encoding::kOverwrite, Encoding::kXor, Encoding::kAdd};
    std::uint64_t owned = 0;
    for (std::uint32_t rank = 0; rank < prepared.size(); ++rank) {
      const PrepareResult& made = prepared[rank];
      const OwnerSizes& sizes = owners_->sizes(rank);
      const std::uint64_t bytes = sizes.projected_bytes + sizes.residual_bytes;
      result_.elements += sizes.source_elements;
      result_.changed += made.changed_source_elements;
      result_.canonical_changed += made.changed_projected_words + made.changed_residual_words;
      result_.payloads += made.pipeline.payloads;
      result_.payload_bytes += made.pipeline.payload_bytes;
      for (const Encoding encoding : kEncodings) {
        const std::uint64_t items =
            made.pipeline.items_by_encoding[static_cast<unsigned>(encoding)];
        if (items > 0) result_.encodings[encoding_name(encoding)] += items;
      }
      result_.owned_bytes_max = std::max(result_.owned_bytes_max, bytes);
      owned += bytes;
    }
    result_.owned_bytes_mean =
        static_cast<double>(owned) / static_cast<double>(std::max<std::size_t>(1, prepared.size()));
    result_.owner_memory_bytes = owners_->memory_peak();
  }

  void add_stages() {
    std::vector<RefitStage> stages = stages_of(context_.spans.take());
    std::move(stages.begin(), stages.end(), std::back_inserter(result_.stages));
  }

  const RefitContext& context_;
  const Checkpoint& old_;
  const Checkpoint& new_;
  std::unique_ptr<RefitOwners> owners_;
  std::unique_ptr<RefitReceivers> receivers_;
  RefitResult result_;
};

}  // namespace

Result<RefitResult> refit(const std::string& old_path, const std::string& new_path,
                          const RefitOptions& options) {
  DCR_TRY(check_call(options.memory_bytes_max, options.threads));
  FileSystem& files = options.files != nullptr ? *options.files : posix_file_system();
  DCR_ASSIGN(const Checkpoint old_one, open_checkpoint(files, old_path));
  DCR_ASSIGN(const Checkpoint new_one, open_checkpoint(files, new_path));
  DCR_TRY(check_same_tensors(old_one, new_one));
  DCR_ASSIGN(const Catalogue catalogue, checkpoint_catalogue(old_one));
  const std::unique_ptr<Executor> executor = make_call_executor(options.threads);
  SpanRecorder spans(options.clock);
  const RefitContext context{options, catalogue, *executor, spans};
  return Refit(context, old_one, new_one).run();
}

}  // namespace dcr
