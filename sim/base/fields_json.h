// Writes a table of fields (sim/base/fields.h) in the JSON form that its reader takes.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/base/fields.h"

namespace orrery {

// Makes `object` a JSON object of the fields that it visits. Empty texts and lists are left out: they are the readers'
// defaults.
class FieldsJson final : public FieldVisitor {
 public:
  explicit FieldsJson(nlohmann::json& object);

 protected:
  void integer(const char*, std::int64_t&, IntegerRange, const char*) override;
  void number(const char*, double&, NumberRange, const char*) override;
  void boolean(const char*, bool&, const char*) override;
  void text(const char*, std::string&, const char*) override;
  void integers(const char*, std::vector<std::int64_t>&, IntegerRange, const char*) override;
  void choice(const char*, std::size_t&, std::span<const std::string_view>, const char*) override;
  void choices(const char*, std::vector<std::int64_t>&, std::span<const std::string_view>, const char*) override;

 private:
  nlohmann::json& object_;
};

}  // namespace orrery
