// Bytes that no plugin sends; pjrt_client_test.cc has those that one does.
#include "src/xla/hlo_proto.h"

#include <gtest/gtest.h>

#include <string>

namespace xla_gpu::xla {
namespace {

std::string Field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) +
         bytes;
}
std::string ElementType(int type) { return std::string("\x10") + static_cast<char>(type); }
std::string Dimensions(const std::string& packed) { return Field(3, packed); }
std::string Module(const std::string& shape) {
  return Field(1, "name") + Field(4, Field(1, shape) + Field(2, ElementType(11)));
}

TEST(HloProtoTest, ReadsTensorTypes) {
  const auto read = [](const std::string& shape) -> std::string {
    const auto parameters = HloParameters(Module(shape), false);
    if (!parameters.has_value()) return "no proto";
    if (parameters->size() != 1) return "another number";
    return (*parameters)[0].has_value() ? (*parameters)[0]->ToString() : "unknown";
  };
  EXPECT_EQ(read(ElementType(11) + Dimensions("\x04\x80\x01")), "f32[4,128]");
  EXPECT_EQ(read(ElementType(11) + "\x18\x04\x18\x02"), "f32[4,2]") << "not packed";
  EXPECT_EQ(read(ElementType(2)), "i8[]");
  EXPECT_EQ(read(ElementType(11) + Dimensions("\x04") + Field(6, "\x01")), "unknown") << "dynamic";
  EXPECT_EQ(read(ElementType(17)), "unknown") << "a token";
  EXPECT_EQ(read(ElementType(11) + Dimensions("\x80")), "unknown");
}

TEST(HloProtoTest, AnyOtherBytesAreNothing) {
  const std::string module = Module(ElementType(11) + Dimensions("\x04"));
  EXPECT_TRUE(HloParameters(module, false).has_value());
  EXPECT_TRUE(HloParameters(Field(1, module), true).has_value());
  for (size_t size = 0; size < module.size(); ++size) {
    EXPECT_FALSE(HloParameters(module.substr(0, size), false).has_value()) << size;
  }
  EXPECT_FALSE(HloParameters("HloModule jit_f", false).has_value());
  EXPECT_FALSE(HloParameters(std::string(20, '\xff'), true).has_value());
}

}  // namespace
}  // namespace xla_gpu::xla
