#include "receiver/host_memory.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/assert.h"
#include "receiver/grid.h"
#include "receiver/views.h"
#include "simd/kernels.h"
#include "simd/words.h"

namespace dcr {

namespace {

// Words are far apart where little changes: each is asked for so many changes before its turn.
constexpr std::size_t kAhead = 32;

inline void prefetch_word(const std::uint8_t* storage, std::uint64_t word, unsigned width) {
  __builtin_prefetch(storage + word * width, 1, 2);
}

// Calls `visit(word, place)` for each hit: the storage's word, and the position's place in
// `positions`, all of which are hits of a contiguous grid. Returns their number. `values`: what
// will be read at those places.
template <typename Word, typename Visit>
std::uint64_t for_each_hit(const std::uint8_t* storage, const Grid& grid,
                           std::span<const std::uint32_t> positions, const Word* values,
                           Visit visit) {
  if (grid.contiguous()) {
    // Locals, `visit` too: a store to the storage could be one to anything else.
    const std::uint64_t begin = grid.word(0);
    const std::size_t count = positions.size();
    const std::size_t far = count > kAhead ? count - kAhead : 0;
    std::size_t i = 0;
    for (; i < far; ++i) {
      prefetch_word(storage, begin + positions[i + kAhead], sizeof(Word));
      visit(begin + positions[i], i);
    }
    for (; i < count; ++i) visit(begin + positions[i], i);
    return count;
  }
  // The words of one block are on their way while those of the block before it are visited.
  GridHits blocks[2];
  const auto map_block = [&](std::size_t at, GridHits* hits) {
    grid.map(positions.subspan(at, std::min(kGridBlock, positions.size() - at)), hits);
    for (std::size_t i = 0; i < hits->count; ++i) {
      prefetch_word(storage, hits->words[i], sizeof(Word));
      __builtin_prefetch(values + at + hits->places[i], 0, 2);
    }
  };
  std::uint64_t count = 0;
  std::size_t block = 0;
  map_block(0, &blocks[0]);
  for (std::size_t done = 0; done < positions.size(); done += kGridBlock, block ^= 1) {
    if (done + kGridBlock < positions.size()) map_block(done + kGridBlock, &blocks[block ^ 1]);
    const GridHits& hits = blocks[block];
    for (std::size_t i = 0; i < hits.count; ++i) visit(hits.words[i], done + hits.places[i]);
    count += hits.count;
  }
  return count;
}

template <typename Word, Encoding kEncoding>
std::uint64_t write_words(std::uint8_t* storage, const Grid& grid,
                          std::span<const std::uint32_t> positions, const Word* values) {
  return for_each_hit(storage, grid, positions, values, [=](std::uint64_t word, std::size_t place) {
    const Word resident =
        kEncoding == Encoding::kOverwrite ? Word{0} : load_word<Word>(storage, word);
    store_word(storage, word, decode_word(kEncoding, resident, values[place]));
  });
}

template <typename Word>
std::uint64_t write_words(Encoding encoding, std::uint8_t* storage, const Grid& grid,
                          std::span<const std::uint32_t> positions, const Word* values) {
  switch (encoding) {
    case Encoding::kXor:
      return write_words<Word, Encoding::kXor>(storage, grid, positions, values);
    case Encoding::kAdd:
      return write_words<Word, Encoding::kAdd>(storage, grid, positions, values);
    case Encoding::kOverwrite:
      break;
  }
  return write_words<Word, Encoding::kOverwrite>(storage, grid, positions, values);
}

template <typename Word>
void compare_words(const std::uint8_t* storage, const Grid& grid,
                   std::span<const std::uint32_t> positions, const Word* values,
                   ApplyCounts* counts) {
  std::uint64_t different = 0;
  counts->words +=
      for_each_hit(storage, grid, positions, values, [&](std::uint64_t word, std::size_t place) {
        different += load_word<Word>(storage, word) != values[place] ? 1u : 0u;
      });
  counts->different += different;
}

// Consecutive positions of a contiguous grid.
template <typename Word>
void apply_run(Encoding encoding, std::uint8_t* at, const Word* values, std::size_t count,
               ApplyMode mode, ApplyCounts* counts) {
  counts->words += count;
  if (mode == ApplyMode::kWrite) {
    kernels().apply_dense(sizeof(Word), encoding, values, count, at);
    return;
  }
  const auto* wanted = reinterpret_cast<const std::uint8_t*>(values);
  counts->different += kernels().count_changes(sizeof(Word), {wanted, at, 1, count, 0, 0});
}

// Copies between a view's words, in the order of its indices, and a buffer.
struct ViewCopy {
  std::uint8_t* storage;
  std::uint8_t* buffer;
  unsigned width;
  bool out;  // from the storage

  void run(std::uint64_t word, std::uint64_t stride, std::uint64_t count) {
    std::uint8_t* at = storage + word * width;
    if (stride == 1) {
      const auto bytes = static_cast<std::size_t>(count * width);
      std::memcpy(out ? buffer : at, out ? at : buffer, bytes);
      buffer += bytes;
      return;
    }
    for_width(width, [&]<typename Word>(Word) {
      for (std::uint64_t i = 0; i < count; ++i) {
        if (out) {
          store_word(buffer, i, load_word<Word>(at, i * stride));
        } else {
          store_word(at, i * stride, load_word<Word>(buffer, i));
        }
      }
    });
    buffer += count * width;
  }
};

void copy_view(const TensorView& view, ViewCopy copy) {
  for_each_row(view, [&copy](std::uint64_t word, std::uint64_t stride, std::uint64_t count) {
    copy.run(word, stride, count);
  });
}

}  // namespace

std::uint64_t HostMemory::insert(Storage storage) {
  storages_.emplace(next_, std::move(storage));
  return next_++;
}

std::uint64_t HostMemory::add(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Storage storage;
  storage.owned = std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(bytes));
  storage.bytes = {storage.owned.get(), static_cast<std::size_t>(bytes)};
  return insert(std::move(storage));
}

std::uint64_t HostMemory::add(MutableByteSpan memory) {
  const std::lock_guard lock(mutex_);
  Storage storage;
  storage.bytes = memory;
  return insert(std::move(storage));
}

Status HostMemory::remove(std::uint64_t storage) {
  const std::lock_guard lock(mutex_);
  const auto found = storages_.find(storage);
  if (found == storages_.end() || found->second.scratch) {
    return Status(Code::kNotFound,
                  "there is no storage " + std::to_string(storage) + " that was added");
  }
  storages_.erase(found);
  return {};
}

MutableByteSpan HostMemory::bytes(std::uint64_t storage) {
  const Result<MutableByteSpan> found = find(storage);
  DCR_ASSERT(found.ok());
  return *found;
}

std::uint64_t HostMemory::scratch_bytes() const {
  const std::lock_guard lock(mutex_);
  return scratch_bytes_;
}

std::uint64_t HostMemory::scratch_bytes_peak() const {
  const std::lock_guard lock(mutex_);
  return scratch_bytes_peak_;
}

Result<MutableByteSpan> HostMemory::find(std::uint64_t storage) const {
  const std::lock_guard lock(mutex_);
  const auto found = storages_.find(storage);
  if (found != storages_.end()) return found->second.bytes;
  return Status(Code::kNotFound, "there is no storage " + std::to_string(storage));
}

Result<std::uint64_t> HostMemory::storage_bytes(std::uint64_t storage) const {
  DCR_ASSIGN(const MutableByteSpan bytes, find(storage));
  return std::uint64_t{bytes.size()};
}

Status HostMemory::apply(const TargetChanges& target, std::span<const std::uint32_t> positions,
                         const void* values, ApplyMode mode, ApplyCounts* counts) {
  DCR_ASSIGN(const MutableByteSpan storage, find(target.storage));
  DCR_TRY(check_target(target, storage.size()));
  DCR_TRY(check_positions(target, positions, mode));
  if (positions.empty()) return {};
  const Grid grid(target);
  std::size_t from = 0;
  std::size_t to = 0;
  grid.clip(positions, &from, &to);
  positions = positions.subspan(from, to - from);
  if (positions.empty()) return {};
  const bool run = grid.contiguous() && positions.back() - positions[0] + 1 == positions.size();
  for_width(target.width, [&]<typename Word>(Word) {
    const Word* words = static_cast<const Word*>(values) + from;
    if (run) {
      std::uint8_t* at = storage.data() + grid.word(positions[0]) * sizeof(Word);
      apply_run(target.encoding, at, words, positions.size(), mode, counts);
    } else if (mode == ApplyMode::kVerify) {
      compare_words(storage.data(), grid, positions, words, counts);
    } else {
      counts->words += write_words(target.encoding, storage.data(), grid, positions, words);
    }
  });
  return {};
}

Status HostMemory::read(const TensorView& view, std::span<std::uint8_t> out) {
  DCR_ASSIGN(const MutableByteSpan storage, find(view.storage));
  DCR_TRY(check_view(view, storage.size(), out.size()));
  copy_view(view, {storage.data(), out.data(), word_bytes(view.dtype), true});
  return {};
}

Status HostMemory::write(const TensorView& view, std::span<const std::uint8_t> in) {
  DCR_ASSIGN(const MutableByteSpan storage, find(view.storage));
  DCR_TRY(check_view(view, storage.size(), in.size()));
  // The buffer is only read from: `out` is false.
  copy_view(view,
            {storage.data(), const_cast<std::uint8_t*>(in.data()), word_bytes(view.dtype), false});
  return {};
}

Result<std::uint64_t> HostMemory::allocate(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  DCR_TRY(check_scratch(bytes, scratch_bytes_, scratch_bytes_max_));
  Storage storage;
  storage.owned = std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(bytes));
  storage.bytes = {storage.owned.get(), static_cast<std::size_t>(bytes)};
  storage.scratch = true;
  scratch_bytes_ += bytes;
  scratch_bytes_peak_ = std::max(scratch_bytes_peak_, scratch_bytes_);
  return insert(std::move(storage));
}

Status HostMemory::release(std::uint64_t storage) {
  const std::lock_guard lock(mutex_);
  const auto found = storages_.find(storage);
  if (found == storages_.end() || !found->second.scratch) {
    return Status(Code::kNotFound, "there is no scratch storage " + std::to_string(storage));
  }
  scratch_bytes_ -= found->second.bytes.size();
  storages_.erase(found);
  return {};
}

}  // namespace dcr
