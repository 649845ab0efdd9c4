#include "delta/delta_file.h"

#include <gtest/gtest.h>

#include "codec/compress.h"
#include "delta/diff.h"
#include "tests/support/delta_disk.h"
#include "tests/support/test_checkpoint.h"

namespace dcr {
namespace {

// A delta with every kind of record: changes, an added, a removed and a retyped tensor, a carried
// prefix, files carried and equal, a file left out.
class DeltaFileTest : public DeltaDiskTest {
 protected:
  void SetUp() override {
    Prng prng(7);
    TestCheckpoint base;
    base.tensors["a"] = {Dtype::kBF16, {300}, random_bytes(prng, 600), 0};
    base.tensors["b"] = {Dtype::kF32, {2, 2}, random_bytes(prng, 16), 0};
    base.tensors["gone"] = {Dtype::kU8, {5}, random_bytes(prng, 5), 0};
    base.others = {{"config.json", "{}"}, {"vocab.txt", "one two"}};
    TestCheckpoint target = base;
    change_words(prng, &target.tensors["a"], 20);
    target.tensors["b"].dtype = Dtype::kI32;
    target.tensors.erase("gone");
    target.tensors["new"] = {Dtype::kF64, {}, random_bytes(prng, 8), 0};
    target.others["vocab.txt"] = std::string(400, 'x');
    target.others["weights.bin"] = "pickled";
    put("old", base);
    put("new", target);
    const Result<DiffReport> report = write_diff(work(), "old", "new", "d.dcr");
    ASSERT_TRUE(report.ok()) << report.status().message();
    footer_ = report->footer;
    bytes_ = disk_.get("d.dcr");
  }

  // What reading `bytes` as a delta, whole, comes to.
  Status read(const Bytes& bytes) {
    disk_.put("x.dcr", bytes);
    const Result<DeltaReader> reader = DeltaReader::open(disk_, "x.dcr");
    if (!reader.ok()) return reader.status();
    return reader->validate_all(work()).status();
  }

  // The delta with another footer.
  Bytes with_footer_bytes(const Bytes& footer) const { return replace_footer(bytes_, footer); }
  Bytes with_footer(const DeltaFooter& footer) const {
    return with_footer_bytes(encode_footer(footer));
  }

  void expect_footer_error(const DeltaFooter& footer, Code code, const std::string& message,
                           const std::string& tensor = {}) {
    const Status status = read(with_footer(footer));
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "x.dcr: " + message);
    EXPECT_EQ(status.tensor(), tensor);
  }

  // The footer with identities that fit its table.
  static DeltaFooter identified(DeltaFooter footer) {
    footer.base_identity = base_identity(footer.tensors);
    footer.target_identity = target_identity(footer.tensors);
    return footer;
  }

  DeltaTensor& tensor(const std::string& name) {
    return footer_.tensors[static_cast<std::size_t>(find_delta_tensor(footer_.tensors, name))];
  }
  DeltaFile& file(const std::string& name) {
    for (DeltaFile& file : footer_.files) {
      if (file.name == name) return file;
    }
    DCR_ASSERT(false);
  }

  DeltaFooter footer_;
  Bytes bytes_;
};

TEST_F(DeltaFileTest, TheFooterRoundTrips) {
  const Result<DeltaReader> reader = DeltaReader::open(disk_, "d.dcr");
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->footer(), footer_);
  EXPECT_EQ(reader->file_bytes(), bytes_.size());
  EXPECT_TRUE(reader->validate_all(work()).ok());
}

TEST_F(DeltaFileTest, TheFooterSaysWhatHappened) {
  EXPECT_TRUE(footer_.directory);
  ASSERT_EQ(footer_.tensors.size(), 4U);
  EXPECT_TRUE(tensor("a").common());
  EXPECT_FALSE(tensor("b").common());
  EXPECT_FALSE(tensor("gone").target.present);
  EXPECT_FALSE(tensor("new").base.present);
  EXPECT_TRUE(file("config.json").same_as_base);
  EXPECT_TRUE(file("vocab.txt").is_carried());
  EXPECT_EQ(file("vocab.txt").carried.coding, kCodingZstd);
  EXPECT_TRUE(file("model.safetensors").is_carried());
  EXPECT_EQ(footer_.left_out, (std::vector<LeftOutEntry>{{"weights.bin", "pickle"}}));
  EXPECT_EQ(footer_.payloads.size(), 1U);
}

TEST_F(DeltaFileTest, TheTrailerIsAsDocumented) {
  ByteReader in(ByteSpan(bytes_).last(kDeltaTrailerBytes));
  const std::uint64_t offset = in.u64();
  const Bytes footer = encode_footer(footer_);
  EXPECT_EQ(in.u64(), footer.size());
  EXPECT_EQ(offset + footer.size() + kDeltaTrailerBytes, bytes_.size());
  EXPECT_EQ(with_footer(footer_), bytes_);
  EXPECT_EQ(std::string(bytes_.begin(), bytes_.begin() + 8), "DCRDELTA");
}

TEST_F(DeltaFileTest, EveryTruncationIsAnError) {
  for (std::size_t size = 0; size < bytes_.size(); ++size) {
    const Status status = read(Bytes(bytes_.begin(), bytes_.begin() + static_cast<long>(size)));
    EXPECT_EQ(status.code(), Code::kCorrupt) << size << ": " << status.message();
  }
}

TEST_F(DeltaFileTest, EveryFlippedBitIsAnError) {
  const std::size_t stride = static_cast<std::size_t>(DCR_CAMPAIGN);
  for (std::size_t bit = 0; bit < 8 * bytes_.size(); bit += stride) {
    Bytes flipped = bytes_;
    flipped[bit / 8] = static_cast<std::uint8_t>(flipped[bit / 8] ^ (1U << (bit % 8)));
    const Status status = read(flipped);
    EXPECT_FALSE(status.ok()) << "bit " << bit;
    EXPECT_NE(status.code(), Code::kInternal) << "bit " << bit;
  }
}

TEST_F(DeltaFileTest, ATrailingByteIsAnError) {
  Bytes longer = bytes_;
  longer.push_back(0);
  const Status status = read(longer);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_EQ(status.message(), "x.dcr: the delta is cut short: it does not end with \"DCRTRAIL\"");
}

TEST_F(DeltaFileTest, TheEnvelopesFieldsHaveNamedErrors) {
  struct Case {
    std::size_t at;  // from the end if above the size of the prologue
    std::uint8_t value;
    Code code;
    const char* message;
  };
  const std::size_t end = bytes_.size();
  for (const Case& c : {
           Case{0, 'X', Code::kCorrupt, "not a delta file: it does not start with \"DCRDELTA\""},
           Case{8, 1, Code::kUnsupported,
                "delta format version 1 is not known to this build, which reads version 0"},
           Case{12, 1, Code::kCorrupt, "reserved bytes of the prologue are not zero"},
           Case{end - 1, 'X', Code::kCorrupt,
                "the delta is cut short: it does not end with \"DCRTRAIL\""},
           Case{end - 12, 1, Code::kCorrupt, "reserved bytes of the trailer are not zero"},
           Case{end - 16, 9, Code::kUnsupported,
                "delta format version 9 is not known to this build, which reads version 0"},
           Case{end - 32, static_cast<std::uint8_t>(bytes_[end - 32] ^ 1), Code::kCorrupt,
                "the footer's digest does not match: the delta is damaged"},
           Case{end - 39, 1, Code::kCorrupt, "reserved bytes of the trailer are not zero"},
           Case{end - 40, 7, Code::kUnsupported,
                "trailer: digest algorithm 7 is not known to this build"},
           Case{end - 41, 1, Code::kCorrupt,
                "trailer: the footer's place does not fit the file's size"},
           Case{end - 49, 1, Code::kCorrupt,
                "trailer: the footer's place does not fit the file's size"},
       }) {
    Bytes changed = bytes_;
    changed[c.at] = c.value;
    const Status status = read(changed);
    EXPECT_EQ(status.code(), c.code);
    EXPECT_EQ(status.message(), std::string("x.dcr: ") + c.message);
  }
}

TEST_F(DeltaFileTest, EveryTruncationOfTheFooterIsAnError) {
  const Bytes footer = encode_footer(footer_);
  for (std::size_t size = 0; size < footer.size(); ++size) {
    const Bytes cut(footer.begin(), footer.begin() + static_cast<std::ptrdiff_t>(size));
    const Status status = read(with_footer_bytes(cut));
    EXPECT_EQ(status.code(), Code::kCorrupt) << size << ": " << status.message();
  }
  Bytes longer = footer;
  longer.push_back(0);
  EXPECT_EQ(read(with_footer_bytes(longer)).message(),
            "x.dcr: footer: 1 bytes after the last entry");
}

TEST_F(DeltaFileTest, WrongIdentitiesAreErrors) {
  DeltaFooter footer = footer_;
  footer.base_identity[0] ^= 1;
  expect_footer_error(footer, Code::kCorrupt,
                      "footer: the base identity does not follow from the tensor table");
  footer = footer_;
  footer.tensors[0].target.digest[3] ^= 1;
  expect_footer_error(footer, Code::kCorrupt,
                      "footer: the target identity does not follow from the tensor table");
}

TEST_F(DeltaFileTest, WrongTensorsAreErrors) {
  footer_.tensors[0].name = "c";
  expect_footer_error(identified(footer_), Code::kCorrupt,
                      "footer: tensor \"b\": out of order or named twice", "b");
  footer_.tensors[1].name = "c";
  expect_footer_error(identified(footer_), Code::kCorrupt,
                      "footer: tensor \"c\": out of order or named twice", "c");
  footer_.tensors[0].name = "a\xff";
  expect_footer_error(identified(footer_), Code::kCorrupt, "footer: a tensor name is not UTF-8");
  footer_.tensors[0].name = std::string(1025, 'a');
  expect_footer_error(identified(footer_), Code::kTooLarge,
                      "footer: tensor name of 1025 bytes is above the limit of 1024");
}

TEST_F(DeltaFileTest, WrongShapesAreErrors) {
  const DeltaFooter whole = footer_;
  tensor("new").target.shape.assign(9, 1);
  expect_footer_error(identified(footer_), Code::kTooLarge,
                      "footer: tensor \"new\": rank 9 is above the limit of 8", "new");
  footer_ = whole;
  tensor("new").target.shape = {kDimensionMax, kDimensionMax};
  EXPECT_EQ(read(with_footer(footer_)).code(), Code::kTooLarge);
  footer_ = whole;
  tensor("new").target.dtype = static_cast<Dtype>(99);
  expect_footer_error(footer_, Code::kUnsupported, "footer: tensor \"new\": dtype 99 is unknown",
                      "new");
  footer_ = whole;
  tensor("a").base.shape = tensor("a").target.shape = {299};
  EXPECT_EQ(read(with_footer(identified(footer_))).code(), Code::kCorrupt);
}

TEST_F(DeltaFileTest, WrongPlacesAreErrors) {
  const DeltaFooter whole = footer_;
  tensor("a").target.file = 9;
  expect_footer_error(footer_, Code::kCorrupt,
                      "footer: tensor \"a\": its target file index is out of range", "a");
  footer_ = whole;
  tensor("a").target.file = 0;
  expect_footer_error(footer_, Code::kCorrupt,
                      "footer: tensor \"a\": file \"config.json\" holds no tensors of the target",
                      "a");
  footer_ = whole;
  tensor("new").target.offset += 1;
  expect_footer_error(
      footer_, Code::kCorrupt,
      "footer: tensor \"new\": overlaps another, leaves a hole or ends past the end in the "
      "target's \"model.safetensors\"",
      "new");
  footer_ = whole;
  tensor("new").target.offset = ~std::uint64_t{0};
  EXPECT_EQ(read(with_footer(footer_)).code(), Code::kCorrupt);
  footer_ = whole;
  file("model.safetensors").base_size = kCheckpointBytesMax + 1;
  expect_footer_error(footer_, Code::kTooLarge,
                      "footer: file \"model.safetensors\": with it the base is above the limit of "
                      "1152921504606846976 bytes");
  footer_ = whole;
  file("model.safetensors").base_size += 1;
  expect_footer_error(footer_, Code::kCorrupt,
                      "footer: file \"model.safetensors\": it has bytes of the base that no "
                      "tensor explains");
}

TEST_F(DeltaFileTest, WrongFilesAreErrors) {
  const DeltaFooter whole = footer_;
  for (const char* name : {"", ".", "..", "a/b"}) {
    footer_.files[0].name = name;
    const Status status = read(with_footer(footer_));
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_NE(status.message().find("one plain component"), std::string::npos) << status.message();
  }
  footer_.files[0].name = std::string("a\0b", 3);
  EXPECT_EQ(read(with_footer(footer_)).code(), Code::kCorrupt);
  footer_.files[0].name = "zzz";
  expect_footer_error(footer_, Code::kCorrupt,
                      "footer: file \"model.safetensors\": out of order or named twice");
  footer_ = whole;
  file("vocab.txt").permissions = 04755;
  expect_footer_error(footer_, Code::kCorrupt,
                      "footer: file \"vocab.txt\": permissions above 0777");
  footer_ = whole;
  file("vocab.txt").carried.coding = 5;
  expect_footer_error(footer_, Code::kUnsupported,
                      "footer: file \"vocab.txt\": coding 5 is unknown to this build");
  footer_ = whole;
  file("vocab.txt").target_size = kCarriedFileBytesMax + 1;
  expect_footer_error(footer_, Code::kTooLarge,
                      "footer: file \"vocab.txt\": carried bytes above the limit of 67108864");
  footer_ = whole;
  file("vocab.txt").carried.coding = 0;
  expect_footer_error(footer_, Code::kCorrupt,
                      "footer: file \"vocab.txt\": stored bytes do not fit its coding");
  footer_ = whole;
  file("config.json").target_size += 1;
  expect_footer_error(
      footer_, Code::kCorrupt,
      "footer: file \"config.json\": called the same as in the base, of another size");
  footer_ = whole;
  footer_.directory = false;
  expect_footer_error(footer_, Code::kCorrupt,
                      "footer: a single-file target has other files than model.safetensors");
}

TEST_F(DeltaFileTest, WrongCountsAreErrors) {
  const DeltaFooter whole = footer_;
  footer_.payloads[0].stored_bytes += 1;
  const Status status = read(with_footer(footer_));
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_NE(status.message().find("where the footer does not start"), std::string::npos);
  footer_.payloads[0].stored_bytes = kPayloadStoredBytesMax + 1;
  EXPECT_EQ(read(with_footer(footer_)).code(), Code::kTooLarge);
  footer_ = whole;
  footer_.payload_raw_bytes_max = kPayloadRawBytesMax + 1;
  expect_footer_error(footer_, Code::kTooLarge,
                      "footer: the largest raw payload is above the limit of 8589934592");
  footer_ = whole;
  footer_.changed += 1;
  expect_footer_error(footer_, Code::kCorrupt,
                      "the payloads change " + std::to_string(whole.changed) +
                          " words but the footer says " + std::to_string(whole.changed + 1));
  footer_ = whole;
  footer_.left_out[0].reason.clear();
  expect_footer_error(footer_, Code::kCorrupt,
                      "footer: left-out file \"weights.bin\": its reason is empty or not UTF-8");
}

TEST_F(DeltaFileTest, HugeCountsAllocateNothing) {
  // The number of files, right after the head, whose varints are one byte each here or two.
  Bytes footer = encode_footer(footer_);
  Bytes head;
  ByteWriter out(&head);
  out.bytes(footer_.base_identity);
  out.bytes(footer_.target_identity);
  out.u8(1);
  out.varint(footer_.changed);
  out.varint(footer_.payload_raw_bytes_max);
  Bytes many = head;
  ByteWriter(&many).varint(8000);
  EXPECT_EQ(read(with_footer_bytes(many)).message(),
            "x.dcr: footer: 8000 files do not fit into the 0 bytes that are left");
  many = head;
  ByteWriter(&many).varint(~std::uint64_t{0});
  EXPECT_EQ(read(with_footer_bytes(many)).code(), Code::kTooLarge);
  head[32] = 3;
  EXPECT_EQ(read(with_footer_bytes(head)).message(), "x.dcr: footer: flags 3 mean nothing");
}

TEST_F(DeltaFileTest, APayloadOfAnotherDeltaIsRefused) {
  footer_.payloads[0].digest[0] ^= 1;
  const Status status = read(with_footer(footer_));
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.message(), "x.dcr: payload 0: it belongs to another delta");
}

TEST_F(DeltaFileTest, APayloadOfAnotherTableIsRefused) {
  DeltaFooter footer = footer_;
  for (DeltaTensor& tensor : footer.tensors) {
    if (tensor.name == "a") tensor.name = "aa";
  }
  const Status status = read(with_footer(identified(footer)));
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("another tensor table"), std::string::npos);
}

TEST_F(DeltaFileTest, APrefixThatDisagreesWithTheTableIsRefused) {
  // The tensor's name in the table is another than in the carried header: "gone" keeps the base.
  const Bytes prefix = disk_.get("new/model.safetensors");
  const std::uint32_t index = 1;
  ASSERT_EQ(footer_.files[index].name, "model.safetensors");
  const std::size_t size = static_cast<std::size_t>(footer_.files[index].target_content_bytes);
  EXPECT_TRUE(check_target_prefix(footer_, index, ByteSpan(prefix).first(size)).ok());
  tensor("new").target.dtype = Dtype::kI64;
  const Status status = check_target_prefix(footer_, index, ByteSpan(prefix).first(size));
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_EQ(status.message(),
            "prefix of \"model.safetensors\": tensor \"new\" is not as in the delta's table");
  EXPECT_EQ(status.tensor(), "new");
  EXPECT_EQ(check_target_prefix(footer_, index, ByteSpan(prefix).first(size - 1)).code(),
            Code::kCorrupt);
}

// Writes payloads by hand under a footer that is otherwise right.
class DeltaPayloadTest : public DeltaFileTest {
 protected:
  // An item that carries all words of [offset, offset + size) of a tensor of the new checkpoint.
  EncodedItem whole_item(const std::string& name, std::uint64_t offset, std::uint64_t size) {
    const auto index = find_delta_tensor(footer_.tensors, name);
    const unsigned width =
        word_bytes(footer_.tensors[static_cast<std::size_t>(index)].target.dtype);
    const Bytes words(static_cast<std::size_t>(size * width), 1);
    ScanBox part;
    part.new_words = words.data();
    part.row_words = size;
    EncodedItem item;
    ItemEncoder encoder;
    encoder.encode_whole(static_cast<std::uint32_t>(index), width, ItemBox::range(offset, size),
                         {&part, 1}, &item);
    return item;
  }

  Status read_with(const std::vector<std::vector<EncodedItem>>& payloads,
                   std::uint64_t changed = 0) {
    disk_.remove("y.dcr").ok();
    std::unique_ptr<File> file = disk_.create("y.dcr", 0644).value();
    DeltaWriter writer(file.get());
    DCR_ASSERT(writer.begin().ok());
    DeltaFooter footer = footer_;
    footer.payload_raw_bytes_max = 0;
    footer.changed = changed;
    std::uint64_t number = 0;
    for (const std::vector<EncodedItem>& items : payloads) {
      PayloadWriter payload;
      for (const EncodedItem& item : items) payload.append(item);
      footer.payload_raw_bytes_max = std::max(footer.payload_raw_bytes_max, payload.raw_bytes());
      PayloadHeader header;
      header.number = number;
      header.schema = delta_schema(footer.tensors);
      DCR_ASSERT(writer.send(number++, payload.seal(header)).ok());
    }
    for (DeltaFile& carried : footer.files) {
      if (!carried.is_carried()) continue;
      Bytes content = disk_.get("new/" + carried.name);
      content.resize(static_cast<std::size_t>(carried.target_content_bytes));
      DCR_ASSERT(writer.add_blob(content, &carried.carried).ok());
    }
    Digest id;
    DCR_ASSERT(writer.finish(&footer, &id).ok());
    const Result<DeltaReader> reader = DeltaReader::open(disk_, "y.dcr");
    if (!reader.ok()) return reader.status();
    EXPECT_EQ(reader->id(), id);
    return reader->validate_all(work()).status();
  }
};

TEST_F(DeltaPayloadTest, WholeTensorsAloneAreADelta) {
  const Status status = read_with({{whole_item("b", 0, 4)}, {whole_item("new", 0, 1)}});
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(DeltaPayloadTest, AMissingPieceOfAWholeTensorIsAnError) {
  const Status status = read_with({{whole_item("b", 0, 4)}});
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_EQ(status.message(), "y.dcr: tensor \"new\" must be carried whole but a piece is missing");
  EXPECT_EQ(status.tensor(), "new");
}

TEST_F(DeltaPayloadTest, AnItemThatIsNoPieceIsAnError) {
  const Status status = read_with({{whole_item("b", 0, 3)}, {whole_item("new", 0, 1)}});
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_EQ(status.message(),
            "y.dcr: payload 0: an item of tensor \"b\" is not one piece of the grid");
}

TEST_F(DeltaPayloadTest, ItemsOutOfOrderOverPayloadsAreAnError) {
  const Status status = read_with({{whole_item("new", 0, 1)}, {whole_item("b", 0, 4)}});
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_EQ(status.message(),
            "y.dcr: payload 1: an item of tensor \"b\" is out of order or there twice");
  EXPECT_EQ(read_with({{whole_item("b", 0, 4)}, {whole_item("b", 0, 4)}}).code(), Code::kCorrupt);
}

TEST_F(DeltaPayloadTest, AnItemOfARemovedTensorIsAnError) {
  footer_.tensors[2].target = footer_.tensors[2].base;  // to make the item at all
  EncodedItem item = whole_item("gone", 0, 5);
  footer_.tensors[2].target = {};
  EXPECT_EQ(read_with({{item}}).code(), Code::kCorrupt);
}

TEST_F(DeltaPayloadTest, AnEmptyPayloadIsAnError) {
  EXPECT_EQ(read_with({{}}).code(), Code::kCorrupt);
}

TEST_F(DeltaPayloadTest, ChangesToAWholeTensorAreAnError) {
  ItemEncoder encoder;
  const Bytes before(16, 0), after(16, 1);
  ScanBox part;
  part.old_words = before.data();
  part.new_words = after.data();
  part.row_words = 4;
  for (const EncodingChoice choice : {EncodingChoice::kAdd, EncodingChoice::kXor}) {
    encoder.begin(1, 4, ItemBox::range(0, 4), choice);
    encoder.scan(part);
    EncodedItem item;
    ASSERT_TRUE(encoder.finish({&part, 1}, &item));
    EXPECT_EQ(read_with({{item}, {whole_item("new", 0, 1)}}).code(), Code::kCorrupt);
  }
}

TEST_F(DeltaFileTest, MemoryThatIsTooSmallIsSaid) {
  Work small = work();
  small.memory_bytes_max = 10;
  const Result<DeltaReader> reader = DeltaReader::open(disk_, "d.dcr");
  ASSERT_TRUE(reader.ok());
  const Status status = reader->validate_all(small).status();
  EXPECT_EQ(status.code(), Code::kTooLarge);
  EXPECT_NE(status.message().find("raise the memory limit"), std::string::npos);
}

TEST_F(DeltaFileTest, ManyItemsAreBoundedByMemory) {
  TestCheckpoint before, after;
  for (unsigned i = 0; i < 300; ++i) {
    before.tensors["t" + std::to_string(i)] = {Dtype::kU8, {1}, {0}, 0};
    after.tensors["t" + std::to_string(i)] = {Dtype::kU8, {1}, {1}, 0};
  }
  put("many0", before);
  put("many1", after);
  ASSERT_TRUE(write_diff(work(), "many0", "many1", "many.dcr").ok());
  const Result<DeltaReader> reader = DeltaReader::open(disk_, "many.dcr");
  ASSERT_TRUE(reader.ok());
  Work small = work();
  small.memory_bytes_max = 299 * sizeof(ItemPlace) * 8;
  const Status status = reader->validate_all(small).status();
  EXPECT_EQ(status.code(), Code::kTooLarge);
  EXPECT_EQ(status.message(),
            "many.dcr: payload 0: with it the delta has more than 299 items, too many for the "
            "memory limit; raise it");
  small.memory_bytes_max = 300 * sizeof(ItemPlace) * 8;
  EXPECT_EQ(reader->validate_all(small)->size(), 300U);
}

TEST_F(DeltaFileTest, ChainsAreCheckedByIdentity) {
  std::vector<DeltaReader> chain;
  chain.push_back(DeltaReader::open(disk_, "d.dcr").value());
  EXPECT_TRUE(check_chain(chain).ok());
  chain.push_back(DeltaReader::open(disk_, "d.dcr").value());
  const Status status = check_chain(chain);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.message(),
            "d.dcr does not follow d.dcr: its base is another checkpoint than the other's target");
}

}  // namespace
}  // namespace dcr
