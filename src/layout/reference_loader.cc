#include "layout/reference_loader.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "tensor/cast.h"
#include "tensor/text.h"
#include "tensor/view.h"

namespace dcr {

namespace {

// A storage of the loader's own, released at the end.
class Temporary {
 public:
  explicit Temporary(TargetMemory& memory) : memory_(memory) {}
  ~Temporary() {
    if (made_) static_cast<void>(memory_.release(storage_));
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  Status make(std::uint64_t bytes) {
    DCR_ASSIGN(storage_, memory_.allocate(bytes));
    made_ = true;
    return {};
  }
  std::uint64_t storage() const { return storage_; }

 private:
  TargetMemory& memory_;
  std::uint64_t storage_ = 0;
  bool made_ = false;
};

// Calls `visit` for each block of a range of words.
Status each_block(std::uint64_t words,
                  const std::function<Status(std::uint64_t first, std::uint64_t count)>& visit) {
  for (std::uint64_t first = 0; first < words; first += kBlockWords) {
    DCR_TRY(visit(first, std::min(kBlockWords, words - first)));
  }
  return {};
}

Bytes word_buffer(Dtype dtype, std::uint64_t words) {
  return Bytes(static_cast<std::size_t>(words) * word_bytes(dtype));
}

// destination[i] = cast(source[i]), as the runtime's copy does it.
Status move_words(TargetMemory& memory, const TensorView& source, const TensorView& destination) {
  DCR_TRY(cast_supported(source.dtype, destination.dtype));
  return each_block(view_words(source), [&](std::uint64_t first, std::uint64_t count) {
    Bytes read = word_buffer(source.dtype, count);
    Bytes cast = word_buffer(destination.dtype, count);
    DCR_TRY(read_range(memory, source, first, read));
    cast_words(source.dtype, destination.dtype, read, cast);
    return write_range(memory, destination, first, cast);
  });
}

Status fill_words(TargetMemory& memory, const TensorView& view, ByteSpan word) {
  return each_block(view_words(view), [&](std::uint64_t first, std::uint64_t count) {
    Bytes bytes;
    for (std::uint64_t i = 0; i < count; ++i) bytes.insert(bytes.end(), word.begin(), word.end());
    return write_range(memory, view, first, bytes);
  });
}

// A tensor of the loader's own, contiguous and of the view's sizes: `change` of its elements, as
// F32, `group` of them at a time.
using Change = std::function<void(std::span<float>)>;

Status change_words(TargetMemory& memory, const TensorView& source, std::uint64_t group,
                    const Change& change, std::uint64_t storage) {
  DCR_TRY(cast_supported(source.dtype, Dtype::kF32));
  const TensorView made = contiguous_view(storage, source.dtype, source.sizes);
  const std::uint64_t words = view_words(source);
  const std::uint64_t step = group * std::max<std::uint64_t>(1, kBlockWords / group);
  for (std::uint64_t first = 0; first < words; first += step) {
    const std::uint64_t count = std::min(step, words - first);
    Bytes bytes = word_buffer(source.dtype, count);
    std::vector<float> values(count);
    const MutableByteSpan as_bytes(reinterpret_cast<std::uint8_t*>(values.data()),
                                   count * sizeof(float));
    DCR_TRY(read_range(memory, source, first, bytes));
    cast_words(source.dtype, Dtype::kF32, bytes, as_bytes);
    for (std::uint64_t at = 0; at < count; at += group) {
      change(std::span(values).subspan(at, std::min(group, count - at)));
    }
    cast_words(Dtype::kF32, source.dtype, as_bytes, bytes);
    DCR_TRY(write_range(memory, made, first, bytes));
  }
  return {};
}

void normalise(std::span<float> row) {
  float sum = 0;
  for (const float x : row) sum += x * x;
  const float length = std::max(std::sqrt(sum), 1e-12F);
  for (float& x : row) x /= length;
}

void nan_to_num(std::span<float> values) {
  for (float& x : values) x = std::isnan(x) ? 0.0F : x;
}

void clip(std::span<float> values) {
  for (float& x : values) x = std::fmin(std::fmax(x, -1.0F), 1.0F);
}

void double_all(std::span<float> values) {
  for (float& x : values) x *= 2.0F;
}

void negative_exp(std::span<float> values) {
  for (float& x : values) x = -std::exp(x);
}

// What makes the given tensor into what is copied, where that is a tensor of the loader's own.
Change change_of_given(Behaviour behaviour) {
  switch (behaviour) {
    case Behaviour::kNormalise:
      return normalise;
    case Behaviour::kNanToNum:
      return nan_to_num;
    case Behaviour::kClip:
      return clip;
    default:
      return nullptr;
  }
}

TensorView source_view(std::uint64_t storage, Dtype dtype, const Box& box) {
  TensorView view{storage, dtype, box.src_offset, {}, {}};
  for (const BoxDimension& dim : box.dims) {
    view.sizes.push_back(dim.size);
    view.strides.push_back(dim.src_stride);
  }
  return view;
}

}  // namespace

struct ReferenceLoader::Call {
  std::uint32_t tensor = 0;
  const LoadSteps& steps;
  const TensorView& value;
  LoaderHook& hook;

  // Whether the loader shall do it itself.
  Result<bool> announce(LoaderEventKind kind, const char* operation, const TensorView& destination,
                        std::optional<TensorView> source = {}, std::uint64_t fill_word = 0) {
    DCR_ASSIGN(const LoaderVerdict verdict,
               hook.on_event({kind, operation, destination, std::move(source), fill_word}));
    return verdict == LoaderVerdict::kPerform;
  }
};

ReferenceLoader::ReferenceLoader(const Catalogue& catalogue, ReceiverRank plan,
                                 TargetMemory& memory, std::uint32_t rank)
    : catalogue_(catalogue),
      plan_(std::move(plan)),
      memory_(memory),
      rank_(rank),
      times_(catalogue.size(), 0) {}

Result<LoadReport> ReferenceLoader::load(std::string_view name, const TensorView& value,
                                         LoaderHook& hook) {
  const std::int64_t found = catalogue_.find(name);
  if (found < 0) {
    return Status(Code::kNotFound, "loader: no parameter takes tensor " + quoted_name(name),
                  std::string(name));
  }
  const auto index = static_cast<std::uint32_t>(found);
  const CanonicalTensor& tensor = catalogue_[index];
  if (value != contiguous_view(value.storage, tensor)) {
    return Status(Code::kInvalidArgument,
                  "loader: tensor " + quoted_name(name) + " is not the whole tensor of shape " +
                      shape_text(tensor.shape),
                  tensor.name);
  }
  Call call{index, plan_.steps[index], value, hook};
  const std::uint32_t turn = times_[index]++;
  switch (call.steps.behaviour) {
    case Behaviour::kSkip:
      return LoadReport::kSkipped;
    case Behaviour::kClaimLoaded:
      return LoadReport::kLoaded;
    case Behaviour::kAlternate:
      if (turn % 2 == 1) return LoadReport::kSkipped;
      break;
    default:
      break;
  }
  const Status status = run(call);
  if (!status.ok()) return status;
  return call.steps.behaviour == Behaviour::kClaimSkipped ? LoadReport::kSkipped
                                                          : LoadReport::kLoaded;
}

TensorView ReferenceLoader::destination(const LoadWrite& write) const {
  const TensorView& target = plan_.targets[write.target].view;
  TensorView view{target.storage, target.dtype, write.box.dst_offset, {}, {}};
  for (const BoxDimension& dim : write.box.dims) {
    view.sizes.push_back(dim.size);
    view.strides.push_back(dim.dst_stride);
  }
  return view;
}

Status ReferenceLoader::run(Call& call) {
  const Behaviour behaviour = call.steps.behaviour;
  if (behaviour == Behaviour::kReplace) return replace(call);
  if (behaviour == Behaviour::kCollective) {
    const Result<bool> ours = call.announce(LoaderEventKind::kCollective, "all_reduce", call.value);
    if (!ours.ok()) return ours.status();
  }
  if (behaviour == Behaviour::kZeroGiven && rank_ != 0) {
    DCR_ASSIGN(const bool ours, call.announce(LoaderEventKind::kOther, "zero_", call.value));
    const Bytes zero(word_bytes(call.value.dtype), 0);
    if (ours) DCR_TRY(fill_words(memory_, call.value, zero));
  }
  const Change change = change_of_given(behaviour);
  Temporary changed(memory_);
  std::uint64_t source = call.value.storage;
  if (change) {
    const Shape& sizes = call.value.sizes;
    const bool rows = behaviour == Behaviour::kNormalise && !sizes.empty();
    const std::uint64_t group = rows ? std::max<std::uint64_t>(1, sizes.back()) : 1;
    DCR_TRY(changed.make(view_words(call.value) * word_bytes(call.value.dtype)));
    DCR_TRY(change_words(memory_, call.value, group, change, changed.storage()));
    source = changed.storage();
  }
  DCR_TRY(write_all(call, source));
  if (behaviour == Behaviour::kTwice) DCR_TRY(write_all(call, source));
  return fill_padding(call);
}

Status ReferenceLoader::write_all(Call& call, std::uint64_t source_storage) {
  for (const LoadWrite& write : call.steps.writes) {
    DCR_TRY(write_one(call, write, source_storage));
  }
  return {};
}

Status ReferenceLoader::write_one(Call& call, const LoadWrite& write,
                                  std::uint64_t source_storage) {
  const TensorView source = source_view(source_storage, call.value.dtype, write.box);
  const TensorView destination = this->destination(write);
  switch (call.steps.behaviour) {
    case Behaviour::kFill:
      return fill_one(call, destination);
    case Behaviour::kUnannounced:
      return move_words(memory_, source, destination);
    case Behaviour::kIndexPut: {
      DCR_ASSIGN(const bool ours,
                 call.announce(LoaderEventKind::kOther, "index_put_", destination));
      return ours ? move_words(memory_, source, destination) : Status();
    }
    case Behaviour::kContiguous: {
      Temporary clone(memory_);
      DCR_TRY(clone.make(view_words(source) * word_bytes(source.dtype)));
      const TensorView cloned = contiguous_view(clone.storage(), source.dtype, source.sizes);
      DCR_TRY(move_words(memory_, source, cloned));
      return copy(call, cloned, destination);
    }
    case Behaviour::kDouble:
    case Behaviour::kNegativeExp:
      DCR_TRY(copy(call, source, destination));
      return write_over(call, destination);
    default:
      return copy(call, source, destination);
  }
}

Status ReferenceLoader::write_over(Call& call, const TensorView& written) {
  Temporary changed(memory_);
  DCR_TRY(changed.make(view_words(written) * word_bytes(written.dtype)));
  const bool exponent = call.steps.behaviour == Behaviour::kNegativeExp;
  const Change change = exponent ? negative_exp : double_all;
  DCR_TRY(change_words(memory_, written, 1, change, changed.storage()));
  return copy(call, contiguous_view(changed.storage(), written.dtype, written.sizes), written);
}

Status ReferenceLoader::fill_one(Call& call, const TensorView& destination) {
  if (view_words(call.value) != 1) {
    return {Code::kUnsupported, "loader: tensor " + quoted_name(catalogue_[call.tensor].name) +
                                    " fills a parameter but has more than one element"};
  }
  Bytes word = word_buffer(call.value.dtype, 1);
  Bytes cast = word_buffer(destination.dtype, 1);
  DCR_TRY(cast_supported(call.value.dtype, destination.dtype));
  DCR_TRY(memory_.read(call.value, word));
  cast_words(call.value.dtype, destination.dtype, word, cast);
  std::uint64_t number = 0;
  for (std::size_t i = cast.size(); i-- > 0;) number = number << 8 | cast[i];
  DCR_ASSIGN(const bool ours,
             call.announce(LoaderEventKind::kFill, "fill_", destination, {}, number));
  return ours ? fill_words(memory_, destination, cast) : Status();
}

Status ReferenceLoader::fill_padding(Call& call) {
  for (const LoadFill& fill : call.steps.fills) {
    const TensorView& target = plan_.targets[fill.target].view;
    const TensorView padding{
        target.storage, target.dtype, fill.begin, {fill.end - fill.begin}, {1}};
    DCR_ASSIGN(const bool ours, call.announce(LoaderEventKind::kFill, "fill_", padding));
    const Bytes zero(word_bytes(target.dtype), 0);
    if (ours) DCR_TRY(fill_words(memory_, padding, zero));
  }
  return {};
}

Status ReferenceLoader::replace(Call& call) {
  std::set<std::uint32_t> targets;
  for (const LoadWrite& write : call.steps.writes) targets.insert(write.target);
  for (const std::uint32_t target : targets) {
    TensorView& view = plan_.targets[target].view;
    DCR_ASSIGN(const bool ours, call.announce(LoaderEventKind::kReplace, "set_data", view));
    if (!ours) continue;
    TensorView fresh = view;
    DCR_ASSIGN(fresh.storage, memory_.allocate(view_words(view) * word_bytes(view.dtype)));
    DCR_TRY(move_words(memory_, view, fresh));
    view = fresh;
    for (const LoadWrite& write : call.steps.writes) {
      if (write.target != target) continue;
      DCR_TRY(move_words(memory_, source_view(call.value.storage, call.value.dtype, write.box),
                         destination(write)));
    }
  }
  return {};
}

Status ReferenceLoader::copy(Call& call, const TensorView& source, const TensorView& destination) {
  DCR_ASSIGN(const bool ours, call.announce(LoaderEventKind::kCopy, "copy_", destination, source));
  return ours ? move_words(memory_, source, destination) : Status();
}

Status ReferenceLoader::process_after_loading() {
  std::set<std::uint32_t> targets;
  for (const LoadSteps& steps : plan_.steps) {
    if (steps.behaviour != Behaviour::kSwapAfterLoad) continue;
    for (const LoadWrite& write : steps.writes) targets.insert(write.target);
  }
  for (const std::uint32_t target : targets) {
    const TensorView& view = plan_.targets[target].view;
    const std::uint64_t half = view_words(view) / 2;
    const auto swap = [&](std::uint64_t first, std::uint64_t count) -> Status {
      Bytes low = word_buffer(view.dtype, count);
      Bytes high = word_buffer(view.dtype, count);
      DCR_TRY(read_range(memory_, view, first, low));
      DCR_TRY(read_range(memory_, view, half + first, high));
      DCR_TRY(write_range(memory_, view, first, high));
      return write_range(memory_, view, half + first, low);
    };
    DCR_TRY(each_block(half, swap));
  }
  return {};
}

Status load_dense(const Catalogue& catalogue, CanonicalReader& reader, TargetMemory& memory,
                  Loader& loader) {
  PerformHook hook;
  for (std::uint32_t i = 0; i < catalogue.size(); ++i) {
    const CanonicalTensor& tensor = catalogue[i];
    Temporary given(memory);
    DCR_TRY(given.make(tensor.words * word_bytes(tensor.dtype)));
    const TensorView value = contiguous_view(given.storage(), tensor);
    const auto give = [&](std::uint64_t first, std::uint64_t count) -> Status {
      Bytes bytes = word_buffer(tensor.dtype, count);
      DCR_TRY(reader.read(i, first, bytes));
      return write_range(memory, value, first, bytes);
    };
    DCR_TRY(each_block(tensor.words, give));
    const Result<LoadReport> report = loader.load(tensor.name, value, hook);
    if (!report.ok()) return report.status();
  }
  return {};
}

}  // namespace dcr
