// That every value arrives where the platform's calling convention has it, in functions that the
// system's compiler makes.
#include "src/ops/user_kernel/cpu/function_call.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/core/strings.h"
#include "src/core/test_util.h"
#include "src/ops/user_kernel/cpu/host_compiler.h"
#include "src/ops/user_kernel/parameters.h"

namespace xla_gpu::user_kernel {
namespace {

struct CType {
  DType dtype;
  const char* name;
};
constexpr CType kTypes[] = {
    {DType::kPred, "bool"},    {DType::kI8, "int8_t"},    {DType::kI16, "int16_t"},
    {DType::kI32, "int32_t"},  {DType::kI64, "int64_t"},  {DType::kU8, "uint8_t"},
    {DType::kU16, "uint16_t"}, {DType::kU32, "uint32_t"}, {DType::kU64, "uint64_t"},
    {DType::kF32, "float"},    {DType::kF64, "double"},   {DType::kU64, "void*"},
#if defined(__FLT16_MAX__)
    {DType::kF16, "_Float16"},
#endif
};

// One function, whose parameters go to `seen` one after the other, 8 bytes each.
struct Signature {
  std::vector<CType> types;
  std::vector<DType> dtypes;
  std::vector<uint64_t> values;

  std::string Text(const std::string& name) const {
    std::string list, body;
    for (size_t i = 0; i < types.size(); ++i) {
      list += StrCat(i == 0 ? "" : ", ", types[i].name, " p", i);
      // Widened first: a callee may rely on what the caller did with the upper bytes.
      const std::string wide =
          types[i].dtype == DType::kPred || !IsFloat(types[i].dtype)
              ? StrCat("uint64_t w = (uint64_t)p", i, ";")
              : StrCat("uint64_t w = 0; std::memcpy(&w, &p", i, ", sizeof(p", i, "));");
      body += StrCat("  { ", wide, " seen[", i, "] = w; }\n");
    }
    return StrCat("int ", name, "(", list, ") {\n", body, "  return ", types.size(), ";\n}\n");
  }
};

// As Signature::Text writes what it sees.
uint64_t Widened(DType type, uint64_t bits) {
  const int width = 8 * static_cast<int>(DTypeSize(type));
  const bool is_signed = InfoOf(type).dlpack == kDlpackInt;
  if (width < 64 && is_signed && (bits >> (width - 1) & 1) != 0) bits |= ~uint64_t{0} << width;
  return bits;
}

Signature Random(std::mt19937& random, size_t count) {
  Signature made;
  for (size_t i = 0; i < count; ++i) {
    const CType type = kTypes[random() % std::size(kTypes)];
    uint64_t bits = static_cast<uint64_t>(random()) << 32 | random();
    const int width = 8 * static_cast<int>(DTypeSize(type.dtype));
    if (width < 64) bits &= (uint64_t{1} << width) - 1;
    if (type.dtype == DType::kPred) bits &= 1;
    made.types.push_back(type);
    made.dtypes.push_back(type.dtype);
    made.values.push_back(bits);
  }
  return made;
}

void Check(const std::vector<Signature>& signatures) {
  std::string text = "#include <cstdint>\n#include <cstring>\nstatic uint64_t seen[128];\n";
  std::string table;
  for (size_t i = 0; i < signatures.size(); ++i) {
    text += signatures[i].Text(StrCat("f", i));
    table += StrCat(i == 0 ? "" : ", ", "(void*)f", i);
  }
  text += StrCat("void* const table[] = {", table, ", (void*)seen};\n",
                 "void** entry() { return const_cast<void**>(table); }\n");
  Implementation implementation;
  implementation.kind = Implementation::Kind::kHostSource;
  implementation.text = text;
  implementation.entry = "entry";
  implementation.options = {"-O1", "-Wno-overflow"};
  ScopedEnv cache("XLA_GPU_CACHE_DIR", "");
  const auto entry = CompileHostSource("signatures", implementation);
  ASSERT_TRUE(entry.ok()) << entry.status().ToString();
  void** made = reinterpret_cast<void** (*)()>(const_cast<void*>(*entry))();
  const auto* seen = static_cast<const uint64_t*>(made[signatures.size()]);
  for (size_t i = 0; i < signatures.size(); ++i) {
    const Signature& signature = signatures[i];
    EXPECT_EQ(CallFunction(made[i], signature.dtypes, signature.values),
              static_cast<int>(signature.types.size()));
    for (size_t k = 0; k < signature.types.size(); ++k) {
      EXPECT_EQ(seen[k], Widened(signature.dtypes[k], signature.values[k]))
          << "parameter " << k << " of\n"
          << signature.Text("f");
    }
  }
}

TEST(FunctionCall, NoneToOneHundredAndTwentyEightOfAType) {
  std::vector<Signature> signatures;
  for (const CType& type : kTypes) {
    for (const size_t count :
         {size_t{0}, size_t{1}, size_t{6}, size_t{7}, size_t{9}, size_t{17}, kMaxParameters}) {
      Signature made;
      for (size_t i = 0; i < count; ++i) {
        const AttrValue value = IsFloat(type.dtype) ? AttrValue(1.5 * static_cast<double>(i) - 3)
                                                    : AttrValue(static_cast<int64_t>(i) - 3);
        made.types.push_back(type);
        made.dtypes.push_back(type.dtype);
        made.values.push_back(NumberBits(type.dtype, value));
      }
      signatures.push_back(std::move(made));
    }
  }
  Check(signatures);
}

TEST(FunctionCall, RandomSignatures) {
  std::mt19937 random(20260101);
  std::vector<Signature> signatures;
  for (size_t i = 0; i < 150; ++i) {
    const size_t most = i % 3 == 0 ? kMaxParameters : 24;
    signatures.push_back(Random(random, random() % (most + 1)));
  }
  signatures.push_back(Random(random, kMaxParameters));
  Check(signatures);
}

}  // namespace
}  // namespace xla_gpu::user_kernel
