#include "source/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "source/test_plain_items.h"
#include "source/test_sink.h"

namespace dcr {
namespace {

// Two versions of some tensors; those without an old version are whole.
struct TestTensor {
  std::uint8_t width;
  bool whole;
  Bytes old_bytes, new_bytes;
};

std::vector<TestTensor> make_tensors(std::uint64_t seed) {
  Prng random(seed);
  std::vector<TestTensor> tensors;
  for (unsigned i = 0; i < 12; ++i) {
    const std::uint8_t width = static_cast<std::uint8_t>(1u << (i % 4));
    const std::uint64_t words = 1 + random.below(i % 5 == 0 ? 20'000 : 3000);
    TestTensor tensor = {width, i % 6 == 5, Bytes(static_cast<std::size_t>(words) * width), {}};
    for (std::uint8_t& byte : tensor.old_bytes) byte = static_cast<std::uint8_t>(random.next());
    tensor.new_bytes = tensor.old_bytes;
    const std::uint64_t one_in = 1 + random.below(100);
    for (std::uint64_t word = 0; i % 4 != 2 && word < words; ++word) {
      std::uint8_t* const byte = tensor.new_bytes.data() + word * width;
      if (random.below(one_in) == 0) *byte = static_cast<std::uint8_t>(*byte + 1);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// Pieces of at most `words` words, in order.
std::vector<Piece> make_pieces(const std::vector<TestTensor>& tensors, std::uint64_t words) {
  std::vector<Piece> pieces;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t all = tensors[i].new_bytes.size() / tensors[i].width;
    for (std::uint64_t at = 0; at < all; at += words) {
      pieces.push_back({i, tensors[i].width, ItemBox::range(at, std::min(words, all - at)),
                        tensors[i].whole, EncodingChoice::kSmallest});
    }
  }
  return pieces;
}

// Feeds pieces from memory in parts of `part_words` words; fails where told to.
class TestSource : public PieceSource {
 public:
  TestSource(const std::vector<TestTensor>& tensors, std::uint64_t part_words)
      : tensors_(tensors), part_words_(part_words) {}

  Status load(std::uint64_t index, const Piece& piece, PieceBuffers* buffers,
              const std::function<void(const ScanBox&)>& scan) override {
    for (const std::uint64_t failing : failing_pieces) {
      if (index == failing) return {Code::kIo, "piece " + std::to_string(index) + " is unreadable"};
    }
    const TestTensor& tensor = tensors_[piece.tensor];
    const std::size_t begin = static_cast<std::size_t>(piece.box.offset) * piece.width;
    const std::size_t bytes = static_cast<std::size_t>(piece.box.words()) * piece.width;
    const auto copy = [&](const Bytes& from) {
      const auto first = from.begin() + static_cast<std::ptrdiff_t>(begin);
      return Bytes(first, first + static_cast<std::ptrdiff_t>(bytes));
    };
    buffers->old_bytes = copy(tensor.old_bytes);
    buffers->new_bytes = copy(tensor.new_bytes);
    for (std::uint64_t done = 0; done < piece.box.words(); done += part_words_) {
      const std::uint64_t words = std::min(part_words_, piece.box.words() - done);
      const std::size_t at = static_cast<std::size_t>(done) * piece.width;
      scan({piece.whole ? nullptr : buffers->old_bytes.data() + at, buffers->new_bytes.data() + at,
            1, words, 0, 0});
    }
    return {};
  }

  bool keeps_parts() const override { return keep; }

  std::vector<std::uint64_t> failing_pieces;
  bool keep = true;

 private:
  const std::vector<TestTensor>& tensors_;
  std::uint64_t part_words_;
};

struct Outcome {
  Status status;
  PipelineResult result;
  std::vector<Bytes> payloads;
  std::vector<std::uint64_t> progress;
};

struct RunOptions {
  unsigned threads = 1;
  std::uint64_t window = 1;
  std::uint64_t sealing = 2;
  std::uint64_t bucket_bytes = 10'000;
  std::uint64_t piece_words = 700;
  std::uint64_t part_words = 700;
};

Outcome run_pipeline(
    const std::vector<TestTensor>& tensors, const RunOptions& options,
    const std::function<void(TestSource*, TestSink*, PipelineOptions*)>& prepare = {}) {
  const std::vector<Piece> pieces = make_pieces(tensors, options.piece_words);
  TestSource source(tensors, options.part_words);
  TestSink sink;
  Outcome run;
  PipelineOptions pipeline;
  pipeline.bucket_bytes = options.bucket_bytes;
  pipeline.window = options.window;
  pipeline.sealing = options.sealing;
  pipeline.header.attempt = 9;
  pipeline.progress = [&run](std::uint64_t bytes) { run.progress.push_back(bytes); };
  if (prepare) prepare(&source, &sink, &pipeline);
  const std::unique_ptr<Executor> executor = make_executor(options.threads);
  Result<PipelineResult> result = build_payloads(*executor, pieces, source, pipeline, sink);
  run.status = result.status();
  if (result.ok()) run.result = *result;
  run.payloads = std::move(sink.payloads);
  return run;
}

std::vector<TensorSpec> specs_of(const std::vector<TestTensor>& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const TestTensor& tensor : tensors) {
    specs.push_back({tensor.new_bytes.size() / tensor.width, tensor.width, false});
  }
  return specs;
}

std::vector<Payload> read_payloads(const std::vector<TestTensor>& tensors, const Outcome& run) {
  std::vector<Payload> payloads;
  const std::vector<TensorSpec> specs = specs_of(tensors);
  for (const Bytes& stored : run.payloads) {
    Result<Payload> payload =
        Payload::read(stored, Digest{}, specs, {kPayloadStoredBytesMax, kPayloadRawBytesMax});
    EXPECT_TRUE(payload.ok()) << payload.status().message();
    if (payload.ok()) payloads.push_back(std::move(payload).value());
  }
  return payloads;
}

std::vector<PlainItem> plain_items(const std::vector<Payload>& payloads) {
  std::vector<PlainItem> items;
  for (const Payload& payload : payloads) {
    for (const ItemView& view : payload.items()) {
      items.push_back(plain_item(view));
    }
  }
  return items;
}

TEST(Pipeline, PayloadsGiveTheNewVersion) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    std::vector<TestTensor> tensors = make_tensors(seed);
    const Outcome run = run_pipeline(tensors, {});
    ASSERT_TRUE(run.status.ok()) << run.status.message();
    std::uint64_t number = 0;
    std::uint64_t changed = 0;
    std::uint64_t items = 0;
    std::uint64_t bytes = 0;
    std::uint64_t raw_max = 0;
    for (const Payload& payload : read_payloads(tensors, run)) {
      EXPECT_EQ(payload.header().number, number);
      EXPECT_EQ(payload.header().attempt, 9u);
      bytes += run.payloads[static_cast<std::size_t>(number)].size();
      raw_max = std::max(raw_max, payload.raw_bytes());
      ++number;
      for (const ItemView& item : payload.items()) {
        TestTensor& tensor = tensors[item.header.tensor];
        if (!tensor.whole) changed += item.header.changes;
        ++items;
        const std::size_t width = tensor.width;
        apply_item(item, MutableByteSpan(tensor.old_bytes)
                             .subspan(static_cast<std::size_t>(item.header.box.offset) * width,
                                      static_cast<std::size_t>(item.header.box.words()) * width));
      }
    }
    for (const TestTensor& tensor : tensors) EXPECT_EQ(tensor.old_bytes, tensor.new_bytes);
    EXPECT_EQ(run.result.payloads, number);
    EXPECT_EQ(run.result.items, items);
    EXPECT_EQ(run.result.changed, changed);
    EXPECT_EQ(run.result.payload_bytes, bytes);
    EXPECT_EQ(run.result.payload_raw_bytes_max, raw_max);
    EXPECT_EQ(run.result.items_by_encoding[0] + run.result.items_by_encoding[1] +
                  run.result.items_by_encoding[2],
              items);
    std::uint64_t total = 0;
    for (const std::uint64_t piece : run.progress) total += piece;
    std::uint64_t expected = 0;
    for (const TestTensor& tensor : tensors) expected += tensor.new_bytes.size();
    EXPECT_EQ(total, expected);
  }
}

TEST(Pipeline, BytesDoNotDependOnThreadsWindowOrParts) {
  const std::vector<TestTensor> tensors = make_tensors(11);
  const Outcome reference = run_pipeline(tensors, {});
  ASSERT_TRUE(reference.status.ok());
  ASSERT_GT(reference.payloads.size(), 5u);
  for (const unsigned threads : {1u, 2u, 4u}) {
    for (const std::uint64_t window : {1u, 2u, 3u, 16u}) {
      for (const std::uint64_t sealing : {1u, 2u, 5u}) {
        for (const std::uint64_t part_words : {64u, 700u}) {
          const Outcome run =
              run_pipeline(tensors, {threads, window, sealing, 10'000, 700, part_words});
          ASSERT_TRUE(run.status.ok()) << run.status.message();
          ASSERT_EQ(run.payloads, reference.payloads)
              << threads << " threads, window " << window << ", sealing " << sealing;
          ASSERT_EQ(run.progress, reference.progress);
        }
      }
    }
  }
}

// A source whose parts do not stay is loaded again where overwrite may be smaller than add.
TEST(Pipeline, BytesDoNotDependOnWhetherPartsStay) {
  for (std::uint64_t seed = 20; seed < 30; ++seed) {
    std::vector<TestTensor> tensors = make_tensors(seed);
    Prng prng(seed);
    for (TestTensor& tensor : tensors) {  // some are replaced by zeros, some by anything
      if (prng.below(3) == 0) tensor.new_bytes.assign(tensor.new_bytes.size(), 0);
      if (prng.below(3) != 0) continue;
      for (std::uint8_t& byte : tensor.new_bytes) byte = static_cast<std::uint8_t>(prng.next());
    }
    const Outcome reference = run_pipeline(tensors, {});
    EXPECT_GT(reference.result.items_by_encoding[0], 0u);
    const Outcome again =
        run_pipeline(tensors, {2, 3, 2, 10'000, 700, 64},
                     [](TestSource* source, TestSink*, PipelineOptions*) { source->keep = false; });
    ASSERT_TRUE(again.status.ok());
    EXPECT_EQ(again.payloads, reference.payloads) << seed;
  }
}

TEST(Pipeline, ItemsDoNotDependOnTheBucket) {
  const std::vector<TestTensor> tensors = make_tensors(12);
  const std::vector<PlainItem> reference =
      plain_items(read_payloads(tensors, run_pipeline(tensors, {})));
  ASSERT_GT(reference.size(), 20u);
  for (const std::uint64_t bucket_bytes : {1u, 3000u, 40'000u, 1u << 30}) {
    for (const unsigned threads : {1u, 4u}) {
      const Outcome run = run_pipeline(tensors, {threads, 4, 2, bucket_bytes, 700, 700});
      ASSERT_TRUE(run.status.ok());
      EXPECT_TRUE(plain_items(read_payloads(tensors, run)) == reference) << bucket_bytes;
      if (bucket_bytes == 1) {
        EXPECT_EQ(run.payloads.size(), reference.size());
      }
      if (bucket_bytes == 1u << 30) {
        EXPECT_EQ(run.payloads.size(), 1u);
      }
    }
  }
}

// A bucket closes before the item that would take it above its bytes, and holds at least one; what
// did not change adds nothing.
TEST(Pipeline, BucketsAreCountedInInputBytesOfTheirItems) {
  const std::vector<TestTensor> tensors = make_tensors(13);
  constexpr std::uint64_t kBucket = 9000;
  const Outcome run = run_pipeline(tensors, {2, 3, 2, kBucket, 700, 700});
  ASSERT_TRUE(run.status.ok());
  std::vector<std::uint64_t> filled;
  std::vector<std::uint64_t> first;
  for (const Payload& payload : read_payloads(tensors, run)) {
    std::uint64_t bytes = 0;
    for (const ItemView& item : payload.items())
      bytes += item.header.box.words() * item.header.width;
    filled.push_back(bytes);
    ASSERT_FALSE(payload.items().empty());
    const ItemHeader& header = payload.items()[0].header;
    first.push_back(header.box.words() * header.width);
    EXPECT_TRUE(bytes <= kBucket || payload.items().size() == 1) << bytes;
  }
  ASSERT_GT(filled.size(), 3u);
  for (std::size_t i = 0; i + 1 < filled.size(); ++i) {
    EXPECT_GT(filled[i] + first[i + 1], kBucket) << i;
  }
}

TEST(Pipeline, WholePiecesAreCarriedAndNotCounted) {
  std::vector<TestTensor> tensors = make_tensors(14);
  tensors.resize(1);
  tensors[0].whole = true;
  tensors[0].new_bytes = tensors[0].old_bytes;  // equal, and carried all the same
  const Outcome run = run_pipeline(tensors, {});
  ASSERT_TRUE(run.status.ok());
  EXPECT_EQ(run.result.changed, 0u);
  EXPECT_EQ(run.result.items, run.result.items_by_encoding[0]);
  std::uint64_t words = 0;
  for (const PlainItem& item : plain_items(read_payloads(tensors, run))) {
    EXPECT_EQ(item.positions.size(), item.box.words());
    words += item.box.words();
  }
  EXPECT_EQ(words, tensors[0].new_bytes.size() / tensors[0].width);
}

TEST(Pipeline, NothingToDo) {
  const Outcome none = run_pipeline({}, {4, 4, 2, 10'000, 700, 700});
  ASSERT_TRUE(none.status.ok());
  EXPECT_EQ(none.result.payloads, 0u);
  std::vector<TestTensor> tensors = make_tensors(15);
  for (TestTensor& tensor : tensors) {
    tensor.whole = false;
    tensor.new_bytes = tensor.old_bytes;
  }
  const Outcome equal = run_pipeline(tensors, {4, 4, 2, 10'000, 700, 700});
  ASSERT_TRUE(equal.status.ok());
  EXPECT_EQ(equal.result.payloads, 0u);
  EXPECT_EQ(equal.result.items, 0u);
  EXPECT_TRUE(equal.payloads.empty());
  EXPECT_FALSE(equal.progress.empty());
}

// The first error in the pieces' order wins, whichever thread meets one first; what was sent before
// is a prefix.
TEST(Pipeline, SourceErrorsComeInOrder) {
  const std::vector<TestTensor> tensors = make_tensors(16);
  const Outcome whole = run_pipeline(tensors, {});
  for (const unsigned threads : {1u, 2u, 4u}) {
    for (const std::uint64_t window : {1u, 4u}) {
      const Outcome run = run_pipeline(tensors, {threads, window, 2, 10'000, 700, 700},
                                       [](TestSource* source, TestSink*, PipelineOptions*) {
                                         source->failing_pieces = {41, 40, 44};
                                       });
      EXPECT_EQ(run.status.code(), Code::kIo);
      EXPECT_EQ(run.status.message(), "piece 40 is unreadable");
      EXPECT_EQ(run.progress.size(), 40u);
      ASSERT_LT(run.payloads.size(), whole.payloads.size());
      EXPECT_TRUE(std::equal(run.payloads.begin(), run.payloads.end(), whole.payloads.begin()));
    }
  }
}

TEST(Pipeline, SinkErrorsEndIt) {
  const std::vector<TestTensor> tensors = make_tensors(17);
  const std::uint64_t payloads = run_pipeline(tensors, {}).payloads.size();
  for (const unsigned threads : {1u, 2u, 4u}) {
    for (const std::uint64_t failing : {std::uint64_t{0}, std::uint64_t{2}, payloads - 1}) {
      const Outcome run = run_pipeline(tensors, {threads, 4, 2, 10'000, 700, 700},
                                       [failing](TestSource*, TestSink* sink, PipelineOptions*) {
                                         sink->failing_payload = failing;
                                       });
      EXPECT_EQ(run.status.code(), Code::kIo);
      EXPECT_EQ(run.status.message(), "the sink is full");
      EXPECT_EQ(run.payloads.size(), failing);
    }
  }
}

TEST(Pipeline, CancelInTheMiddle) {
  const std::vector<TestTensor> tensors = make_tensors(18);
  for (const unsigned threads : {1u, 2u, 4u}) {
    CancelToken cancel;
    std::size_t done = 0;
    const Outcome run = run_pipeline(tensors, {threads, 4, 2, 10'000, 700, 700},
                                     [&](TestSource*, TestSink*, PipelineOptions* options) {
                                       options->cancel = &cancel;
                                       options->progress = [&](std::uint64_t) {
                                         if (++done == 30) cancel.cancel();
                                       };
                                     });
    EXPECT_EQ(run.status.code(), Code::kCancelled);
    EXPECT_EQ(done, 30u);
  }
}

// Readers take so many items a payload: more of them go into the next one, however small they are.
TEST(Pipeline, ABucketHoldsAsManyItemsAsReadersTake) {
  std::vector<TestTensor> tensors(1);
  tensors[0].width = 1;
  tensors[0].whole = false;
  tensors[0].old_bytes.assign(kItemsPerPayloadMax + 5, 0);
  tensors[0].new_bytes.assign(kItemsPerPayloadMax + 5, 1);
  const Outcome outcome = run_pipeline(tensors, {2, 64, 2, 1u << 30, 1, 1});
  ASSERT_TRUE(outcome.status.ok());
  const std::vector<Payload> payloads = read_payloads(tensors, outcome);
  ASSERT_EQ(payloads.size(), 2u);
  EXPECT_EQ(payloads[0].items().size(), kItemsPerPayloadMax);
  EXPECT_EQ(payloads[1].items().size(), 5u);
}

// However small they are.
TEST(Pipeline, AChunkHoldsSoManyPieces) {
  std::vector<TestTensor> tensors(1);
  tensors[0] = {1, false, Bytes(2 * kChunkPiecesMax + 1, 0), Bytes(2 * kChunkPiecesMax + 1, 1)};
  const std::vector<Piece> pieces = make_pieces(tensors, 1);
  TestSource source(tensors, 1);
  TestSink sink;
  const std::unique_ptr<Executor> executor = make_executor(1);
  Buckets buckets(*executor, {}, {}, sink);
  const Lane lane = {pieces, &source, &buckets, 0};
  SpanRecorder spans(&monotonic_clock());
  ScanOptions options;
  options.chunk_bytes = kGiB;
  options.spans = &spans;
  ASSERT_TRUE(scan_lanes(*executor, {&lane, 1}, options).ok());
  EXPECT_EQ(spans.take().size(), 3u);  // one of each chunk
  EXPECT_EQ(buckets.result().items, pieces.size());
}

TEST(Pipeline, SpansSayWhatAScanConsistsOf) {
  const auto stages = [](bool whole, bool parts, const char* stage) {
    std::vector<TestTensor> tensors(1);
    tensors[0] = {1, whole, Bytes(100, 0), Bytes(100, 1)};
    const std::vector<Piece> pieces = make_pieces(tensors, 100);
    TestSource source(tensors, 100);
    TestSink sink;
    const std::unique_ptr<Executor> executor = make_executor(1);
    Buckets buckets(*executor, {}, {}, sink);
    const Lane lane = {pieces, &source, &buckets, 7};
    SpanRecorder spans(&monotonic_clock(), parts);
    ScanOptions options;
    options.spans = &spans;
    options.stage = stage;
    EXPECT_TRUE(scan_lanes(*executor, {&lane, 1}, options).ok());
    const std::vector<Span> taken = spans.take();
    std::string text;
    for (const Span& span : taken) {
      text += std::string(span.stage) + std::to_string(span.endpoint) + " ";
      EXPECT_GE(span.begin_ns, taken.back().begin_ns);
      EXPECT_LE(span.begin_ns, span.end_ns);
      EXPECT_LE(span.end_ns, taken.back().end_ns);
      EXPECT_LE(span.busy_ns, taken.back().busy_ns);
    }
    return text;
  };
  EXPECT_EQ(stages(false, true, "scan"), "project7 compare7 encode7 scan7 ");
  EXPECT_EQ(stages(true, true, "scan"), "project7 encode7 scan7 ");
  EXPECT_EQ(stages(false, true, "restore"), "restore7 ");
  EXPECT_EQ(stages(false, false, "scan"), "scan7 ");
}

TEST(Pipeline, PiecesStayWithinWhatAnItemHolds) {
  for (const unsigned width : {1u, 2u, 4u, 8u}) {
    EXPECT_LE(piece_words(width), kItemElementsMax);
    EXPECT_LE(piece_words(width), kPieceWordsMax);
    EXPECT_LE(piece_words(width) * width, kPieceBytesMax);
  }
}

}  // namespace
}  // namespace dcr
