// The worked example of docs/FORMAT.md, read from the document itself: the writer makes exactly
// those bytes, and the reader takes them.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "codec/item_encoder.h"
#include "codec/item_reader.h"
#include "codec/payload.h"

namespace dcr {
namespace {

Bytes example_of_document() {
  std::ifstream file(std::string(DCR_SOURCE_DIR) + "/docs/FORMAT.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const std::size_t begin = all.find("```hex\n");
  const std::size_t end = all.find("```", begin + 7);
  EXPECT_NE(begin, std::string::npos);
  std::istringstream block(all.substr(begin + 7, end - begin - 7));
  Bytes bytes;
  for (std::string byte; block >> byte;) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(byte, nullptr, 16)));
  }
  return bytes;
}

TEST(FormatExample, IsWhatTheWriterMakesAndTheReaderTakes) {
  std::uint16_t old_words[16];
  for (std::uint16_t i = 0; i < 16; ++i) old_words[i] = static_cast<std::uint16_t>(0x3f00 + i);
  std::uint16_t new_words[16];
  std::copy(std::begin(old_words), std::end(old_words), new_words);
  new_words[3] = 0x3f04;
  new_words[5] = 0x3f04;
  new_words[6] = 0x3f08;
  const ScanBox box{reinterpret_cast<const std::uint8_t*>(old_words),
                    reinterpret_cast<const std::uint8_t*>(new_words),
                    1,
                    16,
                    0,
                    0};
  ItemEncoder encoder;
  EncodedItem item;
  encoder.begin(0, 2, ItemBox::range(0, 16), EncodingChoice::kAdd);
  encoder.scan(box);
  ASSERT_TRUE(encoder.finish({&box, 1}, &item));
  PayloadWriter writer;
  writer.append(item);
  PayloadHeader header;
  for (std::size_t i = 0; i < header.schema.size(); ++i) {
    header.schema[i] = static_cast<std::uint8_t>(0x11 * i);
  }
  const Bytes example = example_of_document();
  EXPECT_EQ(writer.seal(header), example);

  const TensorSpec spec{16, 2, false};
  const Result<Payload> payload = Payload::read(example, header.schema, {&spec, 1}, {1024, 1024});
  ASSERT_TRUE(payload.ok()) << payload.status().message();
  ASSERT_EQ(payload->items().size(), 1u);
  MutableByteSpan target(reinterpret_cast<std::uint8_t*>(old_words), sizeof(old_words));
  EXPECT_EQ(apply_item(payload->items()[0], target), 3u);
  EXPECT_TRUE(std::equal(std::begin(old_words), std::end(old_words), new_words));
}

}  // namespace
}  // namespace dcr
