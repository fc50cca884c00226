/* SPDX-License-Identifier: Apache-2.0
 * Checks every row of the kernel registry, and every function of the ABI, against the reference. Usage:
 *
 *   check [--kernel SUBSTRING] [--quick] [--every N] [--list] [--seed N] [--case ID]
 *
 * Each row meets convolutions and matrix products at the edges of its block, with both stationary operands, both pack modes and
 * every kind of channel set, K2 and K3, so that any two settings meet in some case (--quick), or any window count x filter
 * count x stationary x K2 x K3 and any further setting (otherwise); --every N runs one of N of these cases. Every operand lies
 * flush against inaccessible memory, on one side for exact inputs and on the other for random ones; outputs start as NaN. A section
 * runs in a process of its own, so a fault is one failure with its case, not the end of the run. Exit code: 0, 1 after any failure,
 * 2 for bad usage. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SHOWN_FAILURES = 10, CASE_SECONDS = 120, ROUNDS = 2 };

check_options check_given = {.seed = 1, .every = 1};

/* Shared with the processes that run the sections. */
typedef struct {
    int64_t passed, failed, nonzero, of;
    int running, case_failed;
    char id[32], description[600];
} progress;
static progress *shared;
static const char *section;

static void print_repro(void) {
    printf("       %s\n       repeat: check --kernel %s --seed %llu%s --case %s\n", shared->description, section,
           (unsigned long long)check_given.seed, check_given.quick ? " --quick" : "", shared->id);
}

int check_begin(const char *id, const char *description, ...) {
    static int64_t cases; /* of this section, whose process this is */
    if (check_given.single ? strcmp(check_given.single, id) != 0 : cases++ % check_given.every != 0) return 0;
    va_list arguments;
    va_start(arguments, description);
    snprintf(shared->id, sizeof shared->id, "%s", id);
    vsnprintf(shared->description, sizeof shared->description, description, arguments);
    va_end(arguments);
    shared->running = 1;
    shared->case_failed = 0;
    alarm(CASE_SECONDS);
    return 1;
}

void check_fail(const char *format, ...) {
    if (shared->case_failed++) return;
    if (shared->failed < SHOWN_FAILURES) {
        va_list arguments;
        va_start(arguments, format);
        printf("FAIL %s: ", section);
        vprintf(format, arguments);
        putchar('\n');
        va_end(arguments);
        print_repro();
    } else if (shared->failed == SHOWN_FAILURES) {
        printf("FAIL %s: further failures are counted only\n", section);
    }
}

int check_failed(void) { return shared->case_failed; }

void check_end(void) {
    shared->running = 0;
    if (shared->case_failed) shared->failed++;
    else shared->passed++;
}

void check_count_nonzero(int64_t nonzero, int64_t of) {
    shared->nonzero += nonzero;
    shared->of += of;
}

/* ---- sections ---- */

static const char *signal_text(int number) {
    switch (number) {
    case SIGSEGV: return "an access outside an operand (SIGSEGV)";
    case SIGBUS: return "an access outside an operand (SIGBUS)";
    case SIGILL: return "an instruction that this CPU does not have (SIGILL)";
    case SIGALRM: return "no end within two minutes";
    default: return strsignal(number);
    }
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Runs in a child process; its counts stay in shared memory even if it crashes. */
static void run_section(const char *name, void (*alone)(void), int32_t kernel, const pysim_kernel_info *row) {
    const double started = seconds();
    int status = 0;
    memset(shared, 0, sizeof *shared);
    section = name;
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) {
        perror("check: fork");
        exit(2);
    }
    if (child == 0) {
        if (row && check_is_tiles(row)) check_given.quick = 1; /* emulated, an instruction is 8192 multiply-adds */
        if (alone) {
            alone();
        } else {
            for (int32_t round = 0; round < (check_given.quick ? 1 : ROUNDS); round++) {
                if (!check_is_skinny(row) && (!check_is_pixels(row) || row->dtype == PYSIM_S8)) check_conv(round, kernel, row);
                if (!check_is_direct(row) && !check_is_phases(row) && !check_is_nchwc(row) && !check_lists(row))
                    check_gemm(round, kernel, row);
            }
            check_given.every = 1; /* of what follows */
            if (!check_given.single && 10 * shared->nonzero < 3 * shared->of && check_begin("total", "all cases of the row")) {
                check_fail("only %lld of %lld results differ from zero", (long long)shared->nonzero, (long long)shared->of);
                check_end();
            }
        }
        exit(0);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (WIFSIGNALED(status)) {
        printf("FAIL %s: %s\n", section, signal_text(WTERMSIG(status)));
        print_repro();
        shared->failed++;
    } else if (WEXITSTATUS(status) != 0) {
        printf("FAIL %s: the process ended with code %d\n", section, WEXITSTATUS(status));
        if (shared->running) print_repro();
        shared->failed++;
    }
    printf("%s %s: %lld passed, %lld failed, %.1f s\n", shared->failed ? "FAIL" : "ok  ", name, (long long)shared->passed,
           (long long)shared->failed, seconds() - started);
}

static const struct {
    const char *name;
    void (*run)(void);
} alone[] = {
    {"checks", check_checks},       {"registry", check_registry}, {"reference", check_reference},
    {"arguments", check_arguments}, {"probes", check_probes},
};
enum { ALONE = sizeof alone / sizeof *alone };

/* ---- main ---- */

static int usage(const char *problem, const char *what) {
    fprintf(stderr, "check: %s %s\nusage: check [--kernel SUBSTRING] [--quick] [--every N] [--list] [--seed N] [--case ID]\n", problem,
            what);
    return 2;
}

static void list(void) {
    for (int32_t i = 0; i < ALONE; i++) printf("%s\n", alone[i].name);
    for (int32_t i = 0; i < pysim_kernel_count(); i++) {
        pysim_kernel_info row;
        if (pysim_kernel_at(i, &row) == PYSIM_OK) printf("%s%s\n", row.name, row.available ? "" : "  (not available here)");
    }
}

/* Rows of the target of row `index` that were left out, if it is the first of them. */
static int64_t skipped_with(int32_t index, const char *wanted, const char *target) {
    int64_t count = 0;
    for (int32_t i = 0; i < pysim_kernel_count(); i++) {
        pysim_kernel_info row;
        if (pysim_kernel_at(i, &row) != PYSIM_OK || row.available || !strstr(row.name, wanted)) continue;
        if (strcmp(row.target, target) == 0) {
            if (i < index) return 0;
            count++;
        }
    }
    return count;
}

static int run_all(const char *wanted) {
    int64_t passed = 0, failed = 0, skipped = 0, matched = 0;
    for (int32_t i = 0; i < ALONE; i++) {
        if (!strstr(alone[i].name, wanted)) continue;
        run_section(alone[i].name, alone[i].run, -1, NULL);
        passed += shared->passed, failed += shared->failed, matched++;
    }
    for (int32_t i = 0; i < pysim_kernel_count(); i++) {
        pysim_kernel_info row;
        if (pysim_kernel_at(i, &row) != PYSIM_OK || !strstr(row.name, wanted)) continue;
        matched++;
        if (!row.available) {
            skipped++;
            printf("SKIP %s: this CPU or build does not have %s\n", row.name, row.target);
            continue;
        }
        run_section(row.name, NULL, i, &row);
        passed += shared->passed, failed += shared->failed;
    }
    if (!matched) return usage("no kernel or section has a name like", wanted);
    for (int32_t i = 0; i < pysim_kernel_count(); i++) {
        pysim_kernel_info row;
        if (pysim_kernel_at(i, &row) != PYSIM_OK || row.available || !strstr(row.name, wanted)) continue;
        const int64_t count = skipped_with(i, wanted, row.target);
        if (count) printf("skipped %lld rows: this CPU or build does not have %s\n", (long long)count, row.target);
    }
    printf("%lld passed, %lld failed, %lld skipped\n", (long long)passed, (long long)failed, (long long)skipped);
    return failed > 0;
}

int main(int argc, char **argv) {
    const char *wanted = "";
    setenv("PYSIM_EMULATED", "1", 0);
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--quick") == 0) {
            check_given.quick = 1;
        } else if (strcmp(option, "--list") == 0) {
            list();
            return 0;
        } else if (strcmp(option, "--kernel") == 0 || strcmp(option, "--seed") == 0 || strcmp(option, "--case") == 0 ||
                   strcmp(option, "--every") == 0) {
            if (++i == argc) return usage("a value is missing after", option);
            char *end = argv[i];
            if (option[2] == 'k') wanted = argv[i];
            if (option[2] == 'c') check_given.single = argv[i];
            if (option[2] == 's') check_given.seed = strtoull(argv[i], &end, 10);
            if (option[2] == 'e') check_given.every = strtoll(argv[i], &end, 10);
            if ((strchr("se", option[2]) && (end == argv[i] || *end)) || check_given.every < 1) return usage("not a number:", argv[i]);
        } else {
            return usage("unknown option", option);
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* a child that crashes must not lose its last lines */
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("check: shared memory");
        return 2;
    }
    return run_all(wanted);
}
