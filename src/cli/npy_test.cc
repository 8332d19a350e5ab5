#include "src/cli/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace xla_gpu::cli {
namespace {

using ::testing::HasSubstr;

std::string Npy(const std::string& header, const std::string& data, char major = 1) {
  std::string bytes("\x93NUMPY", 6);
  bytes += major;
  bytes += '\0';
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  if (major > 1) bytes.append(2, '\0');
  return bytes + header + data;
}

TEST(NpyTest, EveryDtypeSurvivesARoundTrip) {
  for (const DType dtype :
       {DType::kPred, DType::kI8, DType::kI16, DType::kI32, DType::kI64, DType::kU8, DType::kU16,
        DType::kU32, DType::kU64, DType::kF16, DType::kF32, DType::kF64, DType::kBF16,
        DType::kF8E5M2, DType::kF8E4M3FN}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, {3}, {2, 3}, {0, 4}, {1, 1, 2, 2}}) {
      HostTensor tensor = HostTensor::Zeros(dtype, shape);
      for (size_t i = 0; i < tensor.data.size(); ++i) tensor.data[i] = static_cast<uint8_t>(i);
      const std::string bytes = FormatNpy(tensor);
      EXPECT_EQ((bytes.size() - tensor.data.size()) % 64, 0u);
      const auto again = ParseNpy(bytes, dtype);
      ASSERT_TRUE(again.ok()) << again.status().ToString();
      EXPECT_EQ(again->ToString(), tensor.ToString());
      EXPECT_EQ(again->data, tensor.data);
    }
  }
}

TEST(NpyTest, VoidTypesMeanWhatIsExpected) {
  const std::string two = Npy("{'descr': '<V2', 'fortran_order': False, 'shape': (1,), }", "ab", 2);
  EXPECT_EQ(ParseNpy(two, DType::kInvalid)->dtype, DType::kBF16);
  EXPECT_THAT(ParseNpy(two, DType::kF32).status().message(), HasSubstr("'<V2'"));
  const std::string one = Npy("{'descr': '|V1', 'fortran_order': False, 'shape': (1,), }", "a");
  EXPECT_EQ(ParseNpy(one, DType::kF8E5M2)->dtype, DType::kF8E5M2);
  EXPECT_EQ(ParseNpy(one, DType::kF8E4M3FN)->dtype, DType::kF8E4M3FN);
  EXPECT_FALSE(ParseNpy(one, DType::kInvalid).ok());
}

TEST(NpyTest, RefusesWhatIsWrong) {
  const struct {
    std::string bytes;
    const char* message;
  } cases[] = {
      {"", "no .npy file"},
      {"hello, this is text", "no .npy file"},
      {Npy("{}", "", 9), "format version is 9"},
      {Npy("{'descr': '<f4'", "").substr(0, 12), "header has 15 bytes"},
      {Npy("", ""), "does not begin with {"},
      {Npy("{}", ""), "is missing"},
      {Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", ""), "structured"},
      {Npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", ""), "no bool"},
      {Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", ""), "no tuple"},
      {Npy("{'descr': '<f4', 'fortran_order': False, 'shape': [1]}", ""), "no tuple"},
      {Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", ""), "unknown"},
      {Npy("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "12345678"), "'<c8'"},
      {Npy("{'descr': '>i2', 'fortran_order': False, 'shape': (1,)}", "12"),
       "'>i2'; allowed are, little"},
      {Npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1)}", "1234"), "Fortran order"},
      {Npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "12345678"), "'|O'"},
      {Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "1234"), "f32[2] needs 8"},
      {Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "12345"), "holds 5 bytes"},
      {Npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296, 2)}", "1"),
       "needs more than 2^64"},
  };
  for (const auto& c : cases) {
    const auto tensor = ParseNpy(c.bytes, DType::kInvalid);
    EXPECT_THAT(tensor.status().message(), HasSubstr(c.message));
  }
  EXPECT_THAT(ReadNpy("/no/such/file.npy", DType::kInvalid).status().message(),
              HasSubstr("/no/such/file.npy: cannot be read: No such file"));
  EXPECT_THAT(WriteNpy("/no/such/file.npy", HostTensor::Zeros(DType::kF32, {1})).message(),
              HasSubstr("cannot be written"));
}

}  // namespace
}  // namespace xla_gpu::cli
