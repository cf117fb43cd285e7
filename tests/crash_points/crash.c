// Ends the process at a chosen change of the file system, as `kill -9` does.
//
// To be preloaded. It counts the calls that change a directory tree or take it to the disk: rename, link, unlink,
// mkdir, rmdir, ftruncate, fsync, fdatasync, and their forms with "at". The calls are caught by the kernel (a seccomp
// filter that turns each into a SIGSYS in the calling thread), so that it does not matter whether they come from the C
// library or, as those of the crate `rustix`, from an instruction of the program's own. The handler makes the call
// itself, and marks it by a sixth argument that the filter lets pass.
//
//   CRASH_BELOW  directory: only calls whose path, or whose file, is below it count
//   CRASH_MATCH  text: only calls whose line in the log holds it count
//   CRASH_AT     number of the call, from 1; none if 0
//   CRASH_AFTER  kills after the call if set, else before it
//   CRASH_STOPS  stops the process there if set, until it gets SIGCONT
//   CRASH_LOG    file: gets a line for each call that counts, before it is made
//
// The handler uses the stack, atomics and plain system calls, and nothing else.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define MARK 0x63726173

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#define RESULT(context) ((context)->uc_mcontext.gregs[REG_RAX])
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#define RESULT(context) ((context)->uc_mcontext.regs[0])
#else
#error "this machine's registers are not known here"
#endif

static void arguments(const ucontext_t *context, long *to) {
#if defined(__x86_64__)
    const int registers[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8};
    for (int i = 0; i < 5; i++) to[i] = context->uc_mcontext.gregs[registers[i]];
#else
    for (int i = 0; i < 5; i++) to[i] = (long)context->uc_mcontext.regs[i];
#endif
}

// Where a call has a path: the number of the argument that holds it, and of that of its directory (or NONE).
#define NONE (-1)
struct call {
    int number;
    const char *name;
    int directory, path;
    int other_directory, other_path;
    int file;
};

static const struct call CALLS[] = {
#ifdef SYS_rename
    {SYS_rename, "rename", NONE, 0, NONE, 1, NONE},
    {SYS_link, "link", NONE, 0, NONE, 1, NONE},
    {SYS_unlink, "unlink", NONE, 0, NONE, NONE, NONE},
    {SYS_rmdir, "rmdir", NONE, 0, NONE, NONE, NONE},
    {SYS_mkdir, "mkdir", NONE, 0, NONE, NONE, NONE},
#endif
#ifdef SYS_renameat
    {SYS_renameat, "rename", 0, 1, 2, 3, NONE},
#endif
    {SYS_renameat2, "rename", 0, 1, 2, 3, NONE},
    {SYS_linkat, "link", 0, 1, 2, 3, NONE},
    {SYS_unlinkat, "unlink", 0, 1, NONE, NONE, NONE},
    {SYS_mkdirat, "mkdir", 0, 1, NONE, NONE, NONE},
    {SYS_ftruncate, "ftruncate", NONE, NONE, NONE, NONE, 0},
    {SYS_fsync, "fsync", NONE, NONE, NONE, NONE, 0},
    {SYS_fdatasync, "fdatasync", NONE, NONE, NONE, NONE, 0},
};
#define NUM_CALLS (int)(sizeof CALLS / sizeof CALLS[0])

static char below[PATH_MAX], match[256];
static long crash_at;
static int is_after, stops, log_file = -1;
static atomic_long events;

struct text {
    size_t length;
    char bytes[3 * PATH_MAX];
};

static void add(struct text *text, const char *bytes, size_t length) {
    size_t room = sizeof text->bytes - 1 - text->length;
    if (length > room) length = room;
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
}

static void add_link(struct text *text, const char *kind, long number) {
    char link[64], target[PATH_MAX], digits[24];
    size_t length = 0, end = sizeof digits;
    memcpy(link, "/proc/self/", 11);
    length = 11;
    memcpy(link + length, kind, strlen(kind));
    length += strlen(kind);
    if (number >= 0) {
        do digits[--end] = (char)('0' + number % 10); while (number /= 10);
        memcpy(link + length, digits + end, sizeof digits - end);
        length += sizeof digits - end;
    }
    link[length] = 0;
    long got = syscall(SYS_readlinkat, AT_FDCWD, link, target, sizeof target);
    if (got > 0) add(text, target, (size_t)got);
}

static void add_path(struct text *text, int directory, const char *path) {
    if (path[0] != '/') {
        if (directory == AT_FDCWD) add_link(text, "cwd", NONE);
        else add_link(text, "fd/", directory);
        add(text, "/", 1);
    }
    add(text, path, strlen(path));
}

static int is_below(const struct text *text, size_t from) {
    size_t length = strlen(below);
    const char *path = text->bytes + from;
    return strncmp(path, below, length) == 0 && (path[length] == '/' || path[length] == 0);
}

// Whether the call counts; `text` gets its line.
static int counts(const struct call *call, const long *given, struct text *text) {
    int found = 0;
    add(text, call->name, strlen(call->name));
    add(text, " ", 1);
    size_t from = text->length;
    if (call->file != NONE) {
        add_link(text, "fd/", given[call->file]);
        found = is_below(text, from);
    } else {
        int directory = call->directory == NONE ? AT_FDCWD : (int)given[call->directory];
        add_path(text, directory, (const char *)given[call->path]);
        found = is_below(text, from);
    }
    if (call->other_path != NONE) {
        add(text, " -> ", 4);
        from = text->length;
        int directory = call->other_directory == NONE ? AT_FDCWD : (int)given[call->other_directory];
        add_path(text, directory, (const char *)given[call->other_path]);
        found |= is_below(text, from);
    }
    found = found && strstr(text->bytes, match) != NULL;
    add(text, "\n", 1);
    return found;
}

// To the thread that calls: one for the process could be taken by another thread, while this one went on.
static void send(int signal) { syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal); }

static void die(void) {
    send(SIGKILL);
    for (;;) pause();
}

static void end(void) {
    if (!stops) die();
    send(SIGSTOP);
}

static void caught(int signal, siginfo_t *info, void *data) {
    (void)signal;
    int saved = errno;
    ucontext_t *context = data;
    const struct call *call = CALLS;
    while (call->number != info->si_syscall) call++;
    long given[5];
    arguments(context, given);
    struct text text = {.length = 0};
    long event = 0;
    if (counts(call, given, &text)) {
        event = atomic_fetch_add(&events, 1) + 1;
        if (log_file >= 0 && write(log_file, text.bytes, text.length) < 0) die();
    }
    int is_it = event > 0 && event == crash_at;
    if (is_it && !is_after) end();
    long result = syscall(call->number, given[0], given[1], given[2], given[3], given[4], (long)MARK);
    if (result == -1) result = -errno;
    if (is_it && is_after) end();
    RESULT(context) = result;
    errno = saved;
}

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

__attribute__((constructor)) static void begin(void) {
    strncpy(below, setting("CRASH_BELOW"), sizeof below - 1);
    strncpy(match, setting("CRASH_MATCH"), sizeof match - 1);
    crash_at = atol(setting("CRASH_AT"));
    is_after = getenv("CRASH_AFTER") != NULL;
    stops = getenv("CRASH_STOPS") != NULL;
    const char *log = setting("CRASH_LOG");
    if (*log) log_file = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_RESTART};
    if (sigaction(SIGSYS, &action, NULL)) _exit(97);

    struct sock_filter filter[6 + NUM_CALLS + 2];
    int n = 0;
#define LOAD(field) filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, field)
#define JUMP(value, yes, no) filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
    LOAD(offsetof(struct seccomp_data, arch));
    JUMP(ARCH, 0, 3 + NUM_CALLS);
    LOAD(offsetof(struct seccomp_data, args[5]));
    JUMP(MARK, 1 + NUM_CALLS, 0);
    LOAD(offsetof(struct seccomp_data, nr));
    for (int i = 0; i < NUM_CALLS; i++) JUMP((unsigned)CALLS[i].number, NUM_CALLS - i, 0);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(98);
}
