// What all calls of the plugin share: how a call is defined and checked, errors, named values, and the state that keeps a
// client alive until the last of its buffers and executables is gone.

#ifndef XTRAIN_CPP_COMMON_H_
#define XTRAIN_CPP_COMMON_H_

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "pool.h"
#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/pjrt/c/pjrt_c_api_wrapper_impl.h"
#include "xla/pjrt/pjrt_client.h"

namespace xtrain {

inline PJRT_Error* MakeError(absl::Status status) { return new PJRT_Error{std::move(status)}; }

template <typename Args>
PJRT_Error* CheckSize(const char* name, const Args* args, size_t wanted) {
  if (args == nullptr) return MakeError(absl::InvalidArgumentError(absl::StrCat(name, ": args is null")));
  if (args->struct_size >= wanted) return nullptr;  // a newer caller's longer struct is fine
  return MakeError(absl::InvalidArgumentError(
      absl::StrCat(name, ": struct_size is ", args->struct_size, ", expected at least ", wanted)));
}

// Defines name_, the plugin's implementation of the call `name`: checks the struct's size, turns exceptions into errors, then
// runs the block that follows the macro. (The trailing underscore because the C header makes `name` a type.)
#define XT_CALL(name)                                                                                  \
  static PJRT_Error* name##_Body(name##_Args* args);                                                   \
  static PJRT_Error* name##_(name##_Args* args) {                                                      \
    if (PJRT_Error* error = CheckSize(#name, args, name##_Args_STRUCT_SIZE)) return error;             \
    try {                                                                                              \
      return name##_Body(args);                                                                        \
    } catch (const std::exception& exception) {                                                        \
      return MakeError(absl::InternalError(absl::StrCat(#name, ": ", exception.what())));              \
    }                                                                                                  \
  }                                                                                                    \
  static PJRT_Error* name##_Body([[maybe_unused]] name##_Args* args)

// Inside a call: refuses a null handle or pointer by the name of its field.
#define XT_NEED(field)                                                                                       \
  if (args->field == nullptr) {                                                                              \
    return MakeError(absl::InvalidArgumentError(absl::StrCat(__func__, ": args->" #field " is null")));      \
  }

// A call that only reads one value from a handle.
#define XT_GETTER(name, handle, ...) \
  XT_CALL(name) {                    \
    XT_NEED(handle);                 \
    __VA_ARGS__;                     \
    return nullptr;                  \
  }

template <typename... Parts>
PJRT_Error* Invalid(const Parts&... parts) {
  return MakeError(absl::InvalidArgumentError(absl::StrCat(parts...)));
}

// Everything that must outlive a client's buffers and executables. They hold it, so destroying handles in any order is safe.
struct ClientState {
  std::shared_ptr<Pool> pool;
  // Of a client among several processes: the devices of all of them.
  std::shared_ptr<xla::PjRtTopologyDescription> topology;
  PJRT_Client* client = nullptr;

  ~ClientState() { delete client; }
};

// The clients that exist, by handle. Calls that need a client's state find it here, and a handle that is not here is refused.
class Clients {
 public:
  static Clients& Get() {
    static Clients* clients = new Clients;  // never destroyed: threads may outlive static destructors
    return *clients;
  }

  void Add(std::shared_ptr<ClientState> state) {
    std::lock_guard<std::mutex> lock(mutex_);
    states_[state->client] = std::move(state);
  }

  std::shared_ptr<ClientState> Find(PJRT_Client* client) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = states_.find(client);
    return found == states_.end() ? nullptr : found->second;
  }

  std::shared_ptr<ClientState> Remove(PJRT_Client* client) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = states_.find(client);
    if (found == states_.end()) return nullptr;
    std::shared_ptr<ClientState> state = std::move(found->second);
    states_.erase(found);
    return state;
  }

 private:
  std::mutex mutex_;
  absl::flat_hash_map<PJRT_Client*, std::shared_ptr<ClientState>> states_;
};

// Inside a call: `state` becomes the state of args->client.
#define XT_FIND_CLIENT(state)                                                \
  std::shared_ptr<ClientState> state = Clients::Get().Find(args->client);    \
  if (state == nullptr) return Invalid(__func__, ": args->client is no client of this plugin, or was destroyed")

// The handles that the plugin gives out: the library's structs plus what keeps their parts alive.
struct Buffer : PJRT_Buffer {
  std::shared_ptr<ClientState> keep;
};

inline PJRT_Buffer* WrapBuffer(std::unique_ptr<xla::PjRtBuffer> buffer, std::shared_ptr<ClientState> state) {
  auto* wrapped = new Buffer;
  wrapped->buffer = std::move(buffer);
  wrapped->client = state->client;
  wrapped->keep = std::move(state);
  return wrapped;
}

inline PJRT_Event* WrapFuture(xla::Future<> future) {
  auto* event = new PJRT_Event;
  event->future = std::move(future);
  return event;
}

// Points a PJRT_NamedValue at values that the caller of this keeps alive.
inline PJRT_NamedValue NamedValue(absl::string_view name, const xla::PjRtValueType& value) {
  PJRT_NamedValue named = {};
  named.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  named.name = name.data();
  named.name_size = name.size();
  named.value_size = 1;
  if (auto* text = std::get_if<std::string>(&value)) {
    named.type = PJRT_NamedValue_kString;
    named.string_value = text->data();
    named.value_size = text->size();
  } else if (auto* flag = std::get_if<bool>(&value)) {
    named.type = PJRT_NamedValue_kBool;
    named.bool_value = *flag;
  } else if (auto* integer = std::get_if<int64_t>(&value)) {
    named.type = PJRT_NamedValue_kInt64;
    named.int64_value = *integer;
  } else if (auto* list = std::get_if<std::vector<int64_t>>(&value)) {
    named.type = PJRT_NamedValue_kInt64List;
    named.int64_array_value = list->data();
    named.value_size = list->size();
  } else {
    named.type = PJRT_NamedValue_kFloat;
    named.float_value = std::get<float>(value);
  }
  return named;
}

// --- errors ----------------------------------------------------------------------------------------------------------

static void PJRT_Error_Destroy_(PJRT_Error_Destroy_Args* args) {
  if (args != nullptr) delete args->error;
}

static void PJRT_Error_Message_(PJRT_Error_Message_Args* args) {
  const absl::string_view message = args->error == nullptr ? "" : args->error->status.message();
  args->message = message.data();
  args->message_size = message.size();
}

// The C codes are absl's numbers.
XT_GETTER(PJRT_Error_GetCode, error, args->code = static_cast<PJRT_Error_Code>(args->error->status.code()))

}  // namespace xtrain

#endif  // XTRAIN_CPP_COMMON_H_
