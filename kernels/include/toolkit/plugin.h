/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI between the tools and a kernel plugin (a shared object, loaded at run time).
 *
 * A plugin exports one function, tk_plugin_query, that returns a table: a name, the ops it implements and,
 * if it brings a backend of its own, the runtime of that backend (memory, streams, graphs, events). A plugin
 * without a runtime names the backend it runs on ("cuda", "simt", ...) and receives that backend's pointers.
 *
 * Rules that keep this ABI stable:
 * - Every struct starts with `struct_size`, set by whoever fills it. A reader looks at a field only if
 *   struct_size covers it; fields are appended, never moved, never reused.
 * - Arrays of structs are arrays of pointers, so that a struct may grow.
 * - Nothing throws across this boundary; strings are UTF-8, owned by whoever made them and valid for as long
 *   as the struct that holds them (for a plugin's own tables: until the plugin is unloaded).
 */
#ifndef TOOLKIT_PLUGIN_H
#define TOOLKIT_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TK_ABI_VERSION 1u

#if defined(_WIN32)
#define TK_EXPORT __declspec(dllexport)
#else
#define TK_EXPORT __attribute__((visibility("default")))
#endif

typedef int32_t tk_status;
enum {
  TK_OK = 0,
  TK_UNSUPPORTED = 1, /* a right answer of its own: "unsupported, because ..." (the message says why) */
  TK_INVALID = 2,     /* the call breaks the op's contract (the message names tensor, expected, got) */
  TK_ERROR = 3,       /* the backend reported an error (the message carries its text) */
  TK_OUT_OF_MEMORY = 4
};

typedef int32_t tk_dtype;
enum {
  TK_BOOL = 1, /* one byte, 0 or 1 */
  TK_U8 = 2,
  TK_I8 = 3,
  TK_I16 = 4,
  TK_I32 = 5,
  TK_I64 = 6,
  TK_F16 = 7,  /* raw IEEE binary16 bits */
  TK_BF16 = 8, /* raw bfloat16 bits */
  TK_F32 = 9,
  TK_F64 = 10,
  TK_E4M3FN = 11,   /* fp8, 1-4-3, bias 7, no infinities, 0x7f/0xff NaN, largest 448 */
  TK_E4M3FNUZ = 12, /* fp8, 1-4-3, bias 8, no infinities, no -0, 0x80 NaN, largest 240 */
  TK_E4B15 = 13,    /* fp8, 1-4-3, bias 15, neither infinities nor NaN, largest 1.875 */
  TK_E5M2 = 14,     /* fp8, 1-5-2, bias 15, IEEE-like infinities and NaN */
  TK_U16 = 15,
  TK_U32 = 16,
  TK_U64 = 17
};

/* A strided tensor. Strides are in elements, may be 0 and may be negative. `data` is the address of element
 * (0, ..., 0) in the memory of the runtime; it may be NULL in a workspace query and where a tensor is empty. */
typedef struct tk_tensor {
  uint32_t struct_size;
  tk_dtype dtype;
  const char* name; /* as in the op's contract: "k_cache" */
  void* data;
  const int64_t* shape;
  const int64_t* strides;
  int32_t rank;
  tk_dtype fp8_flavour; /* for u8 tensors that hold fp8 bytes: which of the TK_E* formats; else 0 */
} tk_tensor;

/* A scalar by name. All three forms are filled as far as the text converts: integer for booleans too (0/1). */
typedef struct tk_scalar {
  uint32_t struct_size;
  uint32_t reserved;
  const char* name; /* "compress_ratio" */
  const char* text; /* as given, e.g. "4", "0.125", "e4m3fn" */
  int64_t integer;
  double real;
} tk_scalar;

enum {
  TK_CALL_CAPTURING = 1u /* the stream is being captured: no allocation, no synchronisation, no host reads */
};

/* One call of one op. Tensors that the contract marks optional are simply absent. Outputs are allocated by the
 * caller with the contract's shape; every element of an output has to be written. */
typedef struct tk_call {
  uint32_t struct_size;
  uint32_t flags; /* TK_CALL_* */
  const char* op; /* "qsa.score" */
  const tk_tensor* const* tensors;
  const tk_scalar* const* scalars;
  uint32_t tensor_count;
  uint32_t scalar_count;
  void* workspace;          /* at least what the workspace query asked for, 256-byte aligned, content undefined */
  uint64_t workspace_bytes; /* bytes of it */
  void* stream;             /* the runtime's stream (cuda: cudaStream_t); NULL = its default stream */
  char* message;            /* where an error or "because ..." text goes, always 0-terminated; may be NULL */
  uint64_t message_bytes;   /* room in message, the terminator included */
} tk_call;

/* One kernel launch as an op would make it. */
typedef struct tk_launch {
  uint32_t struct_size;
  int32_t threads;      /* of a block */
  const char* kernel;   /* as the source names it; valid during the call that reports it */
  int64_t grid[3];      /* blocks */
  uint64_t dynamic_shared_bytes;
} tk_launch;

typedef struct tk_device_info tk_device_info;

typedef struct tk_op {
  uint32_t struct_size;
  uint32_t reserved;
  const char* name;           /* "qsa.score" */
  const char* implementation; /* short name of this kernel, e.g. "portable"; a CSV column */
  /* Looks at dtypes, shapes, strides and scalars only (data may be NULL). TK_OK and the bytes of workspace the
   * run needs, or TK_UNSUPPORTED / TK_INVALID with a message. */
  tk_status (*workspace)(const tk_call* call, uint64_t* bytes);
  /* Enqueues the op on call->stream and returns without waiting. */
  tk_status (*run)(const tk_call* call);
  /* Optional, may be NULL or beyond struct_size: what `run` would launch on a device like `device`, which need not be
   * here. Reports each launch in order; reads no data and enqueues nothing. Status and message as from `run`. */
  tk_status (*plan)(const tk_call* call, const tk_device_info* device,
                    void (*launched)(void* user, const tk_launch* launch), void* user);
} tk_op;

struct tk_device_info {
  uint32_t struct_size;
  int32_t wave;            /* lanes of a wave (warp) */
  char name[128];          /* "NVIDIA H200" */
  char arch[32];           /* "sm_90" */
  char driver[64];         /* driver version, empty where there is none */
  char toolkit[64];        /* toolkit or compiler version the backend was built with */
  uint64_t memory_bytes;
  uint64_t l2_bytes;
  uint64_t shared_bytes_per_block; /* opt-in maximum */
  int32_t multiprocessors;
  int32_t reserved;
};

enum {
  TK_RUNTIME_TIMED = 1u,   /* its times say something about a kernel (never set by an emulator) */
  TK_RUNTIME_GRAPHS = 2u   /* the graph functions work */
};

/* A backend. Functions return TK_OK or a status, and then last_error() has the text (per thread). All device
 * functions work on the device that `open` selected for the calling thread. */
typedef struct tk_runtime {
  uint32_t struct_size;
  uint32_t flags; /* TK_RUNTIME_* */
  const char* (*last_error)(void);
  /* How many devices there are. No driver or no device: TK_UNSUPPORTED, and last_error says why in one line. */
  tk_status (*device_count)(int32_t* count);
  tk_status (*device_info)(int32_t device, tk_device_info* info); /* caller sets info->struct_size */
  tk_status (*open)(int32_t device);
  tk_status (*allocate)(uint64_t bytes, void** memory); /* 256-byte aligned */
  void (*release)(void* memory);
  tk_status (*copy_in)(void* device_memory, const void* host_memory, uint64_t bytes, void* stream);
  tk_status (*copy_out)(void* host_memory, const void* device_memory, uint64_t bytes, void* stream); /* waits */
  tk_status (*fill)(void* device_memory, uint8_t byte, uint64_t bytes, void* stream);
  tk_status (*stream_create)(void** stream);
  void (*stream_destroy)(void* stream);
  tk_status (*synchronize)(void* stream); /* also reports errors of earlier asynchronous work */
  tk_status (*capture_begin)(void* stream);
  tk_status (*capture_end)(void* stream, void** graph);
  tk_status (*graph_launch)(void* graph, void* stream);
  void (*graph_destroy)(void* graph);
  tk_status (*event_create)(void** event);
  void (*event_destroy)(void* event);
  tk_status (*event_record)(void* event, void* stream);
  tk_status (*event_elapsed_us)(void* begin, void* end, double* microseconds); /* waits for `end` */
  /* Backend options by name, e.g. simt: "order" = "forward" | "reverse" | "seed:N". Unknown: TK_INVALID. */
  tk_status (*set_option)(const char* name, const char* value);
} tk_runtime;

typedef struct tk_plugin {
  uint32_t struct_size;
  uint32_t abi_version;      /* TK_ABI_VERSION the plugin was built with */
  const char* name;          /* "cuda", "simt", "mine" */
  const char* version;       /* free text; a CSV column */
  const char* runs_on;       /* NULL: brings its own runtime; else the backend whose runtime it uses */
  const tk_runtime* runtime; /* NULL where runs_on is set */
  const tk_op* const* ops;
  uint32_t op_count;
  uint32_t reserved;
} tk_plugin;

/* The one exported entry. Returns NULL if the plugin cannot serve a host of that ABI version. */
typedef const tk_plugin* (*tk_plugin_query_function)(uint32_t host_abi_version);
TK_EXPORT const tk_plugin* tk_plugin_query(uint32_t host_abi_version);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
