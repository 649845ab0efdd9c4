#include "cli/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace dcr {
namespace {

TEST(Text, BytesHaveThreeDigits) {
  EXPECT_EQ(bytes_text(0), "0 bytes");
  EXPECT_EQ(bytes_text(1), "1 byte");
  EXPECT_EQ(bytes_text(999), "999 bytes");
  EXPECT_EQ(bytes_text(1000), "1.00 kB");
  EXPECT_EQ(bytes_text(9994), "9.99 kB");
  EXPECT_EQ(bytes_text(9996), "10.0 kB");
  EXPECT_EQ(bytes_text(999'400), "999 kB");
  EXPECT_EQ(bytes_text(999'500), "1.00 MB");
  EXPECT_EQ(bytes_text(1'234'567), "1.23 MB");
  EXPECT_EQ(bytes_text(45'400'000'000), "45.4 GB");
  EXPECT_EQ(bytes_text(std::numeric_limits<std::uint64_t>::max()), "18.4 EB");
}

TEST(Text, CountsAreExactWhileShort) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(9999), "9999");
  EXPECT_EQ(count_text(10'000), "10.0 k");
  EXPECT_EQ(count_text(22'713'216), "22.7 M");
  EXPECT_EQ(counted(1, "tensor"), "1 tensor");
  EXPECT_EQ(counted(103, "tensor"), "103 tensors");
}

TEST(Text, PercentNeverRoundsToNoneOrAll) {
  EXPECT_EQ(percent_text(0, 10), "0 %");
  EXPECT_EQ(percent_text(0, 0), "0 %");
  EXPECT_EQ(percent_text(1, 1'000'000'000), "<0.001 %");
  EXPECT_EQ(percent_text(702, 100'000), "0.702 %");
  EXPECT_EQ(percent_text(9996, 1'000'000), "1.00 %");
  EXPECT_EQ(percent_text(1, 8), "12.5 %");
  EXPECT_EQ(percent_text(999'999, 1'000'000), ">99.9 %");
  EXPECT_EQ(percent_text(10, 10), "100 %");
}

TEST(Text, Seconds) {
  EXPECT_EQ(seconds_text(0), "0.00 s");
  EXPECT_EQ(seconds_text(0.417), "0.42 s");
  EXPECT_EQ(seconds_text(12.34), "12.3 s");
  EXPECT_EQ(seconds_text(59.96), "1 min 0 s");
  EXPECT_EQ(seconds_text(185), "3 min 5 s");
}

TEST(Text, RateNeedsWorkAndTime) {
  EXPECT_EQ(rate_text(0, 1), "");
  EXPECT_EQ(rate_text(1, 0), "");
  EXPECT_EQ(rate_text(1'000'000, 1e-15), "");
  EXPECT_EQ(rate_text(2'200'000'000, 2), "1.10 GB/s");
}

TEST(Text, PrintableEscapesWhatDrivesATerminal) {
  EXPECT_EQ(printable("model.weight"), "model.weight");
  EXPECT_EQ(printable("a\x1b[31m\n\x7f"), "a\\x1b[31m\\x0a\\x7f");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xC3\xA9"), "\xC3\xA9");  // é
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\xc2\\x9b31m");  // the one-character CSI
  EXPECT_EQ(printable("\xC2"), "\xC2");
}

TEST(Text, TableAlignsByCharacters) {
  EXPECT_EQ(table_text({{"name", "n", "note"}, {"\xC3\xA9t\xC3\xA9", "12", "x"}}, {2}),
            "  name   n  note\n"
            "  \xC3\xA9t\xC3\xA9   12  x\n");
  EXPECT_EQ(table_text({}), "");
}

TEST(Text, ParseBytesTakesUnits) {
  EXPECT_EQ(*parse_bytes("0"), 0U);
  EXPECT_EQ(*parse_bytes("1073741824"), std::uint64_t{1} << 30);
  EXPECT_EQ(*parse_bytes("512M"), std::uint64_t{512} << 20);
  EXPECT_EQ(*parse_bytes("512m"), std::uint64_t{512} << 20);
  EXPECT_EQ(*parse_bytes("1GiB"), std::uint64_t{1} << 30);
  EXPECT_EQ(*parse_bytes("2GB"), 2'000'000'000U);
  EXPECT_EQ(*parse_bytes("3K"), 3072U);
  EXPECT_EQ(*parse_bytes("1T"), std::uint64_t{1} << 40);
  EXPECT_EQ(*parse_bytes("7B"), 7U);
  EXPECT_EQ(*parse_bytes("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
}

TEST(Text, ParseBytesRefusesTheRest) {
  for (const char* word :
       {"", "M", "-1", "+1", " 1", "1 G", "1.5G", "1e9", "0x10", "1Gi", "1X", "1GiBs"}) {
    const auto parsed = parse_bytes(word);
    ASSERT_FALSE(parsed.ok()) << word;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find('"' + std::string(word) + '"'), std::string::npos);
  }
  for (const char* word : {"18446744073709551616", "16777216T", "99999999999999999999G"}) {
    const auto parsed = parse_bytes(word);
    ASSERT_FALSE(parsed.ok()) << word;
    EXPECT_NE(parsed.status().message().find("is too large"), std::string::npos);
  }
}

}  // namespace
}  // namespace dcr
