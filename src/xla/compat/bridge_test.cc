// Every struct of the table, between every two releases of a framework and a plugin.
#include "src/xla/compat/bridge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace xla_gpu::xla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A framework's struct: exactly `size` bytes of the heap, so that ASan sees a step beyond.
class FrameworkStruct {
 public:
  FrameworkStruct(size_t size, char fill) : size_(size), bytes_(new char[size]) {
    std::memset(bytes_.get(), fill, size);
    std::memcpy(bytes_.get(), &size, sizeof(size));
  }
  char* get() { return bytes_.get(); }
  size_t struct_size() const {
    size_t size;
    std::memcpy(&size, bytes_.get(), sizeof(size));
    return size;
  }
  bool Holds(size_t begin, size_t end, char value) const {
    for (size_t i = begin; i < end; ++i) {
      if (bytes_[i] != value) return false;
    }
    return true;
  }
  size_t size() const { return size_; }

 private:
  size_t size_;
  std::unique_ptr<char[]> bytes_;
};

size_t SizeOf(const char* bytes) {
  size_t size;
  std::memcpy(&size, bytes, sizeof(size));
  return size;
}

TEST(StructHistoryTest, SizesGrowAndBeginAtTheOldestRelease) {
  for (const StructHistory* history : StructHistories()) {
    EXPECT_EQ(history->sizes.front().since, kOldestBridgedMinor) << history->name;
    for (size_t i = 1; i < history->sizes.size(); ++i) {
      EXPECT_GT(history->sizes[i].since, history->sizes[i - 1].since) << history->name;
      EXPECT_GT(history->sizes[i].size, history->sizes[i - 1].size) << history->name;
      EXPECT_STRNE(history->sizes[i].members, "") << history->name;
    }
    EXPECT_LE(history->sizes.back().since, kNewestBridgedMinor);
    EXPECT_EQ(history->SizeAt(0), history->sizes.front().size);
    EXPECT_EQ(history->SizeAt(1000), history->sizes.back().size);
  }
  // As XLA's own messages named them: PyTorch/XLA 2.9 (PJRT 0.75) and xla-cpu-pjrt (0.81).
  EXPECT_EQ(kExecuteOptions.SizeAt(75), 80u);
  EXPECT_EQ(kExecuteOptions.SizeAt(81), 112u);
}

TEST(BridgedStructTest, EveryPairOfReleases) {
  for (const StructHistory* history : StructHistories()) {
    for (const StructSize& framework : history->sizes) {
      for (const StructSize& plugin : history->sizes) {
        SCOPED_TRACE(std::string(history->name) + " of 0." + std::to_string(framework.since) +
                     " to 0." + std::to_string(plugin.since));
        FrameworkStruct args(framework.size, 0);
        const size_t common = std::min(framework.size, plugin.size);
        std::memset(args.get() + 8, 7, common - 8);  // what both sides know
        BridgedStruct bridged(args.get(), *history, plugin.since);
        ASSERT_TRUE(bridged.status().ok()) << bridged.status().ToString();
        char* seen = static_cast<char*>(bridged.get());
        EXPECT_GE(SizeOf(seen), plugin.size);
        if (framework.size == plugin.size) {
          EXPECT_EQ(seen, args.get());
        }
        if (framework.size > plugin.size) {
          EXPECT_EQ(SizeOf(seen), plugin.size);
        }
        for (size_t i = 8; i < common; ++i) EXPECT_EQ(seen[i], 7);
        for (size_t i = common; i < plugin.size; ++i) EXPECT_EQ(seen[i], 0);
        std::memset(seen + 8, 9, plugin.size - 8);  // the plugin answers in all it knows
        bridged.CopyBack();
        EXPECT_EQ(args.struct_size(), framework.size);
        EXPECT_TRUE(args.Holds(8, common, 9));
        EXPECT_TRUE(args.Holds(common, framework.size, 0));
      }
    }
  }
}

TEST(BridgedStructTest, WhatAnOlderPluginDoesNotKnow) {
  int asked = 0;
  for (const StructHistory* history : StructHistories()) {
    for (size_t i = 1; i < history->sizes.size(); ++i) {
      const StructSize& older = history->sizes[i - 1];
      const StructSize& newer = history->sizes[i];
      FrameworkStruct args(newer.size, 5);  // the framework sets everything, or leaves garbage
      BridgedStruct bridged(args.get(), *history, newer.since - 1);
      if (newer.kind == Added::kInput) {
        ++asked;
        EXPECT_EQ(bridged.status().code(), StatusCode::kUnimplemented);
        EXPECT_THAT(bridged.status().message(),
                    AllOf(HasSubstr(history->name), HasSubstr(newer.members),
                          HasSubstr("PJRT 0." + std::to_string(newer.since)),
                          HasSubstr("plugin has PJRT 0." + std::to_string(newer.since - 1)),
                          HasSubstr("XLA_GPU_PJRT_PLUGIN")));
        continue;
      }
      ASSERT_TRUE(bridged.status().ok()) << bridged.status().ToString();
      EXPECT_EQ(SizeOf(static_cast<char*>(bridged.get())), older.size);
      bridged.CopyBack();
      // A result that nobody fills reads as zero; a hint stays the framework's own.
      const char left = newer.kind == Added::kOutput ? 0 : 5;
      EXPECT_TRUE(args.Holds(older.size, newer.size, left)) << history->name;
    }
  }
  EXPECT_GT(asked, 3);
}

TEST(BridgedStructTest, OneByteIsEnoughToAsk) {
  for (size_t at = kExecuteOptions.SizeAt(76); at < kExecuteOptions.SizeAt(78); ++at) {
    FrameworkStruct args(kExecuteOptions.SizeAt(78), 0);
    args.get()[at] = 1;
    EXPECT_FALSE(BridgedStruct(args.get(), kExecuteOptions, 76).status().ok());
    EXPECT_TRUE(BridgedStruct(args.get(), kExecuteOptions, 78).status().ok());
  }
}

TEST(BridgedStructTest, BothNewerThanTheTableIsLeftToThem) {
  FrameworkStruct args(kExecuteOptions.sizes.back().size + 64, 5);
  BridgedStruct bridged(args.get(), kExecuteOptions, 1000);
  ASSERT_TRUE(bridged.status().ok());
  EXPECT_EQ(bridged.get(), args.get());
}

TEST(BridgedStructTest, AFrameworkNewerThanTheTableIsNeverMisread) {
  // What lies beyond the table cannot be judged: it may pass only as zero.
  for (const char beyond : {0, 1}) {
    FrameworkStruct args(kExecuteOptions.sizes.back().size + 64, 0);
    args.get()[args.size() - 1] = beyond;
    BridgedStruct bridged(args.get(), kExecuteOptions, 81);
    EXPECT_EQ(bridged.status().ok(), beyond == 0);
  }
  FrameworkStruct results(kCompiledMemoryStatsArgs.sizes.back().size + 16, 5);
  BridgedStruct bridged(results.get(), kCompiledMemoryStatsArgs, 81);
  ASSERT_TRUE(bridged.status().ok());
  bridged.CopyBack();
  EXPECT_TRUE(results.Holds(kCompiledMemoryStatsArgs.SizeAt(81), results.size(), 0));
}

TEST(BridgedStructTest, WhatIsNoStructIsThePluginsToRefuse) {
  BridgedStruct null(nullptr, kExecuteOptions, 81);
  EXPECT_EQ(null.get(), nullptr);
  null.CopyBack();
  for (const size_t size : {size_t{8}, size_t{16}, kExecuteOptions.sizes.front().size - 1}) {
    FrameworkStruct args(size, 0);
    BridgedStruct bridged(args.get(), kExecuteOptions, 81);
    EXPECT_TRUE(bridged.status().ok());
    EXPECT_EQ(bridged.get(), args.get());
  }
}

}  // namespace
}  // namespace xla_gpu::xla
