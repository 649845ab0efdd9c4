#include "base/hexadecimal.h"

#include <gtest/gtest.h>

#include <string>

namespace dcr {
namespace {

TEST(Hexadecimal, EveryByteComesBack) {
  Bytes all;
  for (unsigned byte = 0; byte < 256; ++byte) all.push_back(static_cast<std::uint8_t>(byte));
  std::string text;
  append_hexadecimal(all, &text);
  EXPECT_EQ(text.size(), 512U);
  EXPECT_EQ(text.substr(0, 6), "000102");
  EXPECT_EQ(text.substr(508), "feff");
  Bytes back(256);
  EXPECT_TRUE(parse_hexadecimal(text, back));
  EXPECT_EQ(back, all);
}

TEST(Hexadecimal, OneSpellingOnly) {
  Bytes byte(1);
  for (unsigned letter = 0; letter < 256; ++letter) {
    const char as_letter = static_cast<char>(letter);
    const bool is_digit = std::string("0123456789abcdef").find(as_letter) != std::string::npos;
    EXPECT_EQ(parse_hexadecimal(std::string{as_letter, '7'}, byte), is_digit) << letter;
    EXPECT_EQ(parse_hexadecimal(std::string{'7', as_letter}, byte), is_digit) << letter;
  }
  for (const char* text : {"", "7", "777"}) EXPECT_FALSE(parse_hexadecimal(text, byte)) << text;
}

}  // namespace
}  // namespace dcr
