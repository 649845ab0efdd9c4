// In-place application where it goes well and where it must refuse; in_place_crash_test.cc ends it
// at every operation.
#include "delta/in_place.h"

#include <gtest/gtest.h>

#include "delta/delta_file.h"
#include "delta/diff.h"
#include "delta/journal.h"
#include "tests/support/campaign.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/in_place_scenario.h"
#include "tests/support/memory_file_system.h"

namespace dcr {
namespace {

void expect_untouched(const Scenario& scenario, FaultFileSystem& files, MemoryFileSystem& disk) {
  EXPECT_EQ(files.operations(), 0u) << files.trace()[0];
  EXPECT_EQ(checkpoint_files(disk), scenario.versions.front());
}

// Runs the scenario's chain, which must fail without a write, and returns the error.
Status refused(const Scenario& scenario, MemoryFileSystem& disk) {
  FaultFileSystem files(disk);
  const std::map<std::string, Bytes> before = disk.all();
  Status status = run_in_place(files, scenario.deltas).status();
  EXPECT_EQ(files.operations(), 0u) << files.trace()[0];
  EXPECT_EQ(disk.all(), before);
  return status;
}

bool contains(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

TEST(InPlaceTest, RandomCheckpointsBecomeTheirTargets) {
  for (std::uint64_t seed = 0; seed < campaign_cases(400); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Scenario scenario = random_scenario(seed, 1 + seed % 3);
    const auto disk = scenario.disk->recover(Unsynced::kAll);
    const Result<InPlaceResult> result =
        run_in_place(*disk, scenario.deltas, seed % 2 == 0 ? 1 : 4096, kScenarioPath,
                     1 + static_cast<unsigned>(seed % 3));
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(checkpoint_files(*disk), scenario.versions.back());
    EXPECT_FALSE(result->replayed_journal);
    EXPECT_EQ(result->files.size(), scenario.versions.back().size());
    // Again: there is nothing to do, and nothing is written.
    FaultFileSystem files(*disk);
    const Result<InPlaceResult> again = run_in_place(files, scenario.deltas);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_TRUE(again->already_target);
    EXPECT_EQ(again->bytes_written, 0u);
    EXPECT_EQ(files.operations(), 0u);
  }
}

TEST(InPlaceTest, SayWhatWasDone) {
  const TestCheckpoint old_one = plain_checkpoint();
  TestCheckpoint new_one = old_one;
  new_one.tensors["b"].bytes[5] ^= 1;
  new_one.tensors["b"].bytes[4100] ^= 1;
  const Scenario scenario = make_scenario({old_one, new_one});
  FaultFileSystem files(*scenario.disk);
  const Result<InPlaceResult> result = run_in_place(files, scenario.deltas);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->tensors, 3u);
  EXPECT_EQ(result->changed, 2u);
  EXPECT_EQ(result->files, std::vector<std::string>{"ckpt"});
  EXPECT_FALSE(result->already_target);
  // The journal first, then only pages that change, then the journal goes.
  std::vector<std::string> kinds;
  for (const std::string& line : files.trace()) kinds.push_back(line.substr(0, line.find(' ')));
  EXPECT_EQ(kinds, (std::vector<std::string>{"create", "write", "sync", "rename", "sync_directory",
                                             "write", "sync", "remove", "sync_directory"}))
      << testing::PrintToString(files.trace());
}

// Where a header's length is odd, words lie across pages.
TEST(InPlaceTest, EveryWordOfAnUnalignedFile) {
  TestCheckpoint old_one;
  old_one.directory = false;
  old_one.padding = 3;
  Prng prng(5);
  old_one.tensors["w"] = {Dtype::kF64, {1100}, random_bytes(prng, 8800), 0};
  for (std::size_t word = 0; word < 1100; word += word < 480 || word > 520 ? 37 : 1) {
    TestCheckpoint new_one = old_one;
    for (std::size_t i = 0; i < 8; ++i) new_one.tensors["w"].bytes[8 * word + i] ^= 0xff;
    const Scenario scenario = make_scenario({old_one, new_one});
    ASSERT_TRUE(run_in_place(*scenario.disk, scenario.deltas).ok());
    ASSERT_EQ(checkpoint_files(*scenario.disk), scenario.versions.back()) << word;
  }
}

TEST(InPlaceTest, WhatAnInterruptedRunLeftBesideIsRemoved) {
  TestCheckpoint new_one = changed_checkpoint();
  new_one.metadata["step"] = "1";
  const Scenario scenario = make_scenario({plain_checkpoint(), new_one});
  for (std::size_t version = 0; version < 2; ++version) {
    const auto disk = scenario.with_checkpoint(scenario.versions[version]);
    disk->put("w/ckpt.dcr-new", text_bytes("half"));
    disk->put("w/ckpt.dcr-journal.tmp", text_bytes("half"));
    const Result<InPlaceResult> result = run_in_place(*disk, scenario.deltas);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(checkpoint_files(*disk), scenario.versions.back());
  }
}

TEST(InPlaceTest, AnotherBaseIsRefusedByItsFirstTensor) {
  for (std::uint64_t seed = 0; seed < campaign_cases(100); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    const Scenario scenario = random_scenario(seed, 1 + seed % 2);
    TestCheckpoint other = scenario.checkpoints.front();
    std::vector<std::string> names;
    for (auto& [name, tensor] : other.tensors) {
      if (!tensor.bytes.empty()) names.push_back(name);
    }
    const std::string& name = names[prng.below(names.size())];
    Bytes& bytes = other.tensors[name].bytes;
    bytes[prng.below(bytes.size())] ^= 0x40;
    const auto disk = scenario.with_checkpoint(other.files(kScenarioPath));
    const Status status = refused(scenario, *disk);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_EQ(status.tensor(), name);
    EXPECT_TRUE(contains(status, "tensor \"" + name + "\" differs from the base"))
        << status.message();
    EXPECT_TRUE(contains(status, "nothing was written"));
  }
}

TEST(InPlaceTest, AnotherTableIsRefused) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  const auto refuse = [&](const TestCheckpoint& base, const std::string& tensor,
                          const std::string& words) {
    const auto disk = scenario.with_checkpoint(base.files(kScenarioPath));
    const Status status = refused(scenario, *disk);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_EQ(status.tensor(), tensor);
    EXPECT_TRUE(contains(status, words)) << status.message();
  };
  TestCheckpoint base = plain_checkpoint();
  base.tensors.erase("b");
  refuse(base, "b", "tensor \"b\" is missing from the base");
  base = plain_checkpoint();
  base.tensors["aa"] = base.tensors["a"];
  refuse(base, "aa", "tensor \"aa\" is not in the base");
  base = plain_checkpoint();
  base.tensors["b"].dtype = Dtype::kI16;
  refuse(base, "b", "tensor \"b\" has another dtype or shape than in the base");
}

TEST(InPlaceTest, OtherFilesMustBeTheBases) {
  TestCheckpoint old_one = plain_checkpoint();
  old_one.directory = true;
  old_one.others = {{"config.json", "1"}, {"gone.txt", "2"}, {"same.txt", "3"}};
  TestCheckpoint new_one = old_one;
  new_one.tensors["a"].bytes[0] ^= 1;
  new_one.others = {{"config.json", "4"}, {"new.txt", "5"}, {"same.txt", "3"}};
  const Scenario scenario = make_scenario({old_one, new_one});
  const auto refuse = [&](const std::string& name, const std::string& content,
                          const std::string& words) {
    const auto disk = scenario.disk->recover(Unsynced::kAll);
    const std::string path = kScenarioPath + std::string("/") + name;
    if (content.empty()) {
      ASSERT_TRUE(disk->remove(path).ok());
    } else {
      disk->put(path, text_bytes(content));
    }
    const Status status = refused(scenario, *disk);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_TRUE(contains(status, "file \"" + name + "\" " + words)) << status.message();
  };
  refuse("config.json", "x", "is neither the base's nor the target's, and would be replaced");
  refuse("config.json", "", "of the base is missing");
  refuse("new.txt", "x", "is neither the base's nor the target's, and would be replaced");
  refuse("gone.txt", "x", "is not the base's, and would be removed");
  refuse("same.txt", "x", "is not the base's, and the delta does not carry it");
  // Files that the delta does not speak of stay.
  const auto disk = scenario.disk->recover(Unsynced::kAll);
  disk->put(kScenarioPath + std::string("/notes.txt"), text_bytes("mine"));
  ASSERT_TRUE(run_in_place(*disk, scenario.deltas).ok());
  std::map<std::string, Bytes> expected = scenario.versions.back();
  expected[kScenarioPath + std::string("/notes.txt")] = text_bytes("mine");
  EXPECT_EQ(checkpoint_files(*disk), expected);
}

TEST(InPlaceTest, PermissionsAreKept) {
  TestCheckpoint old_one = plain_checkpoint();
  old_one.directory = true;
  old_one.others = {{"config.json", "1"}};
  TestCheckpoint new_one = changed_checkpoint();
  new_one.directory = true;
  new_one.others = {{"config.json", "2"}, {"new.txt", "3"}};
  const Scenario scenario = make_scenario({old_one, new_one});
  for (const auto& [path, bytes] : scenario.versions[0]) {
    ASSERT_TRUE(scenario.disk->set_permissions(path, 0600).ok());
  }
  ASSERT_TRUE(run_in_place(*scenario.disk, scenario.deltas).ok());
  const auto permissions = [&scenario](const std::string& name) {
    const Result<FileInfo> info = scenario.disk->info(kScenarioPath + ("/" + name), false);
    return info.ok() ? info->permissions : 0;
  };
  EXPECT_EQ(permissions("config.json"), 0600u);
  EXPECT_EQ(permissions("model.safetensors"), 0600u);
  EXPECT_EQ(permissions("new.txt"), 0644u);
}

TEST(InPlaceTest, ADamagedDeltaIsRefusedBeforeTheFirstWrite) {
  const Scenario scenario =
      make_scenario({plain_checkpoint(), changed_checkpoint(), plain_checkpoint()});
  const Bytes second = scenario.disk->get(scenario.deltas[1]);
  for (std::size_t at = 0; at < second.size(); ++at) {
    const auto disk = scenario.disk->recover(Unsynced::kAll);
    Bytes damaged = second;
    damaged[at] ^= 0x10;
    disk->put(scenario.deltas[1], damaged);
    EXPECT_FALSE(refused(scenario, *disk).ok()) << at;
  }
}

TEST(InPlaceTest, AChainThatDoesNotFitIsRefusedBeforeTheFirstWrite) {
  Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  scenario.deltas = {scenario.deltas[0], scenario.deltas[0]};
  const Status status = refused(scenario, *scenario.disk);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_TRUE(contains(status, "does not follow")) << status.message();
}

// Payloads and table are each sound but do not belong together: found before the first write.
TEST(InPlaceTest, ADeltaThatDoesNotKeepItsPromiseIsRefused) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  const Result<DeltaReader> delta = DeltaReader::open(*scenario.disk, scenario.deltas[0]);
  ASSERT_TRUE(delta.ok());
  DeltaFooter footer = delta->footer();
  for (DeltaTensor& tensor : footer.tensors) {
    if (tensor.name == "b") tensor.target.digest[3] ^= 1;
  }
  footer.target_identity = target_identity(footer.tensors);
  const Bytes bytes = scenario.disk->get(scenario.deltas[0]);
  ASSERT_TRUE(scenario.disk->remove(scenario.deltas[0]).ok());
  Result<std::unique_ptr<File>> file = scenario.disk->create(scenario.deltas[0], 0644);
  ASSERT_TRUE(file.ok());
  DeltaWriter writer(file->get());
  ASSERT_TRUE(writer.begin().ok());
  for (std::uint64_t i = 0; i < delta->footer().payloads.size(); ++i) {
    const PayloadIndexEntry& entry = delta->footer().payloads[i];
    ASSERT_TRUE(writer.send(i, ByteSpan(bytes).subspan(entry.offset, entry.stored_bytes)).ok());
  }
  Digest id;
  ASSERT_TRUE(writer.finish(&footer, &id).ok());

  const Status status = refused(scenario, *scenario.disk);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_EQ(status.tensor(), "b");
  EXPECT_TRUE(contains(status, "do not give tensor \"b\" the bits")) << status.message();
}

TEST(InPlaceTest, LinksAreRefused) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  const auto disk = scenario.disk->recover(Unsynced::kAll);
  disk->put_hard_link("w/other", kScenarioPath);
  Status status = refused(scenario, *disk);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_TRUE(contains(status, "has 2 links")) << status.message();

  scenario.disk->put_symlink("w/link", "/w/ckpt");
  FaultFileSystem files(*scenario.disk);
  status = run_in_place(files, scenario.deltas, 0, "w/link").status();
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_TRUE(contains(status, "\"w/link\" is a symlink")) << status.message();
  expect_untouched(scenario, files, *scenario.disk);
}

TEST(InPlaceTest, PathsWithoutANameAreRefused) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  for (const std::string path : {".", "/", "w/."}) {
    const Status status = run_in_place(*scenario.disk, scenario.deltas, 0, path).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << path;
  }
}

TEST(InPlaceTest, ATrailingSlashIsTheSameDirectory) {
  TestCheckpoint old_one = plain_checkpoint();
  old_one.directory = true;
  TestCheckpoint new_one = changed_checkpoint();
  new_one.directory = true;
  const Scenario scenario = make_scenario({old_one, new_one});
  const auto disk = interrupted_in_batch(scenario, 1);
  ASSERT_TRUE(disk->exists("w/ckpt.dcr-journal"));
  ASSERT_TRUE(run_in_place(*disk, scenario.deltas, 0, "w/ckpt/").ok());
  EXPECT_EQ(checkpoint_files(*disk), scenario.versions.back());
}

TEST(InPlaceTest, AFileDoesNotBecomeADirectory) {
  TestCheckpoint new_one = changed_checkpoint();
  new_one.directory = true;
  const Scenario scenario = make_scenario({plain_checkpoint(), new_one});
  const Status status = refused(scenario, *scenario.disk);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_TRUE(contains(status, "write to another place")) << status.message();
}

TEST(InPlaceTest, AnotherDeltasJournalIsNamed) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  const auto disk = interrupted_in_batch(scenario, 1);
  const Result<DeltaReader> first = DeltaReader::open(*disk, scenario.deltas[0]);
  ASSERT_TRUE(first.ok());
  Scenario other = make_scenario({plain_checkpoint(), plain_checkpoint()});
  disk->put("d/other.dcr", other.disk->get(other.deltas[0]));
  other.deltas = {"d/other.dcr"};
  const Status status = refused(other, *disk);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_TRUE(contains(status, digest_text(first->id()))) << status.message();
  EXPECT_TRUE(contains(status, "is to be completed first")) << status.message();
  ASSERT_TRUE(run_in_place(*disk, scenario.deltas).ok());
  EXPECT_EQ(checkpoint_files(*disk), scenario.versions.back());
}

TEST(InPlaceTest, ADamagedJournalIsNeverReplayed) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  const auto half = interrupted_in_batch(scenario, 1);
  const Bytes journal = half->get("w/ckpt.dcr-journal");
  for (std::size_t at = 0; at < journal.size(); ++at) {
    Bytes damaged = journal;
    damaged[at] ^= 0x01;
    half->put("w/ckpt.dcr-journal", damaged);
    const Status status = refused(scenario, *half);
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_TRUE(contains(status, "restore the checkpoint from a copy")) << status.message();
  }
}

// A journal whose digest is right but whose payload is not this delta's.
TEST(InPlaceTest, AForeignPayloadInAJournalIsNeverReplayed) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  const auto half = interrupted_in_batch(scenario, 1);
  Result<Journal> journal = decode_journal(half->get("w/ckpt.dcr-journal"));
  ASSERT_TRUE(journal.ok());
  Journal other = *journal;
  other.payload.back() ^= 1;
  half->put("w/ckpt.dcr-journal", encode_journal(other));
  Status status = refused(scenario, *half);
  EXPECT_EQ(status.code(), Code::kCorrupt) << status.message();
  other = *journal;
  other.end_item = 1000;
  half->put("w/ckpt.dcr-journal", encode_journal(other));
  status = refused(scenario, *half);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_TRUE(contains(status, "more items than the delta has")) << status.message();
}

TEST(InPlaceTest, AnUnfinishedCheckpointPutBackToItsBaseIsBegunAgain) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  for (std::uint64_t batch = 0; batch < 3; ++batch) {
    const auto disk = interrupted_in_batch(scenario, batch);
    for (const auto& [path, bytes] : scenario.versions.front()) disk->put(path, bytes);
    ASSERT_TRUE(disk->exists("w/ckpt.dcr-journal"));
    const Result<InPlaceResult> result = run_in_place(*disk, scenario.deltas);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(checkpoint_files(*disk), scenario.versions.back());
  }
}

TEST(InPlaceTest, AnUnfinishedCheckpointThatWasChangedIsRefused) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  const auto disk = interrupted_in_batch(scenario, 1);
  Bytes bytes = disk->get(kScenarioPath);
  bytes[bytes.size() - 1] ^= 1;  // of the last tensor, whose items come later
  disk->put(kScenarioPath, bytes);
  const Status status = refused(scenario, *disk);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.tensor(), "c");
  EXPECT_TRUE(contains(status, "neither at the base nor where the interrupted run left it"))
      << status.message();
}

// Also one whose file is written beside, which a journal does not explain.
TEST(InPlaceTest, AnUnfinishedDirectoryThatWasChangedIsRefused) {
  const Scenario scenario = busy_scenario();
  const auto disk = interrupted_in_batch(scenario, 0);
  const std::string shard = "w/ckpt/model-3-of-3.safetensors";  // of which the header changes
  Bytes bytes = disk->get(shard);
  bytes.back() ^= 1;
  disk->put(shard, bytes);
  const Status status = refused(scenario, *disk);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.tensor(), "c");
  EXPECT_TRUE(contains(status, "differs from the base, and from the target")) << status.message();
}

// Nothing that a journal says is taken for done without a look.
TEST(InPlaceTest, ARenamingThatCannotBeCompletedIsAnError) {
  const Scenario scenario = busy_scenario();
  const Result<DeltaReader> delta = DeltaReader::open(*scenario.disk, scenario.deltas[0]);
  ASSERT_TRUE(delta.ok());
  Journal journal;
  journal.delta = delta->id();
  journal.state = JournalState::kRenaming;
  journal.renames = {"model-3-of-3.safetensors"};
  scenario.disk->put("w/ckpt.dcr-journal", encode_journal(journal));
  Status status = run_in_place(*scenario.disk, scenario.deltas).status();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_TRUE(contains(status, "the checkpoint is not the target")) << status.message();
  EXPECT_EQ(scenario.disk->get("w/ckpt.dcr-journal"), encode_journal(journal));

  ASSERT_TRUE(scenario.disk->remove("w/ckpt/model-3-of-3.safetensors").ok());
  status = run_in_place(*scenario.disk, scenario.deltas).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_TRUE(contains(status, "model-3-of-3.safetensors.dcr-new")) << status.message();
  EXPECT_EQ(scenario.disk->get("w/ckpt.dcr-journal"), encode_journal(journal));
}

TEST(InPlaceTest, TensorsAtTheTargetCountAsDone) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  TestCheckpoint mixed = plain_checkpoint();
  mixed.tensors["b"] = changed_checkpoint().tensors["b"];
  const auto disk = scenario.with_checkpoint(mixed.files(kScenarioPath));
  const Result<InPlaceResult> result = run_in_place(*disk, scenario.deltas);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_FALSE(result->already_target);
  EXPECT_EQ(checkpoint_files(*disk), scenario.versions.back());
}

TEST(InPlaceTest, AChainGoesOnFromWhereItStands) {
  for (std::uint64_t seed = 0; seed < campaign_cases(40); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Scenario scenario = random_scenario(seed, 3);
    for (std::size_t step = 0; step <= 3; ++step) {
      const auto disk = scenario.with_checkpoint(scenario.versions[step]);
      const Result<InPlaceResult> result = run_in_place(*disk, scenario.deltas);
      ASSERT_TRUE(result.ok()) << result.status().message();
      EXPECT_EQ(checkpoint_files(*disk), scenario.versions.back());
    }
  }
}

// A base that is sharded in another way than the delta's own.
TEST(InPlaceTest, ABaseShardedOtherwise) {
  TestCheckpoint old_one = plain_checkpoint();
  old_one.directory = true;
  TestCheckpoint new_one = changed_checkpoint();
  new_one.directory = true;
  new_one.tensors["b"].shard = 1;
  const Scenario scenario = make_scenario({old_one, new_one});
  TestCheckpoint base = old_one;
  base.tensors["a"].shard = 2;
  base.tensors["b"].shard = 1;
  const auto disk = scenario.with_checkpoint(base.files(kScenarioPath));
  const Result<InPlaceResult> result = run_in_place(*disk, scenario.deltas);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(checkpoint_files(*disk), scenario.versions.back());
}

TEST(InPlaceTest, Cancelled) {
  const Scenario scenario = make_scenario({plain_checkpoint(), changed_checkpoint()});
  CancelToken cancel;
  cancel.cancel();
  FaultFileSystem files(*scenario.disk);
  const auto executor = make_executor(1);
  const Work work{&files, executor.get(), std::uint64_t{256} << 20, false, &cancel, {}};
  EXPECT_EQ(apply_chain_in_place(work, scenario.deltas, kScenarioPath).status().code(),
            Code::kCancelled);
  expect_untouched(scenario, files, *scenario.disk);
}

}  // namespace
}  // namespace dcr
