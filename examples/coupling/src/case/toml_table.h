// A TOML table that remembers which keys were asked for, so that a misspelt key is an error and not a default.
// Not a parser: that is toml++.
#pragma once

#include <toml++/toml.h>

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace coupling {

class TomlTable {
 public:
  // `where` names the table in messages, e.g. "case.toml [fluid]".
  TomlTable(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

  double number(const std::string& key) { return required(key, optional_number(key)); }
  double number(const std::string& key, double otherwise) { return optional_number(key).value_or(otherwise); }

  std::uint32_t count(const std::string& key) { return to_count(key, required(key, optional_int(key))); }
  std::uint32_t count(const std::string& key, std::uint32_t otherwise) {
    return to_count(key, optional_int(key).value_or(otherwise));
  }

  std::string text(const std::string& key) { return required(key, typed<std::string>(key, "a text")); }
  std::string text(const std::string& key, const std::string& otherwise) {
    return typed<std::string>(key, "a text").value_or(otherwise);
  }

  bool flag(const std::string& key, bool otherwise) { return typed<bool>(key, "true or false").value_or(otherwise); }

  std::vector<double> numbers(const std::string& key) {
    const toml::array* list = array(key);
    if (list == nullptr) fail(key, "is missing: a list of numbers");
    return to_numbers(key, *list);
  }

  // Pairs of numbers, e.g. [[0.1, 0.2], [0.4, 0.5]]; empty when absent.
  std::vector<std::array<double, 2>> pairs(const std::string& key) {
    std::vector<std::array<double, 2>> result;
    if (const toml::array* list = array(key)) {
      for (const toml::node& item : *list) {
        const std::vector<double> pair = item.is_array() ? to_numbers(key, *item.as_array()) : std::vector<double>();
        if (pair.size() != 2) fail(key, "must hold pairs of numbers");
        result.push_back({pair[0], pair[1]});
      }
    }
    return result;
  }

  // A table inside this one; an absent one reads as empty, so that its missing keys are reported by name.
  TomlTable table(const std::string& key) {
    static const toml::table empty;
    asked_.insert(key);
    const toml::node* node = table_.get(key);
    if (node != nullptr && !node->is_table()) fail(key, "must be a table");
    return TomlTable(node == nullptr ? empty : *node->as_table(), where_ + " [" + key + "]");
  }

  // A key that another program reads.
  void ignore(const std::string& key) { asked_.insert(key); }

  // Call last: throws if the table has a key that was not read.
  void done() const {
    for (const auto& [key, node] : table_) {
      if (asked_.count(std::string(key.str())) == 0) fail(std::string(key.str()), "is not a known key");
    }
  }

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw std::runtime_error(where_ + ": " + key + " " + what);
  }

 private:
  template <typename T>
  std::optional<T> typed(const std::string& key, const char* kind) {
    asked_.insert(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr) return std::nullopt;
    std::optional<T> value = node->value_exact<T>();
    if (!value) fail(key, std::string("must be ") + kind);
    return value;
  }

  std::optional<double> optional_number(const std::string& key) {
    asked_.insert(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_number()) fail(key, "must be a number");
    return node->value<double>();
  }

  std::optional<std::int64_t> optional_int(const std::string& key) {
    return typed<std::int64_t>(key, "a whole number");
  }

  std::uint32_t to_count(const std::string& key, std::int64_t value) const {
    if (value < 0 || value > 0xffffffffLL) fail(key, "must be between 0 and 4294967295");
    return static_cast<std::uint32_t>(value);
  }

  template <typename T>
  T required(const std::string& key, std::optional<T> value) const {
    if (!value) fail(key, "is missing");
    return *value;
  }

  const toml::array* array(const std::string& key) {
    asked_.insert(key);
    const toml::node* node = table_.get(key);
    if (node != nullptr && !node->is_array()) fail(key, "must be a list");
    return node == nullptr ? nullptr : node->as_array();
  }

  std::vector<double> to_numbers(const std::string& key, const toml::array& list) const {
    std::vector<double> result;
    for (const toml::node& item : list) {
      const std::optional<double> value = item.value<double>();
      if (!value) fail(key, "must hold numbers only");
      result.push_back(*value);
    }
    return result;
  }

  const toml::table& table_;
  std::string where_;
  std::set<std::string> asked_;
};

// Parses a file; throws std::runtime_error with file and line.
inline toml::table parse_toml(const std::string& path) {
  try {
    return toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    throw std::runtime_error(path + ":" + std::to_string(error.source().begin.line) + ": " +
                             std::string(error.description()));
  }
}

}  // namespace coupling
