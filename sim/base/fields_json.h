// Reads a table of fields (sim/base/fields.h) as JSON values, in the form that its reader takes.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <utility>

#include "sim/base/fields.h"

namespace orrery {

struct FieldValue {
  const char* name;
  const nlohmann::json& value;
  std::optional<std::int64_t> number;  // of integers, truths (0, 1) and enumerators
  Scope scope;

  bool is_empty() const;  // an empty text or list, the readers' default
};

// Calls `take` for each field that it visits.
class FieldValues : public FieldVisitor {
 public:
  explicit FieldValues(std::function<void(const FieldValue&)> take) : take_(std::move(take)) {}

 protected:
  void integer(const char*, std::int64_t&, IntegerRange, const char*) override;
  void number(const char*, double&, NumberRange, const char*) override;
  void boolean(const char*, bool&, const char*) override;
  void text(const char*, std::string&, const char*) override;
  void integers(const char*, std::vector<std::int64_t>&, IntegerRange, const char*) override;
  void choice(const char*, std::size_t&, std::span<const std::string_view>, const char*) override;
  void choices(const char*, std::vector<std::int64_t>&, std::span<const std::string_view>, const char*) override;

 private:
  void pass(const char* name, const nlohmann::json& value, std::optional<std::int64_t> number = {}) const;

  std::function<void(const FieldValue&)> take_;
};

// Makes `object` a JSON object of the fields that it visits, without empty texts and lists.
class FieldsJson final : public FieldValues {
 public:
  explicit FieldsJson(nlohmann::json& object);
};

}  // namespace orrery
