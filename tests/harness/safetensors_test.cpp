// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "files.h"
#include "text.h"

namespace harness {
namespace {

class Safetensors : public Files {
 protected:
  std::string refused(const std::string& header, const std::string& data = "") {
    return refusal(write("t.safetensors", safetensors_bytes(header, data)));
  }
};

const std::string kEight(8, '\0');

TEST_F(Safetensors, ReadsTensorsInPlace) {
  const std::string f =
      write("t.safetensors",
            safetensors_bytes(R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}  )",
                              little_endian(5, 4) + little_endian(6, 4)));
  const Dump d = Dump::open(f);
  EXPECT_EQ(d.format(), "safetensors");
  const Tensor t = d.tensor("a");
  EXPECT_EQ(t.integer(0), 5);
  EXPECT_EQ(t.integer(1), 6);
  EXPECT_EQ(d.find("a")->begin, 8u + 56u);
  EXPECT_EQ(t.storage->bytes(),
            std::filesystem::file_size(f));  // the mapped file itself: nothing was copied
}

TEST_F(Safetensors, CopiesWhatIsNotAligned) {
  const std::string f = write(
      "t.safetensors",
      safetensors_bytes(
          R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
          std::string("\x07") + std::string("\x00\x00\x80\x3f", 4)));
  const Tensor t = Dump::open(f).tensor("a");
  EXPECT_EQ(t.real(0), 1.0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data()) % 4, 0u);
}

TEST_F(Safetensors, AcceptsCornersOfTheFormat) {
  EXPECT_EQ(refused("{}"), "accepted");
  EXPECT_EQ(refused(R"({"__metadata__":{}})"), "accepted");
  EXPECT_EQ(refused(R"({"__metadata__":{"op":"qsa.score"}})"), "accepted");
  EXPECT_EQ(refused(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}      )", "\1\2\3\4"),
            "accepted");
  EXPECT_EQ(refused(R"({"a":{"dtype":"F32","shape":[0,128],"data_offsets":[0,0]}})"), "accepted");
  EXPECT_EQ(refused(R"({"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}})", "\1\2\3\4"),
            "accepted");
}

TEST_F(Safetensors, ALengthMayBeginWithTheByteOfAnotherFormat) {
  for (const size_t length :
       {0x3c, 0x7b, 0x3c0a, 0x280}) {  // '<', '{', "\n<", a pickle's "\x80\x02"
    std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    header.resize(length, ' ');
    for (const char* name : {"t.safetensors", "t.dump"})
      EXPECT_EQ(refusal(write(name, safetensors_bytes(header, "x"))), "accepted") << length;
  }
}

TEST_F(Safetensors, RefusesWhatFollowsANul) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  EXPECT_EQ(refused(header + '\0' + "garbage", "x"),
            "header: expected JSON padded with spaces, got a NUL at byte 53");
}

TEST_F(Safetensors, RefusesControlCharactersInNamesAndShowsThem) {
  const std::string rest = R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  for (const char* name : {R"(a\u0000b)", R"(a\nb)", R"(\u001b[2J)", R"(\u007f)"}) {
    const std::string file =
        write("t.safetensors", safetensors_bytes(R"({"__metadata__":{},")" + (name + rest), "x"));
    EXPECT_TRUE(has(refusal(file), "a name without control characters")) << name;
    try {
      Dump::open(file);
    } catch (const BadFile& e) {
      EXPECT_EQ(printable(e.what()), e.what());
    }
  }
  EXPECT_TRUE(has(refused(R"({"a":{"dtype":"F\u0007","shape":[1],"data_offsets":[0,1]}})", "x"),
                  "a dtype without control characters"));
  EXPECT_EQ(printable("a\n\x1b\xc3\xa9"), "a\\x0a\\x1b\xc3\xa9");
}

TEST_F(Safetensors, RefusesFilesThatAreSomethingElse) {
  EXPECT_TRUE(has(refusal(write("t.safetensors", "")), "at least 8 bytes, got 0 bytes"));
  EXPECT_TRUE(has(refusal(write("t.safetensors", "1234567")), "at least 8 bytes, got 7 bytes"));
  EXPECT_TRUE(has(refusal(write("t.safetensors", "PK\x03\x04" + std::string(90, 'x'))),
                  "a zip archive, which is not safetensors"));
  EXPECT_TRUE(has(refusal(write("t.safetensors", "<!DOCTYPE html><html>" + std::string(90, 'x'))),
                  "HTML or XML text, which is not safetensors"));
  EXPECT_TRUE(
      has(refusal(write("t.safetensors", "{\"a\": 1}" + std::string(90, 'x'))), "JSON text"));
  EXPECT_TRUE(has(refusal(folder_), "got a directory"));
  EXPECT_TRUE(has(refusal(path("nowhere.safetensors")), "No such file"));
}

TEST_F(Safetensors, RefusesHeaderLengthsThatTheFileDoesNotHave) {
  EXPECT_TRUE(has(refusal(write("t.safetensors", std::string(8, '\xff') + "{}")),
                  "got 18446744073709551615"));
  EXPECT_TRUE(has(refusal(write("t.safetensors", little_endian(3, 8) + "{}")), "at most 2 bytes"));
  EXPECT_TRUE(
      has(refusal(write("t.safetensors", little_endian(132095296, 8) + std::string(92, '{'))),
          "at most 92 bytes"));
  EXPECT_TRUE(
      has(refusal(write("t.safetensors", little_endian(0, 8))), "a JSON object, got nothing"));
}

TEST_F(Safetensors, RefusesAHeaderAboveTheFormatsLimitUnread) {
  const std::string f = write("t.safetensors", little_endian(100'000'001, 8));
  std::filesystem::resize_file(f, 200'000'000);  // sparse
  EXPECT_TRUE(has(refusal(f), "at most 100000000 bytes"));
}

TEST_F(Safetensors, RefusesWhatIsNotItsJson) {
  EXPECT_TRUE(has(refused("{\"a\":"), "JSON in valid UTF-8"));
  EXPECT_TRUE(has(refused("{} x"), "JSON in valid UTF-8"));
  EXPECT_TRUE(has(refused("{\"\xff\":{}}"), "JSON in valid UTF-8"));
  EXPECT_TRUE(has(refused("{\"a\":1}"), "expected an object, got the number 1"));
  EXPECT_TRUE(has(refused("{\"a\":null}"), "got null"));
  EXPECT_TRUE(has(refused("{\"a\":[]}"), "got an array"));
  EXPECT_TRUE(has(refused("{\"a\":{\"dtype\":5}}"), "expected dtype a string"));
  EXPECT_TRUE(has(refused("{\"a\":{\"dtype\":{}}}"), "got an object"));
  EXPECT_TRUE(has(refused("{\"a\":{\"shape\":[[1]]}}"), "got an array"));
  EXPECT_TRUE(has(refused("{\"a\":{\"shape\":[true]}}"), "got true"));
  EXPECT_TRUE(has(refused("{\"a\":{\"shape\":[\"1\"]}}"), "got a string"));
  EXPECT_TRUE(has(refused("{\"a\":{\"color\":1}}"), "key 'color'"));
  EXPECT_TRUE(
      has(refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}"), "a key 'data_offsets', got none"));
  EXPECT_TRUE(
      has(refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", kEight), "1 numbers"));
  EXPECT_TRUE(has(refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", kEight),
                  "more than 2"));
}

TEST_F(Safetensors, DeepNestingStopsAtTheThirdLevel) {
  std::string deep = "{\"a\":{\"shape\":";
  deep += std::string(1'000'000, '[');
  EXPECT_TRUE(has(refused(deep), "got an array"));
}

TEST_F(Safetensors, NoTensorIsNamedMetadata) {
  EXPECT_TRUE(
      has(refused(R"({"__metadata__":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", kEight),
          "no tensor may have that name"));
  EXPECT_TRUE(has(refused(R"({"__metadata__":{"k":4}})"), "strings only"));
  EXPECT_TRUE(has(refused(R"({"__metadata__":{"k":{}}})"), "strings only"));
}

TEST_F(Safetensors, RefusesDuplicateKeysAtEveryLevel) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_TRUE(has(refused("{" + a + "," + a + "}", kEight), "duplicate key 'a'"));
  EXPECT_TRUE(has(
      refused(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", kEight),
      "duplicate key 'dtype'"));
  EXPECT_TRUE(has(refused(R"({"__metadata__":{"op":"x","op":"y"}})"), "duplicate key 'op'"));
  EXPECT_TRUE(
      has(refused(R"({"__metadata__":{},"__metadata__":{}})"), "duplicate key '__metadata__'"));
}

TEST_F(Safetensors, RefusesNumbersThatAreNoSizes) {
  const auto shape = [&](const std::string& s) {
    return refused(R"({"a":{"dtype":"F32","shape":[)" + s + R"(],"data_offsets":[0,8]}})", kEight);
  };
  EXPECT_EQ(shape("2"), "accepted");
  EXPECT_TRUE(has(shape("-1"), "the negative number -1"));
  EXPECT_TRUE(has(shape("2.0"), "'2.0'"));
  EXPECT_TRUE(has(shape("2e0"), "'2e0'"));
  EXPECT_TRUE(has(shape("99999999999999999999"), "above 64 bits"));
  EXPECT_TRUE(has(shape("18446744073709551615"), "sizes below 2^63"));
  EXPECT_TRUE(has(shape("3"), "expected 12 bytes for F32 [3], got 8 in data_offsets"));
  EXPECT_TRUE(has(shape("4294967296,4294967296"), "a product within 63 bits"));
  EXPECT_TRUE(has(shape("0,9223372036854775807,9223372036854775807"), "a product within 63 bits"));
  EXPECT_TRUE(has(shape("1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2"),
                  "at most 32 dimensions"));
}

TEST_F(Safetensors, TensorsCoverTheDataExactly) {
  const auto two = [&](const std::string& first, const std::string& second, size_t bytes) {
    return refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[)" + first +
                       R"(]},"b":{"dtype":"F32","shape":[2],"data_offsets":[)" + second + "]}}",
                   std::string(bytes, '\0'));
  };
  EXPECT_EQ(two("0,8", "8,16", 16), "accepted");
  EXPECT_EQ(two("8,16", "0,8", 16), "accepted");
  EXPECT_TRUE(has(two("0,8", "0,8", 8), "overlap with"));
  EXPECT_TRUE(has(two("0,8", "4,12", 12), "overlap with 'a'"));
  EXPECT_TRUE(has(two("0,8", "12,20", 20), "a gap"));
  EXPECT_TRUE(has(two("4,12", "12,20", 20), "a gap"));
  EXPECT_TRUE(has(two("0,8", "8,16", 17), "bytes after the last tensor"));
  EXPECT_TRUE(has(two("0,8", "8,16", 15), "an end within the 15 bytes of data, got 16"));
  EXPECT_TRUE(has(two("0,8", "16,8", 16), "begin <= end, got [16, 8]"));
  EXPECT_TRUE(has(two("0,8", "8,18446744073709551615", 16), "an end within"));
}

TEST_F(Safetensors, AnUnknownDtypeIsAnErrorOnlyWhenUsed) {
  const std::string f = write(
      "t.safetensors",
      safetensors_bytes(
          R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          "\1\2"));
  const Dump d = Dump::open(f);
  EXPECT_EQ(d.tensor("b").integer(0), 2);
  EXPECT_EQ(describe(f)[0].dtype_text, "F4");
  EXPECT_THROW(d.tensor("a"), BadFile);
  EXPECT_THROW(d.tensor("c"), BadFile);
}

TEST_F(Safetensors, ListsByteRangesWithoutReadingData) {
  const std::string header =
      R"({"a":{"dtype":"BF16","shape":[1048576,1024],"data_offsets":[0,2147483648]}})";
  const std::string f = write("t.safetensors", safetensors_bytes(header));
  std::filesystem::resize_file(f, 8 + header.size() + 2147483648u);  // sparse
  const auto entries = describe(f);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].shape, (Shape{1048576, 1024}));
  EXPECT_EQ(entries[0].strides, (Shape{1024, 1}));
  EXPECT_EQ(entries[0].end - entries[0].begin, 2147483648u);
}

class Views : public Safetensors {
 protected:
  std::string with_view(const std::string& text) {
    return safetensors_bytes(R"({"__metadata__":{"view.v":")" + text +
                                 R"("},"s":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                             std::string("\0\1\2\3\4\5\6\7", 8));
  }
  std::string refused_view(const std::string& text) {
    return refusal(write("t.safetensors", with_view(text)));
  }
};

TEST_F(Views, ReadStridesAndShareTheStorage) {
  const Dump d =
      Dump::open(write("t.safetensors", with_view("storage=s offset=1 shape=2,2 strides=4,1")));
  const Tensor v = d.tensor("v");
  EXPECT_EQ(v.strides, (Shape{4, 1}));
  EXPECT_EQ(v.integer(3), 6);
  EXPECT_EQ(v.storage, d.tensor("s").storage);
  EXPECT_TRUE(d.is_storage("s"));
  EXPECT_FALSE(d.is_storage("v"));
}

TEST_F(Views, AcceptCorners) {
  EXPECT_EQ(refused_view("storage=s offset=7 shape=8 strides=-1"), "accepted");
  EXPECT_EQ(refused_view("storage=s offset=0 shape=3,8 strides=0,1"), "accepted");
  EXPECT_EQ(refused_view("storage=s offset=7 shape= strides="), "accepted");
  EXPECT_EQ(refused_view("storage=s offset=8 shape=0,5 strides=1,1"), "accepted");
}

TEST_F(Views, AreRefusedOutsideTheirStorage) {
  for (const char* text :
       {"storage=s offset=1 shape=8 strides=1", "storage=s offset=0 shape=2 strides=8",
        "storage=s offset=0 shape=2 strides=-1", "storage=s offset=8 shape=1 strides=1",
        "storage=s offset=0 shape=2 strides=9223372036854775807",
        "storage=s offset=9 shape=0 strides=1",
        "storage=s offset=9223372036854775807 shape=2 strides=1"})
    EXPECT_TRUE(has(refused_view(text), "elements 0 to 8 (not included) of 's'")) << text;
}

TEST_F(Views, AreRefusedWhereTheTextIsWrong) {
  for (const char* text :
       {"", "storage=s", "storage=x offset=0 shape=1 strides=1",
        "storage=v offset=0 shape=1 strides=1", "storage=s offset=-1 shape=1 strides=1",
        "storage=s offset=0 shape=2,2 strides=1", "storage=s offset=0 shape=-1 strides=1",
        "storage=s offset=0 shape=1x strides=1", "storage=s offset=0 shape=1, strides=1",
        "storage=s offset=0,0 shape=1 strides=1", "storage=s offset=0 offset=0 shape=1 strides=1",
        "storage=s offset=0 shape=1 strides=1 a=b",
        "storage=s offset=0 shape=4294967296,4294967296 strides=0,0",
        "storage=s offset=0 shape=99999999999999999999 strides=0"})
    EXPECT_TRUE(has(refused_view(text), "view 'v'")) << text;
}

}  // namespace
}  // namespace harness
