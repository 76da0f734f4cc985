// SPDX-License-Identifier: Apache-2.0
// Kernels often have internal linkage, so the dynamic linker does not know them: dladdr finds the
// file, and the symbol table of that file has the name.
#include "symbol_name.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

namespace device {
namespace {

template <class T>
const T* at(const std::vector<char>& file, uint64_t offset, uint64_t count = 1) {
  if (offset > file.size() || count > (file.size() - offset) / sizeof(T)) return nullptr;
  return reinterpret_cast<const T*>(file.data() + offset);
}

std::string mangled_name(const char* path, uint64_t address) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  std::vector<char> file(in ? static_cast<size_t>(in.tellg()) : 0);
  in.seekg(0).read(file.data(), static_cast<std::streamsize>(file.size()));
  const auto* header = at<ElfW(Ehdr)>(file, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return {};
  const auto* sections = at<ElfW(Shdr)>(file, header->e_shoff, header->e_shnum);
  if (!sections) return {};
  for (const auto* s = sections; s < sections + header->e_shnum; ++s) {
    if (s->sh_type != SHT_SYMTAB || s->sh_link >= header->e_shnum) continue;
    const uint64_t count = s->sh_size / sizeof(ElfW(Sym));
    const auto* symbols = at<ElfW(Sym)>(file, s->sh_offset, count);
    const auto& strings = sections[s->sh_link];
    const char* text = at<char>(file, strings.sh_offset, strings.sh_size);
    if (!symbols || !text) return {};
    for (uint64_t i = 0; i < count; ++i)
      if (symbols[i].st_value == address && (symbols[i].st_info & 0xf) == STT_FUNC &&
          symbols[i].st_name < strings.sh_size)
        return text + symbols[i].st_name;
  }
  return {};
}

}  // namespace

std::string symbol_name(const void* function) {
  Dl_info info{};
  link_map* map = nullptr;
  if (!dladdr1(function, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP)) return "a kernel";
  std::string mangled = info.dli_sname && info.dli_saddr == function ? info.dli_sname : "";
  if (mangled.empty()) {
    const char* path = map->l_name && *map->l_name ? map->l_name : "/proc/self/exe";
    mangled = mangled_name(path, reinterpret_cast<uintptr_t>(function) - map->l_addr);
  }
  if (mangled.empty()) return "a kernel";
  int status = 0;
  char* plain = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? plain : mangled;
  std::free(plain);
  if (name.starts_with("void ")) name.erase(0, 5);  // templates carry their result
  for (size_t p; (p = name.find("(anonymous namespace)::")) != std::string::npos;)
    name.erase(p, 23);
  int depth = 0;  // of template arguments, which may hold parentheses
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) name.resize(i);
  }
  return name;
}

}  // namespace device
