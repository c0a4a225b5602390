/* Run and train models that needle exported, from C.
 *
 *   needle_program* program = NULL;
 *   needle_call* call = NULL;
 *   float x[512], y[10];
 *   if (needle_open("model", NULL, &program) != NEEDLE_OK ||
 *       needle_new_call(program, &call) != NEEDLE_OK ||
 *       needle_set_input(call, "x", x, sizeof x, NULL, 0) != NEEDLE_OK ||
 *       needle_set_output(call, "output.0", y, sizeof y) != NEEDLE_OK ||
 *       needle_run(call) != NEEDLE_OK)
 *     fprintf(stderr, "%s\n", needle_error());
 *
 * A program is an exported model (an artifact: a folder with a manifest) whose files are verified
 * and whose code is loaded. A call holds the memory of one call's inputs and outputs. Any thread
 * may use a program; only one thread at a time may use a call, so give each thread its own. Arrays
 * are row-major and without gaps.
 *
 * Every function that can fail returns a status; if it fails, nothing has changed, and
 * needle_error() returns the reason. Returned names and shapes are in memory of the program, which
 * is valid until the program is closed and its calls are freed.
 *
 * needle_runtime.hpp is the same interface for C++17, with exceptions and std::vector. */
#ifndef NEEDLE_RUNTIME_H
#define NEEDLE_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define NEEDLE_API __attribute__((visibility("default")))
#else
#define NEEDLE_API
#endif

/* In C++, an enum without a fixed type must not hold a number outside its range, but a program with
 * a newer header, or a mistake, may pass one. */
#ifdef __cplusplus
#define NEEDLE_INT : int
extern "C" {
#else
#define NEEDLE_INT
#endif

typedef enum needle_status NEEDLE_INT {
  NEEDLE_OK = 0,
  NEEDLE_ERROR_ARTIFACT = 1,  /* the artifact is missing, damaged, or needs another runtime */
  NEEDLE_ERROR_SIGNATURE = 2, /* the artifact is not signed by the required key */
  NEEDLE_ERROR_TARGET = 3,    /* this machine cannot run the artifact's code */
  NEEDLE_ERROR_INPUT = 4,     /* an array does not fit, or there is no array of that name */
  NEEDLE_ERROR_WEIGHTS = 5,   /* weights or state are missing or do not fit */
  NEEDLE_ERROR_FILE = 6,      /* a file other than the artifact's cannot be read or written */
  NEEDLE_ERROR_USAGE = 7,     /* a null pointer, an unknown kind, an index out of range */
  NEEDLE_ERROR_MEMORY = 8,    /* not enough memory */
  NEEDLE_ERROR_CODE = 9       /* the compiled code failed */
} needle_status;

typedef enum needle_dtype NEEDLE_INT {
  NEEDLE_BOOL = 0, /* one byte, 0 or 1 */
  NEEDLE_INT8,
  NEEDLE_INT16,
  NEEDLE_INT32,
  NEEDLE_INT64,
  NEEDLE_UINT8,
  NEEDLE_UINT16,
  NEEDLE_UINT32,
  NEEDLE_UINT64,
  NEEDLE_FLOAT16,  /* IEEE 754 binary16, as bits */
  NEEDLE_BFLOAT16, /* the upper half of a float32, as bits */
  NEEDLE_FLOAT32,
  NEEDLE_FLOAT64
} needle_dtype;

/* The kinds of a program's arrays: inputs and outputs of a call, weights, and state. State arrays
 * are those that a call changes, such as the weights and moments of a training step; the program
 * keeps them between calls. */
typedef enum needle_kind NEEDLE_INT {
  NEEDLE_INPUTS = 0,
  NEEDLE_OUTPUTS,
  NEEDLE_WEIGHTS,
  NEEDLE_STATE
} needle_kind;

/* A named array. In descriptions, `data` is null, `bytes` is 0, and an extent of -1 is a size that
 * each call chooses. */
typedef struct needle_array {
  const char* name;
  needle_dtype dtype;
  int32_t ndim;
  const int64_t* shape; /* ndim extents */
  void* data;
  size_t bytes;
} needle_array;

typedef struct needle_options {
  size_t size;            /* sizeof(needle_options) */
  const char* public_key; /* a PEM file with the Ed25519 public key that the artifact's signature
                             must match; null requires no signature */
  int threads; /* the most threads per call; 0: the number for which the code was compiled */
} needle_options;

typedef struct needle_program needle_program;
typedef struct needle_call needle_call;

/* The runtime's version, such as "0.1.0". */
NEEDLE_API const char* needle_version(void);

/* The reason for the last failure in this thread: one line of UTF-8, valid until the next failure
 * in this thread. */
NEEDLE_API const char* needle_error(void);

/* The bytes of one element; 0 for an unknown dtype. */
NEEDLE_API size_t needle_dtype_size(needle_dtype dtype);
/* NumPy's name, such as "float32"; null for an unknown dtype. */
NEEDLE_API const char* needle_dtype_name(needle_dtype dtype);

/* Open the artifact in the folder `path`: check the signature (if a key is given), the manifest's
 * digest, the SHA-256 of every file, the versions and the processor's features, and only then load
 * the code, from a private copy of the checked bytes. `options` may be null. */
NEEDLE_API needle_status needle_open(const char* path, const needle_options* options,
                                     needle_program** program);
/* Close a program; null is allowed. Its calls continue to work until they are freed. */
NEEDLE_API void needle_close(needle_program* program);

/* The number of arrays of a kind. */
NEEDLE_API size_t needle_count(const needle_program* program, needle_kind kind);
/* Describe the array with this index among those of a kind. */
NEEDLE_API needle_status needle_describe(const needle_program* program, needle_kind kind,
                                         size_t index, needle_array* array);
/* Find the index of an array by its name. */
NEEDLE_API needle_status needle_find(const needle_program* program, needle_kind kind,
                                     const char* name, size_t* index);

/* Replace all weights by the arrays in a safetensors file, which have their state_dict names.
 * Calls that are running finish with the old weights. The state of the program stays. */
NEEDLE_API needle_status needle_load_weights(needle_program* program, const char* path);
/* Replace all weights by copies of arrays, which are matched by name. */
NEEDLE_API needle_status needle_set_weights(needle_program* program, const needle_array* arrays,
                                            size_t count);

/* Write the state to a safetensors file. After a failure, the file is unchanged. */
NEEDLE_API needle_status needle_save_state(const needle_program* program, const char* path);
/* Continue from the state in a safetensors file. */
NEEDLE_API needle_status needle_load_state(needle_program* program, const char* path);
/* Copy an array of the state to `data`, which has `bytes` bytes. */
NEEDLE_API needle_status needle_get_state(const needle_program* program, const char* name,
                                          void* data, size_t bytes);
/* Replace arrays of the state by copies; arrays that are not named stay as they are. */
NEEDLE_API needle_status needle_set_state(needle_program* program, const needle_array* arrays,
                                          size_t count);

NEEDLE_API needle_status needle_new_call(needle_program* program, needle_call** call);
/* Free a call; null is allowed. */
NEEDLE_API void needle_free_call(needle_call* call);

/* Use the caller's memory, `bytes` long, as an input of each following run. The memory must stay
 * valid; a run reads the elements that are in it at that time. `shape` has `ndim` extents; it may
 * be null unless the program leaves sizes of this input to the call. Memory that begins at a
 * multiple of 64 bytes is never copied. */
NEEDLE_API needle_status needle_set_input(needle_call* call, const char* name, const void* data,
                                          size_t bytes, const int64_t* shape, int32_t ndim);
/* Have each following run write an output to the caller's memory, `bytes` long, which must not
 * overlap an input or another output. If `data` is null, runs use the call's own memory again. */
NEEDLE_API needle_status needle_set_output(needle_call* call, const char* name, void* data,
                                           size_t bytes);
/* Run the program on the call's inputs, and advance its state. Fails if an input was not set, if
 * sizes contradict each other, or if an index is out of range; the outputs and the state are then
 * unchanged. */
NEEDLE_API needle_status needle_run(needle_call* call);
/* Describe an output of the last run, in the caller's memory or the call's own; it is valid until
 * the next run. */
NEEDLE_API needle_status needle_output(const needle_call* call, const char* name,
                                       needle_array* array);

#ifdef __cplusplus
}
#endif

#endif /* NEEDLE_RUNTIME_H */
