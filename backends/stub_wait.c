/* This library is preloaded into tritonserver and its stubs, and changes two things in Triton's Python backend.
 *
 * First, the backend considers a stub (the process that runs a Python model) dead if it does not answer within a
 * second. It fails the waiting request and puts the next one into the same queue. But the stub may only have been
 * paused (docker pause, a frozen machine, memory being swapped in). Its late answer then goes to the next request, and
 * so on: every caller gets the answer to another request. With this library, the backend waits as long as the stub
 * lives. It waits with sem_timedwait for a semaphore in a file in /dev/shm, whose name is on the stub's command line
 * (python_backend: message_queue.h, stub_launcher.cc).
 *
 * Second, the stub's Python ignores all environment variables (PyConfig_InitIsolatedConfig), so it would write bytecode
 * next to the model's code, into its author's folder. With this library, it obeys PYTHONDONTWRITEBYTECODE.
 *
 * All declarations are below, so that the file compiles without header files.
 */

struct time { long seconds, nanoseconds; };
struct entry { unsigned long inode; long offset; unsigned short length; unsigned char type; char name[256]; };
struct object { const char *file; void *base; const char *symbol; void *address; };

struct status { int kind; const char *function, *message; int code; };

extern int *__errno_location(void);
extern int clock_gettime(int clock, struct time *now);
extern void *dlsym(void *library, const char *name);
extern int dladdr(const void *address, struct object *found);
extern int fclose(void *file);
extern char *fgets(char *line, int size, void *file);
extern void *fopen(const char *path, const char *mode);
extern unsigned long fread(void *place, unsigned long size, unsigned long count, void *file);
extern char *getenv(const char *name);
extern int getpid(void);
extern int closedir(void *folder);
extern void *opendir(const char *path);
extern struct entry *readdir(void *folder);
extern int sem_clockwait(void *semaphore, int clock, const struct time *until);
extern int sem_trywait(void *semaphore);
extern int snprintf(char *place, unsigned long size, const char *format, ...);
extern int sscanf(const char *text, const char *format, ...);
extern char *strrchr(const char *text, int sign);
extern char *strstr(const char *text, const char *part);
extern int strcmp(const char *one, const char *other);
extern unsigned long strlen(const char *text);

#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1
#define ETIMEDOUT 110
#define NEXT_LIBRARY ((void *)-1)
#define NAME 256

static int is_python_backend(const void *caller)
{
    struct object found;

    return dladdr(caller, &found) && found.file && strstr(found.file, "/libtriton_python.so");
}

/* Write to `name` the name of the file in /dev/shm that is mapped at this address. Return whether there is one. */
static int find_region(const void *address, char *name)
{
    void *maps = fopen("/proc/self/maps", "r");
    unsigned long begin, end;
    char line[4096];
    int found = 0;

    while (maps && !found && fgets(line, sizeof line, maps))
        found = sscanf(line, "%lx-%lx %*s %*s %*s %*s /dev/shm/%255s", &begin, &end, name) == 3
            && begin <= (unsigned long)address && (unsigned long)address < end;
    if (maps)
        fclose(maps);
    return found;
}

/* Read /proc/PID/FILE into `text`, followed by a null byte. Return the number of bytes read. */
static unsigned long read_file(const char *pid, const char *file, char *text, unsigned long size)
{
    char path[NAME + 32];
    unsigned long length = 0;
    void *opened;

    snprintf(path, sizeof path, "/proc/%s/%s", pid, file);
    if ((opened = fopen(path, "r"))) {
        length = fread(text, 1, size - 1, opened);
        fclose(opened);
    }
    text[length] = 0;
    return length;
}

static int is_living_child(const char *pid)
{
    char text[1024], *rest, state;
    int parent;

    return read_file(pid, "stat", text, sizeof text) && (rest = strrchr(text, ')'))
        && sscanf(rest + 1, " %c %d", &state, &parent) == 2 && parent == getpid() && state != 'Z' && state != 'X';
}

static int has_argument(const char *pid, const char *argument)
{
    char text[8192], *word;
    unsigned long length = read_file(pid, "cmdline", text, sizeof text);

    for (word = text; word < text + length; word += strlen(word) + 1)
        if (!strcmp(word, argument))
            return 1;
    return 0;
}

/* Return whether a living child process has the name of the semaphore's file on its command line. Return 0 if /proc
 * cannot be read. */
static int stub_lives(const void *semaphore)
{
    struct entry *process;
    void *processes;
    char region[NAME];
    int found = 0;

    if (!find_region(semaphore, region) || !(processes = opendir("/proc")))
        return 0;
    while (!found && (process = readdir(processes)))
        found = process->name[0] >= '1' && process->name[0] <= '9' /* a pid */
            && is_living_child(process->name) && has_argument(process->name, region);
    closedir(processes);
    return found;
}

int sem_timedwait(void *semaphore, const struct time *until)
{
    int result = sem_clockwait(semaphore, CLOCK_REALTIME, until);
    struct time next;

    if (!result || *__errno_location() != ETIMEDOUT || !is_python_backend(__builtin_return_address(0)))
        return result;
    while (stub_lives(semaphore)) {
        clock_gettime(CLOCK_MONOTONIC, &next);
        next.seconds++;
        if (!sem_clockwait(semaphore, CLOCK_MONOTONIC, &next))
            return 0;
    }
    /* The stub may have answered after the last wait, and then ended. */
    if (!sem_trywait(semaphore))
        return 0;
    *__errno_location() = ETIMEDOUT;
    return -1;
}

struct status Py_InitializeFromConfig(const void *config)
{
    struct status (*initialize)(const void *) = dlsym(NEXT_LIBRARY, "Py_InitializeFromConfig");
    int (*run)(const char *, void *) = dlsym(NEXT_LIBRARY, "PyRun_SimpleStringFlags");
    const char *set = getenv("PYTHONDONTWRITEBYTECODE");
    struct status result = initialize(config);

    /* kind 0 is success; flags 0 are the default ones */
    if (!result.kind && run && set && *set)
        run("import sys; sys.dont_write_bytecode = True", 0);
    return result;
}
