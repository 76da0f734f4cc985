// SPDX-License-Identifier: Apache-2.0
// The parts of the HTML page.
#pragma once

#include <string>
#include <string_view>

#include "harness/report/page_content.h"

namespace harness::page {

extern const std::string_view kStyle;   // page.css
extern const std::string_view kScript;  // page.js

// For text and for quoted attributes; control characters become U+FFFD.
std::string escaped(std::string_view text);
// "o3": the class of all that belongs to one op, for its colour and the filter. A roof is of none.
std::string op_class(const Entry& entry);
// "12.3 us, 437 GB/s, ...": what a mark says on hover, not escaped.
std::string mark_title(const Entry& entry);

// GFLOP/s over FLOP/byte, both logarithmic; empty where no row has FLOPs.
std::string roofline_figure(const DeviceContent& device);
// GB/s by op, for the rows that only move data; empty where there are none.
std::string bandwidth_figure(const DeviceContent& device);
std::string roof_list(const DeviceContent& device);

std::string case_tables(const Content& content);
std::string comparison_section(const Comparison& comparison);
std::string bad_section(const Content& content);
std::string targets_section(const Content& content);
std::string skipped_section(const Content& content);
std::string provenance_section(const Content& content);

}  // namespace harness::page
