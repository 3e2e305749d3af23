// JsonText: writes a JSON value, commas and quotes included.
//
//   JsonText out;
//   out.object([&] { out.field("id", id); out.field("items", [&] { out.array([&] { … }); }); });
//
// Thread safety: thread-compatible.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "events/json_writer.h"

namespace ashlar::service {

class JsonText {
 public:
  template <class F>
  void object(F&& fields) {
    comma();
    text_ += '{';
    fresh_ = true;
    fields();
    text_ += '}';
    fresh_ = false;
  }
  template <class F>
  void array(F&& items) {
    comma();
    text_ += '[';
    fresh_ = true;
    items();
    text_ += ']';
    fresh_ = false;
  }
  void key(std::string_view name) {
    comma();
    events::append_quoted(text_, name);
    text_ += ':';
    fresh_ = true;
  }
  void value(std::string_view text) {
    comma();
    events::append_quoted(text_, text);
  }
  void value(const char* text) { value(std::string_view(text)); }
  void value(bool is_true) { raw(is_true ? "true" : "false"); }
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  void value(T number) {
    comma();
    if constexpr (std::is_signed_v<T>) {
      if (number < 0) text_ += '-';
      const auto wide = static_cast<std::uint64_t>(static_cast<std::int64_t>(number));
      events::append_number(text_, number < 0 ? 0 - wide : wide);
    } else {
      events::append_number(text_, number);
    }
  }
  void null() { raw("null"); }
  // Text that is JSON already.
  void raw(std::string_view json) {
    comma();
    text_ += json;
  }
  template <class T>
  void field(std::string_view name, T&& content) {
    key(name);
    if constexpr (std::invocable<T&>) {
      content();
    } else {
      value(content);
    }
  }

  const std::string& text() const noexcept { return text_; }
  std::string take() { return std::move(text_); }

 private:
  void comma() {
    if (!fresh_) text_ += ',';
    fresh_ = false;
  }

  std::string text_;
  bool fresh_ = true;
};

}  // namespace ashlar::service
