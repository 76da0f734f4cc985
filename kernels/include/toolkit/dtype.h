// SPDX-License-Identifier: Apache-2.0
// Names and sizes of the element types.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "toolkit/contract.h"

namespace toolkit {

struct DtypeInfo {
  tk_dtype dtype;
  std::string_view name;         // ours, in rows and messages
  std::string_view safetensors;  // the safetensors header's word, empty: none
  int bytes;
};

inline constexpr std::array<DtypeInfo, 17> kDtypes{{
    {TK_BOOL, "bool", "BOOL", 1},       {TK_U8, "u8", "U8", 1},
    {TK_I8, "i8", "I8", 1},             {TK_I16, "i16", "I16", 2},
    {TK_I32, "i32", "I32", 4},          {TK_I64, "i64", "I64", 8},
    {TK_F16, "f16", "F16", 2},          {TK_BF16, "bf16", "BF16", 2},
    {TK_F32, "f32", "F32", 4},          {TK_F64, "f64", "F64", 8},
    {TK_E4M3FN, "e4m3fn", "F8_E4M3", 1}, {TK_E4M3FNUZ, "e4m3fnuz", "F8_E4M3FNUZ", 1},
    {TK_E4B15, "e4b15", "", 1},         {TK_E5M2, "e5m2", "F8_E5M2", 1},
    {TK_U16, "u16", "U16", 2},          {TK_U32, "u32", "U32", 4},
    {TK_U64, "u64", "U64", 8},
}};

inline const DtypeInfo* info_of(tk_dtype d) {
  for (const auto& i : kDtypes)
    if (i.dtype == d) return &i;
  return nullptr;
}
inline std::string_view name_of(tk_dtype d) {
  const DtypeInfo* i = info_of(d);
  return i ? i->name : "unknown dtype";
}
inline int bytes_of(tk_dtype d) {
  const DtypeInfo* i = info_of(d);
  return i ? i->bytes : 0;
}
inline tk_dtype dtype_named(std::string_view name) {  // 0 where there is none
  for (const auto& i : kDtypes)
    if (i.name == name) return i.dtype;
  return 0;
}
inline std::string names_of(DtypeSet set) {  // "bf16, f16 or f32"
  std::string out;
  int left = 0;
  for (const auto& i : kDtypes) left += (set & set_of(i.dtype)) ? 1 : 0;
  for (const auto& i : kDtypes)
    if (set & set_of(i.dtype)) {
      if (!out.empty()) out += left == 1 ? " or " : ", ";
      out += i.name;
      --left;
    }
  return out;
}

}  // namespace toolkit
