// The files of the live page (docs/page.md), embedded at build time: plain HTML, CSS and modules of
// JavaScript that need no build step and load nothing from elsewhere. cmake/embed_files.cmake writes the
// source.
//
// Thread safety: immutable.
#pragma once

#include <span>
#include <string_view>

namespace ashlar::service {

struct PageFile {
  std::string_view name;  // "index.html", below /ui/
  std::string_view type;  // its media type
  std::string_view content;
};

std::span<const PageFile> page_files() noexcept;

}  // namespace ashlar::service
