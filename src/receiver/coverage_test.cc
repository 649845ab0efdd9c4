// Bytes that several writes or several loads share.
#include "receiver/coverage.h"

#include <gtest/gtest.h>

#include "receiver/test_loader.h"

namespace dcr {
namespace {

class CoverageTest : public testing::Test {
 public:
  HostMemory memory{std::uint64_t{1} << 20};
  TestLoader loader{memory};
  Catalogue catalogue;

  using Body = std::function<Status(const TensorView& value, LoaderHook& hook)>;
  void loads(const std::string& name, Body body) {
    loader.loads[name] = [body = std::move(body)](const TensorView& value,
                                                  LoaderHook& hook) -> Result<LoadReport> {
      DCR_TRY(body(value, hook));
      return LoadReport::kLoaded;
    };
  }

  // "path: reason" of every tensor.
  std::vector<std::string> verdicts() {
    const Result<PrewarmResult> result = prewarm(catalogue, loader, memory, {});
    if (!result.ok()) return {result.status().message()};
    std::vector<std::string> all;
    for (const TensorClass& one : result->classes) {
      all.push_back(std::string(path_name(one.path)) +
                    (one.reason.empty() ? "" : ": " + one.reason));
    }
    return all;
  }
};

using Verdicts = std::vector<std::string>;

TEST_F(CoverageTest, OneViewTwiceFromOtherElements) {
  catalogue = make_catalogue({{"w", Dtype::kBF16, {16}}});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {8});
  loads("w", [this, p](const TensorView& value, LoaderHook& hook) -> Status {
    DCR_TRY(loader.copy(hook, p, narrow(value, 0, 0, 8)));
    return loader.copy(hook, p, narrow(value, 0, 8, 8));
  });
  EXPECT_EQ(verdicts(), Verdicts{"refused: the loader writes bytes of a parameter twice"});
}

TEST_F(CoverageTest, AViewThatRepeatsItsWords) {
  catalogue = make_catalogue({{"w", Dtype::kBF16, {4, 2}}});
  TensorView p = loader.add_target("p", Dtype::kBF16, {2});
  p.sizes = {4, 2};
  p.strides = {0, 1};
  loads("w", [this, p](const TensorView& value, LoaderHook& hook) {
    return loader.copy(hook, p, value);
  });
  EXPECT_EQ(verdicts(), Verdicts{"refused: the loader writes bytes of a parameter twice"});
}

// What "b" leaves in "q" is what "a" left in "p".
TEST_F(CoverageTest, CopiesFromParameters) {
  catalogue = make_catalogue({{"a", Dtype::kBF16, {4}}, {"b", Dtype::kBF16, {4}}});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {4});
  const TensorView q = loader.add_target("q", Dtype::kBF16, {4});
  loads("a", [this, p](const TensorView& value, LoaderHook& hook) {
    return loader.copy(hook, p, value);
  });
  loads("b", [this, p, q](const TensorView&, LoaderHook& hook) { return loader.copy(hook, q, p); });
  EXPECT_EQ(verdicts(),
            (Verdicts{"traced",
                      "refused: the loader copies from a parameter, whatever is loaded there "
                      "later"}));
}

TEST_F(CoverageTest, CopiesOfNothing) {
  catalogue = make_catalogue({{"w", Dtype::kBF16, {0, 4}}});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {2, 4});
  loads("w", [this, p](const TensorView& value, LoaderHook& hook) -> Status {
    DCR_TRY(loader.copy(hook, narrow(p, 0, 0, 0), value));
    return loader.fill(hook, p, 0);
  });
  EXPECT_EQ(verdicts(), Verdicts{"skip: the loader writes nothing of it here"});
}

TEST_F(CoverageTest, PaddingThatIsCopied) {
  catalogue = make_catalogue({{"w", Dtype::kBF16, {4}}});
  const TensorView p = loader.add_target("p", Dtype::kBF16, {8});
  loads("w", [this, p](const TensorView& value, LoaderHook& hook) -> Status {
    DCR_TRY(loader.copy(hook, narrow(p, 0, 0, 4), value));
    DCR_ASSIGN(const TensorView zeros, loader.temporary(value, [](std::uint64_t, std::uint64_t) {
      return std::uint64_t{0};
    }));
    return loader.copy(hook, narrow(p, 0, 4, 4), zeros);
  });
  EXPECT_EQ(verdicts(),
            Verdicts{"scratch: the loader copies what it does not take from the given tensor"});
}

// What is loaded whole writes its constants again: over what others have there.
TEST_F(CoverageTest, AConstantUnderAnothersElements) {
  catalogue = make_catalogue({{"a", Dtype::kI8, {4}}, {"b", Dtype::kI8, {4}}});
  const TensorView p = loader.add_target("p", Dtype::kI8, {8});
  bool computes = false;
  loads("a", [&, p](const TensorView& value, LoaderHook& hook) -> Status {
    DCR_TRY(loader.fill(hook, p, 0));
    if (!computes) return loader.copy(hook, narrow(p, 0, 0, 4), value);
    DCR_ASSIGN(
        const TensorView made,
        loader.temporary(value, [](std::uint64_t word, std::uint64_t) { return word ^ 0x80; }));
    return loader.copy(hook, narrow(p, 0, 0, 4), made);
  });
  loads("b", [this, p](const TensorView& value, LoaderHook& hook) {
    return loader.copy(hook, narrow(p, 0, 4, 4), value);
  });
  EXPECT_EQ(verdicts(), (Verdicts{"traced", "traced"}));
  computes = true;
  EXPECT_EQ(verdicts(), (Verdicts{"refused: tensor \"b\" writes some of the same bytes",
                                  "refused: tensor \"a\" writes some of the same bytes"}));
}

}  // namespace
}  // namespace dcr
