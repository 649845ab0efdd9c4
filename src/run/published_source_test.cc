#include "run/published_source.h"

#include <gtest/gtest.h>

#include "tests/support/temp_directory.h"

namespace dcr {
namespace {

PublishedSource some_source() {
  PublishedSource source;
  source.catalogue = *Catalogue::make({{"a", Dtype::kBF16, {4, 3}, 0}, {"b", Dtype::kF32, {}, 0}});
  source.boxes = {{{0, {0, {{2, 3}, {3, 1}}}}, {1, {0, {}}}}, {{0, {6, {{6, 1}}}}}};
  source.digest = source_digest(source);
  return source;
}

TEST(PublishedSource, ReadsWhatItWrote) {
  const PublishedSource source = some_source();
  const Bytes bytes = encode_source(source);
  const auto read = decode_source(bytes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(encode_source(*read), bytes);
  EXPECT_EQ(read->digest, source.digest);
  EXPECT_EQ(read->owners(), 2U);
  EXPECT_EQ(read->catalogue.schema(), source.catalogue.schema());
}

TEST(PublishedSource, AnyOtherBytesAreRefusedOrAnotherSource) {
  const Bytes bytes = encode_source(some_source());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_source(ByteSpan(bytes).first(size)).ok()) << size;
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      Bytes changed = bytes;
      changed[at] = static_cast<std::uint8_t>(changed[at] ^ (1U << bit));
      const auto read = decode_source(changed);
      if (!read.ok()) {
        EXPECT_FALSE(read.status().message().empty());
        continue;
      }
      EXPECT_EQ(encode_source(*read), changed) << at;
      EXPECT_NE(read->digest, some_source().digest);
    }
  }
}

TEST(PublishedSource, BoxesStayInTheirTensors) {
  PublishedSource source = some_source();
  source.boxes[1][0].box.offset = 7;
  const auto read = decode_source(encode_source(source));
  EXPECT_EQ(read.status().code(), Code::kInvalidArgument);
  EXPECT_NE(read.status().message().find("\"a\""), std::string::npos) << read.status().message();
}

TEST(PublishedSource, IsFetchedUnderItsDigest) {
  const TempDirectory directory;
  const PublishedSource source = some_source();
  EXPECT_EQ(fetch_source(directory.path(), source.digest)->has_value(), false);
  ASSERT_TRUE(publish_source(directory.path(), source).ok());
  ASSERT_TRUE(publish_source(directory.path(), source).ok());
  const auto fetched = fetch_source(directory.path(), source.digest);
  ASSERT_TRUE(fetched.ok() && fetched->has_value());
  EXPECT_EQ((*fetched)->digest, source.digest);
  PublishedSource other = source;
  other.boxes.pop_back();
  directory.put(digest_text(source.digest), encode_source(other));
  EXPECT_EQ(fetch_source(directory.path(), source.digest).status().code(), Code::kCorrupt);
}

Member owner(const std::string& name, std::uint64_t incarnation, const OwnerDetails& details) {
  Member member;
  member.endpoint = {name, incarnation};
  member.state = MemberState::kMember;
  member.needs = encode_owner_details(details);
  return member;
}

TEST(JoinedOwners, AreThoseOfTheNewestTrainerWhenAllAreThere) {
  const Digest first{1}, second{2};
  Membership members;
  EXPECT_EQ(joined_owners(members), std::nullopt);
  members.members = {owner("owner-0", 1, {0, 2, first}), owner("owner-1", 2, {1, 2, first})};
  const JoinedOwners both{first, {"owner-0", "owner-1"}};
  EXPECT_EQ(joined_owners(members), both);
  // Another trainer of one rank takes its place, as the other's second is not there any more.
  members.members[0] = owner("owner-0", 3, {0, 1, second});
  EXPECT_EQ(joined_owners(members), (JoinedOwners{second, {"owner-0"}}));
  // One that is not complete takes nobody's place.
  members.members.push_back(owner("owner-2", 4, {1, 2, first}));
  members.members[1] = owner("owner-1", 5, {1, 2, first});
  EXPECT_EQ(joined_owners(members), (JoinedOwners{second, {"owner-0"}}));
  members.members[0].state = MemberState::kEnrolled;
  EXPECT_EQ(joined_owners(members), std::nullopt);
  members.members[0].state = MemberState::kWaiting;
  members.members[0].needs = {1, 2, 3};
  EXPECT_EQ(joined_owners(members), std::nullopt);
}

}  // namespace
}  // namespace dcr
