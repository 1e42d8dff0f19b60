// Where the time of what runs on the CPU client goes, by XLA's own profiler: the host tracer has an event for each thunk,
// named as its HLO instruction.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "tsl/profiler/lib/profiler_session.h"
#include "tsl/profiler/protobuf/profiler_options.pb.h"
#include "tsl/profiler/protobuf/xplane.pb.h"

// Starts to record; null if something in the process does so already.
extern "C" void* xtrain_cpp_profile_begin() {
  tensorflow::ProfileOptions options = tsl::ProfilerSession::DefaultOptions();
  options.set_host_tracer_level(3);  // thunks are on the third level
  options.set_device_tracer_level(0);
  options.set_enable_hlo_proto(false);
  auto session = tsl::ProfilerSession::Create(options);
  return session->Status().ok() ? session.release() : nullptr;
}

// Ends it. `out`: a line for each name of an event, with the picoseconds and the number of all of them, separated by tabs;
// the caller frees it. 0, or 1 and a message.
extern "C" int xtrain_cpp_profile_end(void* begun, char** out, size_t* out_size) {
  std::unique_ptr<tsl::ProfilerSession> session(static_cast<tsl::ProfilerSession*>(begun));
  tensorflow::profiler::XSpace space;
  const absl::Status status = session->CollectData(&space);
  std::string text;
  if (status.ok()) {
    std::map<std::string, std::pair<uint64_t, uint64_t>> sums;
    for (const auto& plane : space.planes()) {
      for (const auto& line : plane.lines()) {
        for (const auto& event : line.events()) {
          const auto metadata = plane.event_metadata().find(event.metadata_id());
          if (metadata == plane.event_metadata().end()) continue;
          auto& [time, count] = sums[metadata->second.name()];
          time += event.duration_ps(), ++count;
        }
      }
    }
    for (const auto& [name, sum] : sums) {
      text += std::to_string(sum.first) + "\t" + std::to_string(sum.second) + "\t" + name.substr(0, name.find('\n')) + "\n";
    }
  } else {
    text = status.ToString();
  }
  *out_size = text.size();
  *out = static_cast<char*>(std::malloc(text.size() + 1));
  if (*out != nullptr) std::memcpy(*out, text.c_str(), text.size() + 1);
  return status.ok() ? 0 : 1;
}
