#include "remote.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "errors.h"
#include "gil.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

template <class T>
T take(nb::dict settings, const char* name, T otherwise) {
  if (!settings.contains(name)) return otherwise;
  const nb::object value = settings[name];
  nb::del(settings[name]);
  T out{};
  if (!nb::try_cast(value, out))
    raise(Error(ErrorCode::kInvalidArgument, "remote: \"" + std::string(name) + "\" has another type"));
  return out;
}

// As ascii() does: a key may be no text, and a text may have no UTF-8.
nb::str ascii_of(nb::handle object) {
  PyObject* text = PyObject_ASCII(object.ptr());
  if (text == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(text);
}

}  // namespace

tiers::RemoteShape remote_of(nb::handle settings) {
  if (!nb::isinstance<nb::dict>(settings)) throw nb::type_error("remote must be a dict of settings");
  nb::dict left;
  left.update(nb::borrow<nb::dict>(settings));
  tiers::RemoteShape shape;
  transfer::AgentOptions agent;
  agent.listen = take<std::string>(left, "listen", agent.listen);
  agent.advertise = take<std::string>(left, "advertise", {});
  agent.secret = take<std::string>(left, "secret", {});
  agent.name = take<std::string>(left, "name", {});
  shape.peers = take<std::vector<std::string>>(left, "peers", {});
  shape.block_count = take<std::uint32_t>(left, "blocks", shape.block_count);
  shape.serve = take<bool>(left, "serve", true);
  const auto transport = take<std::string>(left, "transport", "loopback");
  const auto transports = take<std::string>(left, "ucx_transports", "tcp");
  for (const auto [name, value] : left)
    raise(Error(ErrorCode::kInvalidArgument,
                std::string("remote: nobody reads ") + ascii_of(name).c_str() +
                    "; it takes listen, advertise, secret, name, peers, blocks, serve, transport and "
                    "ucx_transports"));
  if (transport == "ucx")
    agent.transport = value_or_raise(without_gil([&] { return ucx_transport(transports); }));
  else if (transport != "loopback")
    raise(Error(ErrorCode::kInvalidArgument,
                "remote: transport is '" + transport + "'; it must be loopback or ucx"));
  shape.own_agent = std::move(agent);
  return shape;
}

}  // namespace ashlar::python
