/* The C ABI of libxla_gpu.so: ops as plain function calls, and handlers for XLA custom calls.
 *
 * Everything else (Python, C++ hosts, other languages) stands on this header. All functions are
 * thread-safe. Structs begin with struct_size, which the caller sets to sizeof(the struct), so that
 * later versions may append members. No function throws, or aborts on bad input or for want of
 * memory or threads. A child of fork() may call all that needs no CUDA and no client of its
 * parent's.
 */
#ifndef XLA_GPU_XLA_GPU_H_
#define XLA_GPU_XLA_GPU_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define XLA_GPU_EXPORT __attribute__((visibility("default")))
#else
#define XLA_GPU_EXPORT
#endif

/* ---- Errors ------------------------------------------------------------------------------- */

/* NULL is success. Any other value is owned by the caller and freed with xla_gpu_status_free. */
typedef struct xla_gpu_status xla_gpu_status;

/* The canonical code, 0 for NULL: 3 INVALID_ARGUMENT (a NULL, a struct_size, a shape, dtype or
 * attribute that cannot be), 5 NOT_FOUND (no such op, file or plugin), 8 RESOURCE_EXHAUSTED
 * (memory, processes), 9 FAILED_PRECONDITION (no NVRTC, a runtime of another version, a child of
 * fork()), 12 UNIMPLEMENTED (not on this platform or runtime), 13 INTERNAL (XLA's or CUDA's own),
 * 14 UNAVAILABLE (no NVIDIA driver or device), ... */
XLA_GPU_EXPORT int xla_gpu_status_code(const xla_gpu_status* status);
/* UTF-8, what is wrong and what is allowed; valid until the status is freed. "" for NULL. */
XLA_GPU_EXPORT const char* xla_gpu_status_message(const xla_gpu_status* status);
XLA_GPU_EXPORT void xla_gpu_status_free(xla_gpu_status* status);

/* A NUL-terminated text owned by the caller, freed with xla_gpu_string_free. */
XLA_GPU_EXPORT void xla_gpu_string_free(char* text);

/* The version of this header. Below 1.0.0 a new minor version may change the ABI: the soname of an
 * installed library is libxla_gpu.so.MAJOR.MINOR. */
#define XLA_GPU_VERSION_MAJOR 0
#define XLA_GPU_VERSION_MINOR 1
#define XLA_GPU_VERSION_PATCH 0
/* 100 for 0.1.0; for #if. */
#define XLA_GPU_VERSION_NUMBER \
  (XLA_GPU_VERSION_MAJOR * 10000 + XLA_GPU_VERSION_MINOR * 100 + XLA_GPU_VERSION_PATCH)

/* The version of the library that is loaded: "0.1.0". Static. */
XLA_GPU_EXPORT const char* xla_gpu_version(void);

/* ---- Tensors and attributes --------------------------------------------------------------- */

/* Element types; the values equal xla::PrimitiveType. Of 1 byte: PRED (0 or 1), I8, U8, F8*; of 2:
 * I16, U16, F16, BF16; of 4: I32, U32, F32; of 8: I64, U64, F64. Any other value is refused. */
typedef enum xla_gpu_dtype {
  XLA_GPU_DTYPE_PRED = 1,
  XLA_GPU_DTYPE_I8 = 2,
  XLA_GPU_DTYPE_I16 = 3,
  XLA_GPU_DTYPE_I32 = 4,
  XLA_GPU_DTYPE_I64 = 5,
  XLA_GPU_DTYPE_U8 = 6,
  XLA_GPU_DTYPE_U16 = 7,
  XLA_GPU_DTYPE_U32 = 8,
  XLA_GPU_DTYPE_U64 = 9,
  XLA_GPU_DTYPE_F16 = 10,
  XLA_GPU_DTYPE_F32 = 11,
  XLA_GPU_DTYPE_F64 = 12,
  XLA_GPU_DTYPE_BF16 = 16,
  XLA_GPU_DTYPE_F8E5M2 = 19,
  XLA_GPU_DTYPE_F8E4M3FN = 20
} xla_gpu_dtype;

/* A dense row-major tensor in host memory (platform "Host") or device memory ("CUDA"): the product
 * of its dimensions, times the dtype's size, in bytes. */
typedef struct xla_gpu_tensor {
  size_t struct_size;
  void* data;          /* may be NULL if it has no elements */
  int32_t dtype;       /* xla_gpu_dtype */
  int32_t rank;        /* 0 to 32 */
  const int64_t* dims; /* rank dimensions, each at least 0; may be NULL if rank is 0 */
} xla_gpu_tensor;

/* Of an attribute's value, with the members of xla_gpu_attr that hold it. */
typedef enum xla_gpu_attr_type {
  XLA_GPU_ATTR_BOOL = 0,     /* i */
  XLA_GPU_ATTR_INT = 1,      /* i */
  XLA_GPU_ATTR_FLOAT = 2,    /* f */
  XLA_GPU_ATTR_STRING = 3,   /* s, s_size bytes */
  XLA_GPU_ATTR_INT_ARRAY = 4 /* ints, ints_size values */
} xla_gpu_attr_type;

typedef struct xla_gpu_attr {
  size_t struct_size;
  const char* name; /* NUL-terminated */
  int32_t type;     /* xla_gpu_attr_type */
  int64_t i;
  double f;
  const char* s;
  size_t s_size;
  const int64_t* ints;
  size_t ints_size;
} xla_gpu_attr;

/* ---- Ops ---------------------------------------------------------------------------------- */

/* One call of an op. `op` is its name ("simple_add") or custom-call target ("XlaGpuSimpleAdd"). At
 * most 64 arguments, 64 results and 32 attributes; at most 32 dimensions a tensor. */
typedef struct xla_gpu_call {
  size_t struct_size;
  const char* op;
  const char* platform; /* "Host" or "CUDA" */
  void* stream;         /* CUDA: the CUstream to enqueue on; Host: NULL */
  const xla_gpu_tensor* args;
  size_t num_args;
  const xla_gpu_tensor* results;
  size_t num_results;
  const xla_gpu_attr* attrs;
  size_t num_attrs;
} xla_gpu_call;

/* Runs the op: on the Host before it returns, on CUDA by enqueueing on the stream (the context of
 * the stream's device must be current). A result may share no memory with another tensor, but for
 * one argument of its type, whole: the one that it is an alias of, if the schema names one. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_run(const xla_gpu_call* call);

/* Checks the call without running it (data pointers and results are not read) and returns what its
 * results are as JSON: [{"dtype":"bf16","shape":[8,128],"name":"out","kind":"output",
 * "alias_of":null}, ...]. Kind is "output"; "alias", with the index of the argument whose buffer it
 * shares in alias_of; or "scratch", work space of any content, which may be larger than this. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_infer(const xla_gpu_call* call, char** results_json);

/* A call whose tensors are Python objects, for frameworks with DLPack's C exchange API (PyTorch
 * from 2.10 on, as torch.Tensor.__dlpack_c_exchange_api__). It is made ready once; then a call
 * costs one crossing from Python, which hands over a tuple. */
typedef struct xla_gpu_object_call {
  size_t struct_size;
  const xla_gpu_call* call; /* what runs; its data pointers and stream are not read */
  const void* exchange_api; /* the framework's DLPackExchangeAPI */
  int32_t device_type;      /* DLPack's number: 1 CPU, 2 CUDA */
  int32_t device_id;
  const void* none;                              /* Py_None, which is no tensor */
  void* (*tuple_item)(void* tuple, ptrdiff_t i); /* PyTuple_GetItem */
  void* (*release_gil)(void);                    /* PyEval_SaveThread */
  void (*acquire_gil)(void* state);              /* PyEval_RestoreThread */
  void* plan; /* the library's: NULL at first, freed by xla_gpu_object_call_clear */
} xla_gpu_object_call;

/* Runs c->call on the objects of `tuple`: its arguments, then its results, on the framework's
 * current stream. Every object must be a tensor of the framework. Returns 0 where it ran; 1, with
 * nothing run, where a tensor's type (0-d counts as [1]), device or strides are not the call's, an
 * argument overlaps a result without being it, or the framework set a Python error; 2 with the
 * error in `status`. The caller holds Python's GIL; on CUDA the context of the device is current.
 * What `c` points to must stay as it is from the first run on. */
XLA_GPU_EXPORT int xla_gpu_run_objects(xla_gpu_object_call* c, void* tuple,
                                       xla_gpu_status** status);
/* Frees what the runs of `c` kept. No run of it may be under way. */
XLA_GPU_EXPORT void xla_gpu_object_call_clear(xla_gpu_object_call* c);

/* Every op with its schema and platforms, as JSON; NULL where there is no memory for it. */
XLA_GPU_EXPORT char* xla_gpu_ops_json(void);

/* ---- How long calls take -------------------------------------------------------------------- */

/* Times the calls of all ops and kernels, by every way into the library, from start to stop. There
 * is one profile at a time in a process: FAILED_PRECONDITION where one is on, or none is at stop.
 *
 * Stop waits for the calls that were made until then, ends the profile, and writes what they took,
 * the longest total first: [{"name":"saxpy","key":"saxpy@6b3c0e9ad1f24711","platform":"CUDA",
 * "calls":3,"timed":2,"total_us":9.5,"min_us":4.5,"max_us":5.0}, ...] ("key" as in xla_gpu_call).
 * On the Host a call's time is the clock's, on CUDA that between two events in its stream around
 * all that it launched. Counted but not timed are calls on a stream that was being captured into a
 * graph, whose replays do not come here, and those on CUDA after the first 65,536. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_profile_start(void);
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_profile_stop(char** times_json);

/* ---- The cache on disk ----------------------------------------------------------------------- */

/* A text that is kept for other processes of this user in the folder of compiled kernels (variable
 * XLA_GPU_CACHE_DIR), where `xla-gpu cache` shows and clears it. `key` is all that the text depends
 * on, of any length. Get writes "" where nothing is kept. Put keeps nothing where there is no cache
 * on disk; `description` is for people. FAILED_PRECONDITION: the folder cannot be used, or not
 * written to; INVALID_ARGUMENT: a null pointer. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_cache_get(const char* key, size_t key_size, char** text);
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_cache_put(const char* key, size_t key_size,
                                                 const char* description, const char* text);

/* ---- Kernels of your own ------------------------------------------------------------------- */

/* Makes a kernel of yours an op, by a JSON text (docs/your-kernel.md has its members) of `size`
 * bytes: CUDA source, machine code, a C or TVM-FFI function, C++ source for the Host. Nothing is
 * compiled yet. Writes what xla_gpu_ops_json tells of an op; its "key" is the op's name in
 * xla_gpu_call and in all other functions here, "target" the name of its custom calls, which have
 * an attribute "kernel" with the key. The same text again is the same op; it is never removed. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_define_kernel(const char* definition, size_t size,
                                                     char** op_json);

/* ---- Handlers for XLA custom calls -------------------------------------------------------- */

/* The function that XLA calls for `op` on `platform` ("Host", "CUDA") by custom-call API version 1,
 * 2 or 3 (legacy) or 4 (typed FFI: one function for the stages instantiate and execute). Versions
 * 1 and 2 on the Host need xla_gpu_alias instead.
 * Valid for the life of the process. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_handler(const char* op, const char* platform,
                                               int api_version, void** handler);

/* The text that describes `call` to a legacy handler (API versions 1, 2, 3): pass it as the custom
 * call's backend_config. Checks the call; data pointers are not read. With num_results 0 the
 * results are those that xla_gpu_infer tells. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_opaque(const xla_gpu_call* call, char** text);

/* As xla_gpu_handler, for API versions 1 and 2 on the Host, whose calls carry no backend_config:
 * the handler is bound to one call, `opaque` (the text of xla_gpu_opaque). Register it under a
 * target name of its own. Equal calls give the same handler; there are 1024 for each version. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_alias(const char* op, const char* platform, int api_version,
                                             const char* opaque, void** handler);

/* Checks what XLA would refuse without a word, or crash by: that `handler` is a function, that a
 * typed one (api_version 4) answers XLA's metadata call and an untyped one does not, and that the
 * FFI version it was built against is not newer than the runtime's (runtime_ffi_major,
 * runtime_ffi_minor; -1 where it is not known). What is not a handler of this library is asked in a
 * forked child, for some seconds at most, because a function that is no handler may crash, exit or
 * hang. Writes, unless info_json is NULL, {"ffi":"0.1","command_buffer":true}, for untyped handlers
 * {}. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_check_handler(const char* name, const void* handler,
                                                     const char* platform, int api_version,
                                                     int runtime_ffi_major, int runtime_ffi_minor,
                                                     char** info_json);

/* Registers `handler` as custom-call target `name` in one PJRT plugin (each has its own registry),
 * before or after its client exists. The plugin: `pjrt_api`, a PJRT_Api*; else the .so at
 * `plugin_path`, loaded if it is not; else, with both NULL, the one loaded in this process that
 * runs `platform` ("Host", "CUDA"). Checked first as by xla_gpu_check_handler. The same
 * registration again is fine, another handler under the same name is an error. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_register_pjrt(const void* pjrt_api, const char* plugin_path,
                                                     const char* name, const void* handler,
                                                     const char* platform, int api_version);

/* As xla_gpu_register_pjrt, for a typed handler with a function for each stage (NULL: none; execute
 * is required). Only CUDA plugins register stages other than execute. */
typedef struct xla_gpu_staged_handler {
  size_t struct_size;
  const void* instantiate;
  const void* prepare;
  const void* initialize;
  const void* execute;
} xla_gpu_staged_handler;
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_register_pjrt_staged(const void* pjrt_api,
                                                            const char* plugin_path,
                                                            const char* name,
                                                            const xla_gpu_staged_handler* handler,
                                                            const char* platform);

/* The compatibility plugin, by which PyTorch/XLA runs on a stock PJRT plugin: libxla_gpu_pjrt.so's
 * GetPjrtApi returns this PJRT_Api*. The first call finds the stock plugin (XLA_GPU_PJRT_PLUGIN: a
 * path, "cuda" or "cpu"; else CUDA where there is an NVIDIA GPU, else the CPU), loads it, and
 * registers this library's ops in it. Never NULL: where there is no plugin, every function of the
 * table fails and says why. */
XLA_GPU_EXPORT const void* xla_gpu_pjrt_compat_api(void);

/* What the compatibility plugin wraps (it is loaded if it is not yet), as JSON:
 * {"path":"/.../xla_cuda_plugin.so","platform":"CUDA","pjrt":"0.115","problem":""}; "problem" tells
 * why this library's ops could not be registered. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_pjrt_compat_info(char** info_json);

/* ---- Running XLA ---------------------------------------------------------------------------- */

/* The StableHLO module (text) whose @main takes the call's arguments and returns the op's results
 * by a custom call of API version 4. Data pointers and results are not read. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_stablehlo(const xla_gpu_call* call, char** mlir);

/* A client of a PJRT plugin, on one device. `plugin`: the path of a .so; "cpu" or "cuda", the first
 * found in the Python environments; NULL or "": CUDA on a machine with an NVIDIA GPU, else the CPU.
 */
typedef struct xla_gpu_client xla_gpu_client;
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_client_create(const char* plugin, xla_gpu_client** client);
XLA_GPU_EXPORT void xla_gpu_client_free(xla_gpu_client* client);
/* "Host" or "CUDA". */
XLA_GPU_EXPORT const char* xla_gpu_client_platform(const xla_gpu_client* client);
/* The plugin's PJRT_Api*, for xla_gpu_register_pjrt and for PJRT calls of your own. */
XLA_GPU_EXPORT const void* xla_gpu_client_pjrt_api(const xla_gpu_client* client);

/* Compiles the module, a text (once; kept by it), with this library's handlers registered for the
 * ops that it calls, and runs it on tensors in host memory, which must be of the types that its
 * @main takes. The results are the caller's. */
typedef struct xla_gpu_results xla_gpu_results;
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_client_run(xla_gpu_client* client, const char* mlir,
                                                  const xla_gpu_tensor* args, size_t num_args,
                                                  xla_gpu_results** results);
XLA_GPU_EXPORT size_t xla_gpu_results_count(const xla_gpu_results* results);
/* Fills `tensor` (struct_size set by the caller): one in host memory, which points into `results`.
 * INVALID_ARGUMENT unless index is below the count. */
XLA_GPU_EXPORT xla_gpu_status* xla_gpu_results_get(const xla_gpu_results* results, size_t index,
                                                   xla_gpu_tensor* tensor);
XLA_GPU_EXPORT void xla_gpu_results_free(xla_gpu_results* results);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* XLA_GPU_XLA_GPU_H_ */
