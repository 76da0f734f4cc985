// SPDX-License-Identifier: Apache-2.0
// CSV and JSON lines: a row is on disk as soon as it is known.
#include <fmt/format.h>

#include <fstream>

#include "harness/plugins/errors.h"
#include "harness/report/output.h"
#include "harness/report/sink.h"

namespace harness {

namespace {

class CsvSink : public Sink {
 public:
  explicit CsvSink(const std::string& path) : file_(path, OutputFile::Mode::append) {
    if (file_.begin(csv_header() + "\n")) return;
    std::ifstream old(path, std::ios::binary);
    std::string header;
    std::getline(old, header);
    if (!header.empty() && header.back() == '\r') header.pop_back();
    if (header != csv_header())
      throw BadRequest(fmt::format(
          "{}: has other columns than these rows (schema {}); expected a new file or one of "
          "the same schema",
          path, kSchema));
    old.clear();
    old.seekg(-1, std::ios::end);
    if (old.get() != '\n')
      throw BadRequest(
          fmt::format("{}: ends in the middle of a line; repair it or name another file", path));
  }
  void add(const Row& row) override { file_.write(csv_line(row) + "\n"); }
  void drop_earlier(const Row& row) override { file_.drop(csv_line(row) + "\n"); }

 private:
  OutputFile file_;
};

class JsonSink : public Sink {
 public:
  explicit JsonSink(const std::string& path) : file_(path, OutputFile::Mode::append) {}
  void add(const Row& row) override { file_.write(json_line(row) + "\n"); }

 private:
  OutputFile file_;
};

}  // namespace

std::unique_ptr<Sink> csv_sink(const std::string& path) { return std::make_unique<CsvSink>(path); }
std::unique_ptr<Sink> json_sink(const std::string& path) {
  return std::make_unique<JsonSink>(path);
}

void Reports::add(const Row& row) {
  const std::lock_guard lock(mutex_);
  for (const auto& sink : sinks_) sink->add(row);
}

void Reports::add_earlier(const Row& row) {
  const std::lock_guard lock(mutex_);
  for (const auto& sink : sinks_) sink->add_earlier(row);
}

void Reports::drop_earlier(const Row& row) {
  const std::lock_guard lock(mutex_);
  for (const auto& sink : sinks_) sink->drop_earlier(row);
}

void Reports::finish() {
  const std::lock_guard lock(mutex_);
  for (const auto& sink : sinks_) sink->finish();
  sinks_.clear();
}

}  // namespace harness
