/* Classify images with an exported model, from C.
 *
 *   infer MODEL DATA
 *
 * DATA/test_images.f32 has the images, DATA/test_labels.i32 the class of each. The model must leave
 * the number of images open, so that each call can choose it. */
#include <needle_runtime.h>
#include <stdio.h>
#include <stdlib.h>

static void check(needle_status status) {
  if (status == NEEDLE_OK) return;
  fprintf(stderr, "infer: %s\n", needle_error());
  exit(1);
}

static void* read_file(const char* folder, const char* name, size_t* bytes) {
  char path[4096];
  const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE* file = length < (int)sizeof path ? fopen(path, "rb") : NULL;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0) {
    const long size = ftell(file);
    void* data = size >= 4 ? malloc((size_t)size) : NULL;
    rewind(file);
    if (data != NULL && fread(data, 1, (size_t)size, file) == (size_t)size) {
      fclose(file);
      *bytes = (size_t)size;
      return data;
    }
  }
  fprintf(stderr, "infer: %s cannot be read\n", path);
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: infer MODEL DATA\n");
    return 2;
  }
  size_t image_bytes, label_bytes;
  float* images = read_file(argv[2], "test_images.f32", &image_bytes);
  int32_t* labels = read_file(argv[2], "test_labels.i32", &label_bytes);
  const int64_t count = (int64_t)(label_bytes / sizeof *labels);

  needle_program* program = NULL;
  needle_call* call = NULL;
  needle_array input, scores;
  check(needle_open(argv[1], NULL, &program));
  check(needle_new_call(program, &call));
  check(needle_describe(program, NEEDLE_INPUTS, 0, &input));
  const int64_t shape[] = {count, (int64_t)(image_bytes / sizeof *images) / count};
  check(needle_set_input(call, input.name, images, image_bytes, shape, 2));
  check(needle_run(call));
  check(
      needle_output(call, "output.0", &scores)); /* float32 (count, classes), memory of the call */

  const int64_t classes = scores.shape[1];
  int64_t right = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float* row = (const float*)scores.data + i * classes;
    int64_t best = 0;
    for (int64_t k = 1; k < classes; ++k)
      if (row[k] > row[best]) best = k;
    right += best == labels[i];
  }
  printf("%lld of %lld images right\n", (long long)right, (long long)count);

  needle_free_call(call);
  needle_close(program);
  free(images);
  free(labels);
  return 0;
}
