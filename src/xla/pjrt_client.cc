#include "src/xla/pjrt_client.h"

#include "pjrt_c_api.h"
#include "src/core/strings.h"
#include "src/xla/hlo_proto.h"
#include "src/xla/pjrt_args.h"

namespace xla_gpu::xla {
namespace {

// Waits for the event and frees it; null is done already.
Status AwaitAndDestroy(const PjrtPlugin& plugin, PJRT_Event* event, const char* what) {
  if (event == nullptr) return OkStatus();
  PjrtArgs<PJRT_Event_Await_Args> await;
  await->event = event;
  Status status = plugin.TakeError(plugin.api()->PJRT_Event_Await(await.get()), what);
  PjrtArgs<PJRT_Event_Destroy_Args> destroy;
  destroy->event = event;
  const Status freed = plugin.TakeError(plugin.api()->PJRT_Event_Destroy(destroy.get()), what);
  return status.ok() ? freed : status;
}

// A serialised xla.CompileOptionsProto for one replica and one partition:
//   executable_build_options (3) { device_ordinal (1): -1, num_replicas (4): 1, num_partitions (5):
//   1 }
// The default of device_ordinal is 0; -1 leaves the choice to the client.
std::string CompileOptions() {
  std::string build("\x08", 1);
  build.append(9, '\xff').append("\x01", 1);
  build.append("\x20\x01\x28\x01", 4);
  return std::string("\x1a", 1) + static_cast<char>(build.size()) + build;
}

}  // namespace

// A destructor has nobody to tell of an error.
void PjrtDeleter::operator()(PJRT_Buffer* buffer) const {
  PjrtArgs<PJRT_Buffer_Destroy_Args> args;
  args->buffer = buffer;
  (void)XLA_GPU_PJRT_CALL(*plugin, PJRT_Buffer_Destroy, args);
}

void PjrtDeleter::operator()(PJRT_Executable* executable) const {
  PjrtArgs<PJRT_Executable_Destroy_Args> args;
  args->executable = executable;
  (void)XLA_GPU_PJRT_CALL(*plugin, PJRT_Executable_Destroy, args);
}

void PjrtDeleter::operator()(PJRT_LoadedExecutable* executable) const {
  PjrtArgs<PJRT_LoadedExecutable_Destroy_Args> args;
  args->executable = executable;
  (void)XLA_GPU_PJRT_CALL(*plugin, PJRT_LoadedExecutable_Destroy, args);
}

void PjrtDeleter::operator()(PJRT_Client* client) const {
  PjrtArgs<PJRT_Client_Destroy_Args> args;
  args->client = client;
  (void)XLA_GPU_PJRT_CALL(*plugin, PJRT_Client_Destroy, args);
}

// ---- DeviceBuffer ----

StatusOr<TensorSpec> DeviceBuffer::type() const {
  PjrtArgs<PJRT_Buffer_ElementType_Args> element;
  element->buffer = buffer_.get();
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_Buffer_ElementType, element));
  PjrtArgs<PJRT_Buffer_Dimensions_Args> dims;
  dims->buffer = buffer_.get();
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_Buffer_Dimensions, dims));
  const auto dtype = FindDType([&](const DTypeInfo& info) { return info.pjrt == element->type; });
  if (!dtype) {
    return Unimplemented("a result has PJRT element type number ", static_cast<int>(element->type),
                         ", which this library does not know");
  }
  return TensorSpec{*dtype, {dims->dims, dims->dims + dims->num_dims}};
}

StatusOr<HostTensor> DeviceBuffer::ToHost() const {
  XLA_GPU_ASSIGN_OR_RETURN(TensorSpec spec, type());
  HostTensor host = HostTensor::Zeros(spec.dtype, spec.shape);
  // Asked for by name, as the device's own layout may be another one.
  std::vector<int64_t> minor_to_major;
  for (size_t i = spec.shape.size(); i > 0; --i) {
    minor_to_major.push_back(static_cast<int64_t>(i) - 1);
  }
  PJRT_Buffer_MemoryLayout layout{};
  layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = minor_to_major.size();

  PjrtArgs<PJRT_Buffer_ToHostBuffer_Args> args;
  args->src = buffer_.get();
  args->host_layout = spec.shape.size() < 2 ? nullptr : &layout;
  // No byte to copy still waits for the computation, and its error.
  uint8_t nothing = 0;
  args->dst = host.data.empty() ? &nothing : host.data.data();
  args->dst_size = host.data.size();
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_Buffer_ToHostBuffer, args));
  XLA_GPU_RETURN_IF_ERROR(AwaitAndDestroy(*plugin_, args->event, "execution"));
  return host;
}

// ---- PjrtExecutable ----

PjrtExecutable::PjrtExecutable(const PjrtPlugin* plugin, PJRT_LoadedExecutable* executable)
    : plugin_(plugin), executable_(executable, {plugin}) {
  std::string format;
  const StatusOr<std::string> program = OptimizedProgram(&format);
  if (program.ok()) parameters_ = HloParameters(*program, format == "hlo_with_config");
}

StatusOr<PjrtOwned<PJRT_Executable>> PjrtExecutable::GetExecutable() const {
  PjrtArgs<PJRT_LoadedExecutable_GetExecutable_Args> args;
  args->loaded_executable = executable_.get();
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_LoadedExecutable_GetExecutable, args));
  return PjrtOwned<PJRT_Executable>(args->executable, {plugin_});
}

StatusOr<size_t> PjrtExecutable::num_outputs() const {
  XLA_GPU_ASSIGN_OR_RETURN(const auto executable, GetExecutable());
  PjrtArgs<PJRT_Executable_NumOutputs_Args> args;
  args->executable = executable.get();
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_Executable_NumOutputs, args));
  return args->num_outputs;
}

Status PjrtExecutable::CheckArguments(const std::vector<TensorView>& args) const {
  if (!parameters_.has_value()) return OkStatus();
  const auto type = [](const std::optional<TensorSpec>& spec) {
    return spec.has_value() ? spec->ToString() : "a type that is not told";
  };
  if (args.size() != parameters_->size()) {
    return InvalidArgument("@main of the module takes ", parameters_->size(), " arguments (",
                           StrJoin(*parameters_, ", ", type), ") but ", args.size(), " came");
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const std::optional<TensorSpec>& spec = (*parameters_)[i];
    if (!spec.has_value() || spec->Matches(args[i])) continue;
    return InvalidArgument("argument ", i, " is ", args[i].ToString(),
                           " but @main of the module takes ", type(spec),
                           "; give that, or change the module");
  }
  return OkStatus();
}

StatusOr<std::vector<DeviceBuffer>> PjrtExecutable::Execute(
    const std::vector<const DeviceBuffer*>& args) const {
  XLA_GPU_ASSIGN_OR_RETURN(const size_t outputs, num_outputs());
  std::vector<PJRT_Buffer*> arg_list;
  std::vector<int64_t> keep;  // no argument may be donated: the caller still owns it
  for (const DeviceBuffer* arg : args) {
    keep.push_back(static_cast<int64_t>(keep.size()));
    arg_list.push_back(arg->get());
  }
  std::vector<PJRT_Buffer*> output_list(outputs, nullptr);
  PJRT_Buffer* const* const arg_lists[] = {arg_list.data()};
  PJRT_Buffer** const output_lists[] = {output_list.data()};
  PJRT_Event* done[] = {nullptr};

  PjrtArgs<PJRT_ExecuteOptions> options;
  options->non_donatable_input_indices = keep.data();
  options->num_non_donatable_input_indices = keep.size();
  PjrtArgs<PJRT_LoadedExecutable_Execute_Args> execute;
  execute->executable = executable_.get();
  execute->options = options.get();
  execute->argument_lists = arg_lists;
  execute->num_devices = 1;
  execute->num_args = arg_list.size();
  execute->output_lists = output_lists;
  execute->device_complete_events = done;
  XLA_GPU_RETURN_IF_ERROR(plugin_->TakeError(
      plugin_->api()->PJRT_LoadedExecutable_Execute(execute.get()), "execution"));
  std::vector<DeviceBuffer> results;
  for (PJRT_Buffer* buffer : output_list) results.emplace_back(plugin_, buffer);
  XLA_GPU_RETURN_IF_ERROR(AwaitAndDestroy(*plugin_, done[0], "execution"));
  return results;
}

StatusOr<std::string> PjrtExecutable::OptimizedProgram(std::string* format) const {
  XLA_GPU_ASSIGN_OR_RETURN(const auto executable, GetExecutable());
  PjrtArgs<PJRT_Program> program;
  PjrtArgs<PJRT_Executable_OptimizedProgram_Args> args;
  args->executable = executable.get();
  args->program = program.get();
  // The first call tells the size, the second fills the buffer.
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_Executable_OptimizedProgram, args));
  std::string code(program->code_size, '\0');
  program->code = code.data();
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_Executable_OptimizedProgram, args));
  *format = std::string(program->format, program->format_size);
  return code;
}

// ---- PjrtClient ----

StatusOr<std::unique_ptr<PjrtClient>> PjrtClient::Create(const PjrtPlugin* plugin) {
  const int64_t devices[] = {0};
  PJRT_NamedValue options[2] = {};
  for (PJRT_NamedValue& option : options) option.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  options[0].name = "preallocate";
  options[0].name_size = 11;
  options[0].type = PJRT_NamedValue_kBool;
  options[0].bool_value = false;
  options[0].value_size = 1;
  options[1].name = "visible_devices";
  options[1].name_size = 15;
  options[1].type = PJRT_NamedValue_kInt64List;
  options[1].int64_array_value = devices;
  options[1].value_size = 1;

  PjrtArgs<PJRT_Client_Create_Args> args;
  if (plugin->is_gpu()) {
    args->create_options = options;
    args->num_options = std::size(options);
  }
  const std::string what = StrCat("creating a client of ", plugin->path());
  XLA_GPU_RETURN_IF_ERROR(
      plugin->TakeError(plugin->api()->PJRT_Client_Create(args.get()), what.c_str()));
  std::unique_ptr<PjrtClient> client(new PjrtClient(plugin, args->client));
  XLA_GPU_RETURN_IF_ERROR(client->ReadDescription());
  return client;
}

Status PjrtClient::ReadDescription() {
  PjrtArgs<PJRT_Client_PlatformName_Args> name;
  name->client = client_.get();
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_Client_PlatformName, name));
  platform_name_.assign(name->platform_name, name->platform_name_size);
  PjrtArgs<PJRT_Client_AddressableDevices_Args> devices;
  devices->client = client_.get();
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_Client_AddressableDevices, devices));
  if (devices->num_addressable_devices == 0) {
    return Unavailable("plugin ", plugin_->path(), " shows no device");
  }
  device_ = devices->addressable_devices[0];
  PjrtArgs<PJRT_Device_GetDescription_Args> description;
  description->device = device_;
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_Device_GetDescription, description));
  PjrtArgs<PJRT_DeviceDescription_Kind_Args> kind;
  kind->device_description = description->device_description;
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_DeviceDescription_Kind, kind));
  device_kind_.assign(kind->device_kind, kind->device_kind_size);
  return OkStatus();
}

StatusOr<PjrtExecutable> PjrtClient::Compile(std::string_view mlir) const {
  static constexpr std::string_view kFormat = "mlir";
  std::string code(mlir);
  const std::string options = CompileOptions();
  PjrtArgs<PJRT_Program> program;
  program->code = code.data();
  program->code_size = code.size();
  program->format = kFormat.data();
  program->format_size = kFormat.size();
  PjrtArgs<PJRT_Client_Compile_Args> args;
  args->client = client_.get();
  args->program = program.get();
  args->compile_options = options.data();
  args->compile_options_size = options.size();
  XLA_GPU_RETURN_IF_ERROR(
      plugin_->TakeError(plugin_->api()->PJRT_Client_Compile(args.get()), "compilation"));
  return PjrtExecutable(plugin_, args->executable);
}

StatusOr<DeviceBuffer> PjrtClient::ToDevice(const TensorView& tensor) const {
  const auto type = static_cast<PJRT_Buffer_Type>(InfoOf(tensor.dtype).pjrt);
  if (type == PJRT_Buffer_Type_INVALID) {
    return InvalidArgument("a tensor of dtype ", DTypeName(tensor.dtype),
                           " cannot be brought to a device");
  }
  uint8_t nothing = 0;
  PjrtArgs<PJRT_Client_BufferFromHostBuffer_Args> args;
  args->client = client_.get();
  args->data = tensor.data == nullptr ? &nothing : tensor.data;
  args->type = type;
  args->dims = tensor.shape.data();
  args->num_dims = tensor.shape.size();
  args->host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
  args->device = device_;
  XLA_GPU_RETURN_IF_ERROR(XLA_GPU_PJRT_CALL(*plugin_, PJRT_Client_BufferFromHostBuffer, args));
  DeviceBuffer buffer(plugin_, args->buffer);
  XLA_GPU_RETURN_IF_ERROR(
      AwaitAndDestroy(*plugin_, args->done_with_host_buffer, "copy to the device"));
  return buffer;
}

}  // namespace xla_gpu::xla
