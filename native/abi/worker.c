/* SPDX-License-Identifier: Apache-2.0
 * The library as a program that obeys its parent, so that kernels of a foreign CPU run under an emulator: worker FD
 *
 * FD is a file that both sides map; operands lie in it and are named by offset and size. Requests come by stdin and answers go to
 * stdout, a line of text each, so that a person can speak the protocol too:
 *
 *   first    abi VERSION / struct LETTER NAME SIZE ALIGNMENT / written LETTERS / call NAME KINDS / kernel INDEX NAME / ready
 *            so that the parent can compare every layout, signature and registry row with its own
 *   request  NAME ARGUMENT...    an integer; @OFFSET:BYTES, a piece of the file; - for NULL
 *   answer   done VALUE SENTENCE        what the function returned, and pysim_last_error
 *            refused SENTENCE           the line was no request: nothing was called
 *
 * Kinds, a letter for each argument:
 *   i  integer             d  bytes that are read         D  bytes that are read and written
 *   w  scratch             capitals  one struct, see `structs`
 * An epilogue's piece holds the struct, then the bias, then the residual; its fields are their offsets in the piece, or 0.
 *
 * A request cannot make the worker leave the file: offsets, sizes and the alignment of structs are checked, the operands' own
 * sizes are the parent's to keep, as for every caller of the library. The end of stdin is the end of the worker. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "pysim.h"

/* The functions: their names, the kinds of their arguments, the arguments. The compiler checks the count, integer against pointer,
 * and that nothing that is written comes from `in`; the parent compares the kinds with the header. */
#define CALLS(CALL)                                                                                      \
    CALL(pysim_kernel_count, "")                                                                         \
    CALL(pysim_kernel_at, "iK", i[0], out[1])                                                            \
    CALL(pysim_conv_output, "CNN", in[0], out[1], out[2])                                                \
    CALL(pysim_prepared_bytes, "QSN", in[0], in[1], out[2])                                              \
    CALL(pysim_prepare, "QSdDi", in[0], in[1], in[2], out[3], i[4])                                      \
    CALL(pysim_workspace_bytes, "QSiN", in[0], in[1], i[2], out[3])                                      \
    CALL(pysim_run, "QSEiddDwiP", in[0], in[1], in[2], i[3], in[4], in[5], out[6], out[7], i[8], out[9]) \
    CALL(pysim_reference, "QEddD", in[0], in[1], in[2], in[3], out[4])                                   \
    CALL(pysim_im2col, "CdD", in[0], in[1], out[2])

#define ROW(f, kinds, ...) {#f, kinds},
static const struct {
    const char *name, *kinds;
} calls[] = {CALLS(ROW)};

#define STRUCT(letter, type) {letter, #type, sizeof(type), _Alignof(type)}
static const struct {
    char letter;
    const char *name;
    size_t bytes, alignment;
} structs[] = {
    STRUCT('C', pysim_conv),    STRUCT('Q', pysim_problem),     STRUCT('S', pysim_schedule), STRUCT('E', pysim_epilogue),
    STRUCT('P', pysim_profile), STRUCT('K', pysim_kernel_info), STRUCT('N', int64_t),
};
static const char WRITTEN[] = "DPKN"; /* copied back by the parent */

enum { LINE = 1024, ARGUMENTS = 10 };
enum { COUNT_CALLS = sizeof calls / sizeof *calls, COUNT_STRUCTS = sizeof structs / sizeof *structs };

static struct {
    int fd;
    unsigned char *base;
    int64_t bytes;
} shared = {-1, NULL, 0};

typedef struct {
    int call; /* index of `calls` */
    int64_t i[ARGUMENTS];
    const void *in[ARGUMENTS];
    void *out[ARGUMENTS]; /* NULL for what is not written */
    pysim_epilogue epilogue;
} request;

static int refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("refused ");
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    return 0;
}

/* Maps the whole file, again if the parent changed its size. */
static int map_file(void) {
    struct stat file;
    if (fstat(shared.fd, &file) != 0) return refuse("the shared memory is not an open file: %s", strerror(errno));
    if (file.st_size == shared.bytes) return 1;
    if (shared.base) munmap(shared.base, (size_t)shared.bytes);
    void *base = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, shared.fd, 0);
    shared.base = base == MAP_FAILED ? NULL : base;
    shared.bytes = base == MAP_FAILED ? 0 : (int64_t)file.st_size;
    return shared.base || refuse("%lld bytes of shared memory cannot be mapped: %s", (long long)file.st_size, strerror(errno));
}

/* One argument; 1 where it is of its kind. */
static int take(request *r, int at, char kind, const char *word) {
    int64_t offset, bytes, least = 1, alignment = 1;
    int end = 0;
    if (kind == 'i') {
        errno = 0;
        char *rest;
        r->i[at] = strtoll(word, &rest, 10);
        return (rest != word && *rest == '\0' && errno == 0) || refuse("argument %d is \"%.40s\"; expected an integer", at, word);
    }
    if (strcmp(word, "-") == 0) return 1;
    for (int s = 0; s < COUNT_STRUCTS; s++)
        if (structs[s].letter == kind) least = (int64_t)structs[s].bytes, alignment = (int64_t)structs[s].alignment;
    if (sscanf(word, "@%" SCNd64 ":%" SCNd64 "%n", &offset, &bytes, &end) != 2 || word[end] != '\0' || strlen(word) > 40)
        return refuse("argument %d is \"%.40s\"; expected @OFFSET:BYTES or -", at, word);
    if (bytes < least || offset < 0 || offset % alignment)
        return refuse("argument %d is %.40s; expected at least %d bytes, at an offset that is a multiple of %d", at, word, (int)least,
                      (int)alignment);
    if (offset > shared.bytes || bytes > shared.bytes - offset)
        return refuse("argument %d, %.40s, reaches beyond the %" PRId64 " bytes of shared memory", at, word, shared.bytes);
    r->in[at] = shared.base + offset;
    if (strchr(WRITTEN, kind) || kind == 'w') r->out[at] = shared.base + offset;
    if (kind == 'E') {
        memcpy(&r->epilogue, r->in[at], sizeof r->epilogue);
        const void **const added[] = {&r->epilogue.bias, &r->epilogue.residual};
        for (int i = 0; i < 2; i++) {
            const uintptr_t offset_in = (uintptr_t)*added[i];
            if (offset_in && (offset_in < sizeof r->epilogue || offset_in >= (uintptr_t)bytes))
                return refuse("argument %d: the %s lies at %" PRIuPTR " of %" PRId64 " bytes", at, i ? "residual" : "bias", offset_in,
                              bytes);
            if (offset_in) *added[i] = (const unsigned char *)r->in[at] + offset_in;
        }
        r->in[at] = &r->epilogue;
    }
    return 1;
}

static int parse(char *line, request *r) {
    char *words[ARGUMENTS + 1], *rest = NULL;
    int count = 0;
    for (char *word = strtok_r(line, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        if (count > ARGUMENTS) return refuse("a request has at most %d arguments", ARGUMENTS);
        words[count++] = word;
    }
    if (count == 0) return refuse("the line is empty; expected NAME ARGUMENT...");
    for (r->call = 0; r->call < COUNT_CALLS && strcmp(words[0], calls[r->call].name); r->call++) {}
    if (r->call == COUNT_CALLS) return refuse("there is no function \"%.40s\"", words[0]);
    const char *kinds = calls[r->call].kinds;
    if ((size_t)count - 1 != strlen(kinds)) return refuse("%s takes %d arguments, not %d", words[0], (int)strlen(kinds), count - 1);
    if (!map_file()) return 0;
    for (int at = 0; at < count - 1; at++)
        if (!take(r, at, kinds[at], words[at + 1])) return 0;
    return 1;
}

static int64_t call(const request *r) {
    const int64_t *i = r->i;
    const void *const *in = r->in;
    void *const *out = r->out;
    int row = 0;
#define CALL(f, kinds, ...) \
    if (r->call == row++) return f(__VA_ARGS__);
    CALLS(CALL)
#undef CALL
    return PYSIM_UNSUPPORTED;
}

static void greet(void) {
    printf("abi %d\n", (int)pysim_abi_version());
    for (int s = 0; s < COUNT_STRUCTS; s++)
        printf("struct %c %s %zu %zu\n", structs[s].letter, structs[s].name, structs[s].bytes, structs[s].alignment);
    printf("written %s\n", WRITTEN);
    for (int c = 0; c < COUNT_CALLS; c++) printf("call %s %s\n", calls[c].name, calls[c].kinds);
    for (int k = 0; k < pysim_kernel_count(); k++) {
        pysim_kernel_info kernel;
        if (pysim_kernel_at(k, &kernel) == PYSIM_OK) printf("kernel %d %s\n", k, kernel.name);
    }
    printf("ready\n");
    fflush(stdout);
}

int main(int count, char **words) {
    char *line = NULL;
    size_t size = 0;
    const struct rlimit none = {0, 0};
    if (count != 2) {
        fprintf(stderr, "usage: worker FD   (an open file that both sides map; the protocol is described in worker.c)\n");
        return 2;
    }
    setrlimit(RLIMIT_CORE, &none); /* a crash is reported by the parent; it leaves no file in the user's folder */
    shared.fd = atoi(words[1]);
    greet();
    for (ssize_t length; (length = getline(&line, &size, stdin)) > 0;) {
        request r = {0};
        if (length > LINE || strlen(line) != (size_t)length) {
            refuse("a request is text of at most %d bytes", LINE);
        } else if (parse(line, &r)) {
            const int64_t value = call(&r);
            printf("done %" PRId64 " %s\n", value, pysim_last_error());
        }
        fflush(stdout);
    }
    free(line);
    return 0;
}
