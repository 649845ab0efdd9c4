#include "sim/model.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/assert.h"
#include "layout/converters.h"
#include "layout/shard.h"
#include "receiver/needs.h"
#include "receiver/ownership.h"
#include "tests/random_words.h"

namespace dcr {
namespace {

// What keeps a transition within its time.
constexpr std::uint64_t kTensorsMax = 6;
constexpr std::uint64_t kModelBytesMax = 1000;
// Payloads that a step to weights of another kind sends: most models have about as many as there
// have to be, as each is sent, fetched, decoded, handed over and applied by itself; some have more.
constexpr std::uint64_t kPayloadsMin = 5;
constexpr std::uint64_t kPayloadsMax = 8;
constexpr std::uint64_t kManyPayloadsMax = 24;

class CountingSink final : public PayloadSink {
 public:
  Status send(std::uint64_t /*number*/, std::span<const std::uint8_t> /*bytes*/) override {
    ++payloads;
    return {};
  }
  std::uint64_t payloads = 0;
};

class SetReader final : public CanonicalReader {
 public:
  SetReader(const Catalogue& catalogue, const std::vector<Bytes>& tensors)
      : catalogue_(catalogue), tensors_(tensors) {}

  Status read(std::uint32_t tensor, std::uint64_t first, std::span<std::uint8_t> out) override {
    const std::uint64_t begin = first * word_bytes(catalogue_[tensor].dtype);
    const Bytes& bytes = tensors_[tensor];
    DCR_ASSERT(begin <= bytes.size() && out.size() <= bytes.size() - begin);
    std::copy_n(bytes.data() + begin, out.size(), out.data());
    return {};
  }

 private:
  const Catalogue& catalogue_;
  const std::vector<Bytes>& tensors_;
};

// The words of a box of a tensor, in the box's order.
Bytes box_words(const ItemBox& box, unsigned width, const Bytes& tensor) {
  Bytes out;
  std::vector<std::uint64_t> index(box.dims.size(), 0);
  for (std::uint64_t left = box.words(); left > 0; --left) {
    std::uint64_t word = box.offset;
    for (std::size_t d = 0; d < index.size(); ++d) word += index[d] * box.dims[d].stride;
    const auto at = tensor.begin() + static_cast<std::ptrdiff_t>(word * width);
    out.insert(out.end(), at, at + static_cast<std::ptrdiff_t>(width));
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < box.dims[d].size) break;
      index[d] = 0;
    }
  }
  return out;
}

}  // namespace

// What receivers remember of an attempt's items, at most; often less than what may come before
// anything is applied.
std::uint64_t SimModel::remembered_bytes_max(
    const std::vector<std::vector<OwnerBox>>& owners) const {
  const Result<Ownership> ownership = Ownership::make(catalogue(), owners);
  for (std::uint32_t tensor = 0; tensor < catalogue().size(); ++tensor) {
    if (!ownership.ok() || ownership->shared(tensor)) return kMiB;
  }
  return 200 * items();
}

Status GuardedMemory::apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
                            const void* values, ApplyMode mode, ApplyCounts* counts) {
  if (guard_ != nullptr && target.storage < parameters_ && mode == ApplyMode::kWrite) {
    guard_->on_write();
  }
  return memory_.apply(target, positions, values, mode, counts);
}

Status GuardedMemory::write(const TensorView& view, std::span<const std::uint8_t> in) {
  if (guard_ != nullptr && view.storage < parameters_) guard_->on_write();
  return memory_.write(view, in);
}

SimReceiver::SimReceiver(const Catalogue& catalogue, const ReceiverRank& plan, std::uint32_t rank)
    : rank_(rank),
      guarded_(host_, plan.storage_bytes.size()),
      loader_(catalogue, plan, guarded_, rank) {
  for (const std::uint64_t bytes : plan.storage_bytes) {
    storages_.emplace_back(static_cast<std::size_t>(bytes));
  }
  for (Bytes& storage : storages_) host_.add(storage);
}

void SimReceiver::set_image(const Image& image) {
  DCR_ASSERT(image.size() == storages_.size());
  for (std::size_t i = 0; i < image.size(); ++i) {
    std::copy(image[i].begin(), image[i].end(), storages_[i].begin());
  }
}

std::optional<std::string> SimReceiver::differs(const Image& image) const {
  for (std::size_t i = 0; i < image.size(); ++i) {
    if (std::equal(image[i].begin(), image[i].end(), storages_[i].begin())) continue;
    const auto at = std::mismatch(image[i].begin(), image[i].end(), storages_[i].begin());
    return "byte " + std::to_string(at.first - image[i].begin()) + " of storage " +
           std::to_string(i);
  }
  return std::nullopt;
}

void SimOwner::load(const std::vector<Bytes>& shards) {
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::copy(shards[i].begin(), shards[i].end(), storages_[i].begin());
  }
}

std::unique_ptr<SimModel> SimModel::make(std::uint64_t number) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    Prng prng(number * 1'000'003 + attempt);
    RandomModel random(prng);
    std::uint64_t bytes = 0;
    for (const CanonicalTensor& tensor : random.catalogue.tensors()) {
      bytes += tensor.words * word_bytes(tensor.dtype);
    }
    const std::uint32_t tensors = random.catalogue.size();
    if (tensors < 4 || tensors > kTensorsMax || bytes < 100 || bytes > kModelBytesMax) continue;
    std::unique_ptr<SimModel> model(
        std::make_unique<SimModel>(std::move(random), prng, residual(number)));
    // Most have several owners and receivers.
    const bool small = number % 48 == 47;
    const bool many = number % 8 == 5;
    const std::uint64_t least = small ? 1 : many ? kPayloadsMax : kPayloadsMin;
    const std::uint64_t most = many ? kManyPayloadsMax : kPayloadsMax;
    if (!model->build().ok() || (model->owners() == 1) != small || model->owners() > 3 ||
        model->receivers() > 4) {
      continue;
    }
    const std::uint64_t payloads = model->payloads();
    if (payloads >= least && payloads <= most) return model;
  }
}

Status SimModel::build() {
  make_weights();
  for (const CanonicalTensor& tensor : catalogue().tensors()) {
    specs_.push_back({tensor.words, static_cast<std::uint8_t>(word_bytes(tensor.dtype)), false});
  }
  constexpr std::uint64_t kBucketBytes[] = {1, 1, 1, 16};
  bucket_bytes_ = kBucketBytes[prng_.below(std::size(kBucketBytes))];
  DCR_TRY(make_owners(&owners_));
  DCR_TRY(make_receivers());
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    Image varying;
    const Image& base = dense(0, rank);
    for (const Bytes& storage : base) varying.emplace_back(storage.size(), 0);
    for (std::uint32_t weights = 1; weights < kWeights; ++weights) {
      const Image& other = dense(weights, rank);
      for (std::size_t i = 0; i < base.size(); ++i) {
        for (std::size_t at = 0; at < base[i].size(); ++at) {
          varying[i][at] |= static_cast<std::uint8_t>(base[i][at] ^ other[i][at]);
        }
      }
    }
    varying_.push_back(std::move(varying));
  }
  return {};
}

// Steps of training, single elements, and weights that have nothing to do with each other.
void SimModel::make_weights() {
  RandomWords words(prng_, random_);
  for (std::uint32_t i = 0; i < 6; ++i) {
    if (i > 0) words.change();
    weights_.push_back(words.tensors);
  }
  // One word of the next step alone.
  for (std::uint32_t i = 0; i < 3; ++i) {
    std::vector<Bytes> one = weights_[i];
    for (std::uint32_t tensor = 0; tensor < one.size(); ++tensor) {
      if (one[tensor] == weights_[i + 1][tensor]) continue;
      const unsigned width = word_bytes(catalogue()[tensor].dtype);
      std::size_t word = 0;
      while (std::equal(&one[tensor][word * width], &one[tensor][word * width] + width,
                        &weights_[i + 1][tensor][word * width])) {
        ++word;
      }
      std::copy_n(&weights_[i + 1][tensor][word * width], width, &one[tensor][word * width]);
      break;
    }
    weights_.push_back(std::move(one));
  }
  DCR_ASSERT(weights_.size() == kUnrelated);
  RandomWords others(prng_, random_);
  weights_.push_back(others.tensors);
  others.change();
  weights_.push_back(others.tensors);
  weights_.push_back(RandomWords(prng_, random_).tensors);
  DCR_ASSERT(weights_.size() == kWeights);
}

// Where there are residual tensors, those of about every other rule are.
Result<OwnerPlan> SimModel::owner_plan() {
  DCR_ASSIGN(Layout layout, parse_owner_layout(random_.owners));
  if (converted_.empty()) {
    const std::size_t rules = layout.rules.size();
    converted_.assign(rules, false);
    for (std::size_t i = 0; residual_ && i < rules; ++i) converted_[i] = prng_.below(2) == 0;
    if (residual_) converted_[static_cast<std::size_t>(prng_.below(rules))] = true;
  }
  for (std::size_t i = 0; i < converted_.size(); ++i) layout.rules[i].convert = converted_[i];
  return OwnerPlan::make(catalogue(), std::move(layout));
}

Status SimModel::make_owners(std::vector<std::unique_ptr<SimOwner>>* made) {
  DCR_ASSIGN(const OwnerPlan plan, owner_plan());
  if (residual_ && sim_ranks_ == nullptr) {
    sim_ranks_ = std::make_unique<SimRanks>(plan.ranks());
    meeting_ = make_executor(plan.ranks());
  }
  std::vector<OwnerInput> inputs;
  std::vector<OwnerDeclaration> declarations;
  for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank) {
    auto owner = std::make_unique<SimOwner>();
    OwnerRank of_rank = plan.rank(catalogue(), rank);
    for (const std::uint64_t bytes : of_rank.storage_bytes) {
      owner->memory_.add(owner->storages_.emplace_back(static_cast<std::size_t>(bytes)));
    }
    owner->tasks_ = std::move(of_rank.tasks);
    OwnerInput input{rank, owner->tasks_, {}, {}, &owner->memory_, nullptr};
    if (residual_) {
      owner->collective_ = std::make_unique<SimCollective>(*sim_ranks_, rank);
      input.collective = owner->collective_.get();
      owner->converters_ = make_rule_converters(catalogue(), plan, rank, owner->memory_);
      for (const auto& converter : owner->converters_) input.converters.push_back(converter.get());
    }
    DCR_ASSIGN(OwnerDeclaration declaration, declare_owner(input));
    declarations.push_back(std::move(declaration));
    inputs.push_back(std::move(input));
    made->push_back(std::move(owner));
  }
  DCR_ASSIGN(const std::shared_ptr<const Geometry> geometry,
             Geometry::make(catalogue(), declarations));
  OwnerOptions options;
  options.bucket_bytes = bucket_bytes_;
  for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank) {
    SimOwner& owner = *(*made)[rank];
    DCR_ASSIGN(owner.owner_, Owner::create(geometry, std::move(inputs[rank]), ""));
    DCR_ASSIGN(owner.group_, OwnerGroup::create({owner.owner_.get()}, *owner.executor_, options));
  }
  return {};
}

Result<std::unique_ptr<SimReceiver>> SimModel::make_receiver(std::uint32_t rank) {
  auto made = std::make_unique<SimReceiver>(catalogue(), plans_[rank], rank);
  DCR_ASSIGN(made->receiver_, Receiver::create(catalogue(), made->loader_, made->guarded_,
                                               *executor_, receiver_options_));
  made->set_image(dense(0, rank));
  DCR_TRY(made->receiver_->prewarm());
  return made;
}

Status SimModel::make_receivers() {
  ReceiverOptions& options = receiver_options_;
  for (const auto& owner : owners_) {
    std::vector<OwnerBox>& boxes = options.owners.emplace_back();
    for (auto& [tensor, box] : owner->owner().item_boxes()) boxes.push_back({tensor, box});
  }
  DCR_ASSIGN(Layout layout, parse_receiver_layout(random_.receivers));
  for (const TargetBuffer& buffer : layout.buffers) options.never_loaded.push_back(buffer.name);
  options.decoded_bytes_max = prng_.below(2) == 0 ? kMiB : remembered_bytes_max(options.owners);
  options.post_apply_checks = prng_.below(4) == 0;
  options.prefer_scratch = prng_.below(4) == 0;
  DCR_ASSIGN(const ReceiverPlan plan, ReceiverPlan::make(catalogue(), std::move(layout)));
  ranks_ = plan.ranks();
  engines_ = ranks_ == 1 ? 3 : ranks_ == 2 || prng_.below(4) == 0 ? 2 : 1;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    DCR_ASSIGN(ReceiverRank of_rank, plan.rank(catalogue(), rank));
    plans_.push_back(std::move(of_rank));
  }
  collective_.assign(catalogue().size(), false);
  for (std::uint32_t index = 0; index < receivers(); ++index) {
    DCR_ASSIGN(std::unique_ptr<SimReceiver> made, make_receiver(index % ranks_));
    for (std::uint32_t t = 0; t < catalogue().size(); ++t) {
      if (made->receiver_->classes()[t].collective) collective_[t] = true;
    }
    receivers_.push_back(std::move(made));
  }
  for (const auto& made : receivers_) {
    DCR_TRY(require_scratch(*made));
    for (const TensorClass& one : made->receiver_->classes()) {
      if (one.path == TensorPath::kRefused) return Status(Code::kUnsupported, one.reason);
    }
  }
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    fingerprints_.push_back(receivers_[rank]->receiver_->fingerprint());
    needs_.push_back(needs_of(receivers_[rank]->receiver_->classes()));
  }
  return {};
}

// What one of the receivers loads together with others takes the same way on all.
Status SimModel::require_scratch(SimReceiver& receiver) const {
  for (std::uint32_t t = 0; t < catalogue().size(); ++t) {
    if (collective_[t]) DCR_TRY(receiver.receiver_->require_scratch(t));
  }
  return {};
}

SimOwner& SimModel::owner(std::uint32_t rank, bool spare) {
  if (spare && spare_owners_.empty()) DCR_ASSERT(make_owners(&spare_owners_).ok());
  return *(spare ? spare_owners_ : owners_)[rank];
}

SimReceiver& SimModel::receiver(std::uint32_t index, bool spare) {
  if (!spare) return *receivers_[index];
  spare_receivers_.resize(receivers_.size());
  std::unique_ptr<SimReceiver>& made = spare_receivers_[index];
  if (!made) {
    made = make_receiver(index % ranks_).value();
    DCR_ASSERT(require_scratch(*made).ok());
  }
  return *made;
}

void SimModel::unguard() {
  for (const auto* const made : {&receivers_, &spare_receivers_}) {
    for (const auto& receiver : *made) {
      if (receiver) receiver->memory().set_guard(nullptr);
    }
  }
}

std::size_t SimModel::items() const {
  std::size_t count = 0;
  for (const auto& owner : owners_) count += owner->owner_->item_boxes().size();
  return count;
}

std::vector<Status> SimModel::together(std::span<SimOwner* const> owners,
                                       std::span<const std::function<Status()>> phases,
                                       const CollectiveFault& fault) {
  std::vector<Status> results(owners.size());
  if (!residual_) {
    for (std::size_t i = 0; i < owners.size(); ++i) results[i] = phases[i]();
    return results;
  }
  sim_ranks_->begin(fault);
  std::atomic<std::size_t> left{owners.size()};
  for (std::uint32_t rank = 0; rank < owners.size(); ++rank) {
    sim_ranks_->connect(rank, owners[rank]->owner().residual());
  }
  for (std::size_t i = 0; i < owners.size(); ++i) {
    meeting_->submit([&, i] {
      results[i] = phases[i]();
      owners[i]->collective_->leave();
      --left;
    });
  }
  meeting_->wait([&left] { return left == 0; });
  return results;
}

// One after the other where owners do not meet.
void SimModel::for_all_owners(std::uint32_t weights,
                              const std::function<Status(std::uint32_t)>& phase) {
  std::vector<SimOwner*> all;
  std::vector<std::function<Status()>> phases;
  for (std::uint32_t rank = 0; rank < owners(); ++rank) {
    owners_[rank]->load(shards(weights, rank));
    all.push_back(owners_[rank].get());
    phases.emplace_back([&phase, rank] { return phase(rank); });
  }
  for (const Status& status : together(all, phases)) DCR_ASSERT(status.ok());
}

void SimModel::initialize_owners() {
  for_all_owners(0, [this](std::uint32_t rank) { return owners_[rank]->group().initialize(0); });
}

std::uint64_t SimModel::payloads() {
  std::vector<Need> wanted = needs_[0];
  for (const std::vector<Need>& of_rank : needs_) add_needs(of_rank, &wanted);
  initialize_owners();
  std::vector<CountingSink> sinks(owners());
  for_all_owners(kUnrelated, [&](std::uint32_t rank) {
    Attempt attempt;
    attempt.attempt = 1;
    attempt.target_version = 1;
    attempt.needs = wanted;
    std::array<PayloadSink*, 1> sink = {&sinks[rank]};
    return owners_[rank]->group().prepare(attempt, sink).status();
  });
  std::uint64_t payloads = 0;
  for (std::uint32_t rank = 0; rank < owners(); ++rank) {
    payloads += sinks[rank].payloads;
    owners_[rank]->group().drop_attempt();
    owners_[rank]->forget();
  }
  return payloads;
}

const std::vector<Bytes>& SimModel::shards(std::uint32_t weights, std::uint32_t owner) {
  std::vector<Bytes>& made = shards_[std::uint64_t{weights} << 32 | owner];
  if (!made.empty()) return made;
  SetReader reader(catalogue(), weights_[weights]);
  SimOwner& of = *owners_[owner];
  for (std::size_t i = 0; i < of.tasks_.size(); ++i) {
    Bytes& shard = made.emplace_back(of.storages_[i].size());
    DCR_ASSERT(fill_shard(catalogue(), of.tasks_[i], reader, shard).ok());
  }
  return made;
}

const Image& SimModel::dense(std::uint32_t weights, std::uint32_t rank) {
  Image& made = dense_[std::uint64_t{weights} << 32 | rank];
  if (!made.empty()) return made;
  SetReader reader(catalogue(), weights_[weights]);
  SimReceiver fresh(catalogue(), plans_[rank], rank);
  DCR_ASSERT(load_dense(catalogue(), reader, fresh.guarded_, fresh.loader_).ok());
  DCR_ASSERT(fresh.loader_.process_after_loading().ok());
  made = fresh.storages_;
  return made;
}

const std::vector<std::vector<Digest>>& SimModel::digests(std::uint32_t weights) {
  std::vector<std::vector<Digest>>& made = digests_[weights];
  if (!made.empty()) return made;
  for (const auto& owner : owners_) {
    std::vector<Digest>& of = made.emplace_back();
    for (const auto& [tensor, box] : owner->owner().item_boxes()) {
      const unsigned width = word_bytes(catalogue()[tensor].dtype);
      of.push_back(tensor_digest(box_words(box, width, weights_[weights][tensor])));
    }
  }
  return made;
}

void SimModel::scramble(Prng& prng, std::uint32_t rank, Image* image) {
  const Image& varying = varying_[rank];
  for (std::size_t i = 0; i < varying.size(); ++i) {
    for (std::size_t at = 0; at < varying[i].size(); ++at) {
      if (varying[i][at] != 0) (*image)[i][at] = static_cast<std::uint8_t>(prng.next());
    }
  }
}

}  // namespace dcr
