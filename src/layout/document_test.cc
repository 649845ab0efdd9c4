#include "layout/document.h"

#include <gtest/gtest.h>

namespace dcr {
namespace {

Result<DocumentValue> parse(std::string_view text) { return parse_document(text, 1000, 20); }

TEST(Document, Tree) {
  const Result<DocumentValue> made =
      parse(R"({"a": [1, "x", {"b": 18446744073709551615}], "c": true, "d": -1, "e": {}})");
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_EQ(made->keys.size(), 4u);
  const DocumentValue& a = made->elements[0];
  ASSERT_EQ(a.elements.size(), 3u);
  EXPECT_EQ(a.elements[0].number, 1u);
  EXPECT_EQ(a.elements[1].text, "x");
  EXPECT_EQ(a.elements[2].keys[0], "b");
  EXPECT_EQ(a.elements[2].elements[0].number, ~std::uint64_t{0});
  EXPECT_EQ(made->elements[1].kind, DocumentValue::Kind::kOther);
  EXPECT_EQ(made->elements[2].kind, DocumentValue::Kind::kOther);
  EXPECT_EQ(made->elements[3].kind, DocumentValue::Kind::kObject);
}

TEST(Document, Refuses) {
  const auto error = [](std::string_view text) { return parse(text).status().message(); };
  EXPECT_EQ(error("{"), "not JSON at byte 2");
  EXPECT_EQ(error("{\"a\": 1, \"a\": 2}"), "key \"a\" stands twice in one object");
  EXPECT_EQ(error("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"), "more than 20 values");
  EXPECT_EQ(error(std::string(1001, ' ')), "more than 1000 bytes");
  EXPECT_EQ(error("[[[[[[[[[]]]]]]]]]"), "JSON is nested deeper than 8 levels");
  EXPECT_EQ(error("{\"\xff\": 1}"), "not UTF-8");
}

std::string fields_error(const char* text) {
  const Result<DocumentValue> made = parse(text);
  EXPECT_TRUE(made.ok()) << made.status().message();
  DocumentFields fields(*made, "thing");
  std::uint64_t number = 3;
  std::string word;
  std::vector<std::uint64_t> numbers;
  fields.require("name");
  fields.number("shards", 1, 8, &number);
  fields.text("word", &word);
  fields.numbers("sizes", 100, 3, &numbers);
  return fields.finish().message();
}

TEST(Document, Fields) {
  EXPECT_EQ(fields_error("{\"name\": 1, \"shards\": 8, \"word\": \"x\", \"sizes\": [0, 100]}"), "");
  EXPECT_EQ(fields_error("[]"), "thing is not an object");
  EXPECT_EQ(fields_error("{}"), "thing has no \"name\"");
  const auto with = [](const std::string& more) {
    return fields_error(("{\"name\": 1, " + more + "}").c_str());
  };
  EXPECT_EQ(with("\"shards\": 9"), "thing \"shards\" is not an integer from 1 to 8");
  EXPECT_EQ(with("\"shards\": 0"), "thing \"shards\" is not an integer from 1 to 8");
  EXPECT_EQ(with("\"shards\": \"1\""), "thing \"shards\" is not an integer from 1 to 8");
  EXPECT_EQ(with("\"word\": 1"), "thing \"word\" is not a string");
  EXPECT_EQ(with("\"sizes\": 1"), "thing \"sizes\" is not an array");
  EXPECT_EQ(with("\"sizes\": [1,2,3,4]"), "thing \"sizes\" has 4 elements, more than 3");
  EXPECT_EQ(with("\"sizes\": [1, 2.0]"),
            "thing \"sizes\" has an element that is not an integer from 0 to 100");
  EXPECT_EQ(with("\"shard\": 1"), "thing has an unknown key \"shard\" (did you mean \"shards\"?)");
  EXPECT_EQ(with("\"quite other\": 1"), "thing has an unknown key \"quite other\"");
  EXPECT_EQ(with("\"worm\": 1, \"shard\": 1"),
            "thing has an unknown key \"worm\" (did you mean \"word\"?)");
}

}  // namespace
}  // namespace dcr
