#include "layout/name_pattern.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "tests/support/campaign.h"

namespace dcr {
namespace {

NamePattern pattern(const std::string& text) {
  Result<NamePattern> made = NamePattern::parse(text);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

std::vector<std::string> captured(const std::string& text, const std::string& name) {
  std::vector<std::string_view> values;
  if (!pattern(text).match(name, &values)) return {"no"};
  return {values.begin(), values.end()};
}

TEST(NamePattern, CapturesNumbersAndParts) {
  using List = std::vector<std::string>;
  EXPECT_EQ(captured("a.b", "a.b"), List{});
  EXPECT_EQ(captured("a.{i}.b", "a.12.b"), List{"12"});
  EXPECT_EQ(captured("a.{i}.b", "a.0.b"), List{"0"});
  EXPECT_EQ(captured("{name}.{i}", "head.7"), (List{"head", "7"}));
  for (const char* name : {"a.x.b", "a.01.b", "a.-1.b", "a..b", "a.1", "a.1.b.c", "a.1234567890.b",
                           "a.1.c", "", "a.1.b.", "x.1.b"}) {
    EXPECT_EQ(captured("a.{i}.b", name), List{"no"}) << name;
  }
  EXPECT_EQ(captured("a.{name}", "a."), List{"no"});
  EXPECT_EQ(captured("a", "a."), List{"no"});
  EXPECT_EQ(captured("a.", "a."), List{});
}

TEST(NamePattern, RefusesOtherBraces) {
  const auto error = [](const char* text) { return NamePattern::parse(text).status().message(); };
  EXPECT_EQ(error("a.w{i}"), "pattern \"a.w{i}\": a capture is a whole part between dots, as {i}");
  EXPECT_EQ(error("{}"), "pattern \"{}\": a capture is a whole part between dots, as {i}");
  EXPECT_EQ(error("{a}b}"), "pattern \"{a}b}\": a capture is a whole part between dots, as {i}");
  EXPECT_EQ(error("{i}.{i}"), "pattern \"{i}.{i}\": it captures \"i\" twice");
}

TEST(NameTemplate, FillsCapturesAnywhere) {
  const Result<NameTemplate> made = NameTemplate::parse("l.{i}.w{e}{i}");
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->fill({"i", "e"}, {"3", "10"}), "l.3.w103");
  EXPECT_EQ(made->captures(), (std::vector<std::string>{"i", "e", "i"}));
  for (const char* text : {"a{", "a}", "{}", "{a{b}}", "}{"}) {
    EXPECT_EQ(NameTemplate::parse(text).status().message(),
              "name \"" + std::string(text) + "\": braces hold a capture's name, as {i}");
  }
}

TEST(PatternSet, FindsTheFirstTwo) {
  const PatternSet set({pattern("a.{i}"), pattern("a.{name}"), pattern("a.1"), pattern("b"),
                        pattern("b"), pattern("b")});
  const auto found = [&](const char* name) {
    const PatternSet::Found got = set.find(name);
    return std::pair(static_cast<int>(got.first), static_cast<int>(got.second));
  };
  EXPECT_EQ(found("a.2"), std::pair(0, 1));
  EXPECT_EQ(found("a.x"), std::pair(1, -1));
  EXPECT_EQ(found("b"), std::pair(3, 4));
  EXPECT_EQ(found("c"), std::pair(-1, -1));
  EXPECT_EQ(found("a"), std::pair(-1, -1));
  const PatternSet::Found two = set.find("a.1");
  EXPECT_NE(two.second, PatternSet::kNone);
}

// Random patterns and names over few letters: the set finds a pattern where matching one by one
// does, and a second where there are two.
TEST(PatternSet, FindsWhatPatternsMatch) {
  Prng prng(5);
  const std::vector<std::string> words = {"a", "b", "0", "7", "{i}", "{j}", "{x1}", "{x2}"};
  for (std::uint64_t round = 0; round < campaign_cases(400); ++round) {
    std::vector<NamePattern> patterns;
    const auto text = [&](std::uint64_t choices) {
      std::string made;
      for (std::uint64_t n = 1 + prng.below(4); n > 0; --n) {
        made += (made.empty() ? "" : ".") + words[prng.below(choices)];
      }
      return made;
    };
    while (patterns.size() < 6) {
      Result<NamePattern> made = NamePattern::parse(text(words.size()));
      if (made.ok()) patterns.push_back(std::move(made).value());
    }
    const PatternSet set(patterns);
    for (int i = 0; i < 30; ++i) {
      const std::string name = text(4);
      std::vector<std::string_view> values;
      std::vector<std::uint32_t> expected;
      for (std::uint32_t p = 0; p < patterns.size(); ++p) {
        if (patterns[p].match(name, &values)) expected.push_back(p);
      }
      const PatternSet::Found found = set.find(name);
      ASSERT_EQ(found.first != PatternSet::kNone, !expected.empty()) << name;
      ASSERT_EQ(found.second != PatternSet::kNone, expected.size() >= 2) << name;
      for (const std::uint32_t pattern : {found.first, found.second}) {
        if (pattern != PatternSet::kNone) {
          EXPECT_TRUE(patterns[pattern].match(name, &values));
        }
      }
    }
  }
}

}  // namespace
}  // namespace dcr
