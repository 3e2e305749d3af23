// Numbers of a plan as people read them, and as JSON has them.
#pragma once

#include <cstdint>
#include <string>

namespace ashlar::replay {

std::string bytes_text(double bytes);          // "12.3 GiB"
std::string percent_text(double share);        // "45.6%"
std::string count_text(std::uint64_t number);  // "1,234,567"
std::string life_text(double years);           // "4.2 years", "17 days"
std::string number_text(double number);        // four digits that count: "0.01234", "12.34", "1234"
std::string json_number(double value);         // ten digits that count

}  // namespace ashlar::replay
