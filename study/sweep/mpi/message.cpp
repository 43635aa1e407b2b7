#include "study/sweep/mpi/message.h"

#include <variant>

namespace orrery {

MessageWriter& MessageWriter::put(const SweepRow& row) {
  put(row.number).put(row.key).put(row.scenario).put(row.fields).put(row.known).put(row.error).put(row.plan);
  put(row.values.size());
  for (const SweepValue& value : row.values) {
    put(static_cast<std::uint8_t>(value.index()));
    std::visit([this](const auto& its) { put(its); }, value);
  }
  return *this;
}

void MessageReader::read(SweepRow& row) {
  read(row.number);
  read(row.key);
  read(row.scenario);
  read(row.fields);
  read(row.known);
  read(row.error);
  read(row.plan);
  for (auto left = get<std::size_t>(); left > 0; --left) switch (get<std::uint8_t>()) {  // SweepValue's alternatives
      case 0:
        row.values.emplace_back(get<double>());
        break;
      case 1:
        row.values.emplace_back(get<std::int64_t>());
        break;
      case 2:
        row.values.emplace_back(get<bool>());
        break;
      case 3:
        row.values.emplace_back(get<std::string>());
        break;
      default:
        fail();
    }
}

}  // namespace orrery
