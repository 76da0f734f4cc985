// SPDX-License-Identifier: Apache-2.0
// Where rows go. A file is opened before anything runs, so that a path which cannot be written
// costs no run.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "harness/report/row.h"

namespace harness {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void add(const Row& row) = 0;
  // A row that an earlier run has written and this one counts (--resume): where the file goes on it
  // is there already, a document that is written anew has to hold it too.
  virtual void add_earlier(const Row&) {}
  // A row that an earlier run has written and this one replaces: it goes from the file.
  virtual void drop_earlier(const Row&) {}
  virtual void finish() {}  // the end of the run, also when a time limit ends it
};

// All throw BadRequest where `path` cannot be written; "-" is standard output.
// CSV and JSON lines append; a CSV that has other columns or ends inside a line is refused.
std::unique_ptr<Sink> csv_sink(const std::string& path);
std::unique_ptr<Sink> json_sink(const std::string& path);
// JUnit and Markdown are whole documents, written by finish().
std::unique_ptr<Sink> junit_sink(const std::string& path);
std::unique_ptr<Sink> markdown_sink(const std::string& path);

// The documents themselves.
std::string junit_document(const std::vector<Row>& rows);
std::string markdown_document(const std::vector<Row>& rows);

// All sinks of a run. add() and finish() may be called from the watchdog's thread too.
class Reports {
 public:
  void open(std::unique_ptr<Sink> sink) { sinks_.push_back(std::move(sink)); }
  void add(const Row& row);
  void add_earlier(const Row& row);
  void drop_earlier(const Row& row);
  void finish();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Sink>> sinks_;
};

}  // namespace harness
