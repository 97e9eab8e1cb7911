/* Triton's SageMaker endpoint listens on all addresses of the machine and has no option to change that. This library,
 * preloaded into tritonserver, has the port in BIND_PORT listen on the Unix socket in BIND_SOCKET instead, and where
 * there is none on the loopback address. Other ports are not changed.
 *
 * `make setup` builds it with tcc. It needs no header: it declares what it uses from libc.
 */

struct internet { unsigned short family; unsigned char port[2]; unsigned char ip[4]; unsigned char zero[8]; };
struct local { unsigned short family; char path[108]; };

extern char *getenv(const char *name);
extern int atoi(const char *text);
extern long syscall(long number, ...);
extern int socket(int domain, int type, int protocol);
extern int dup2(int from, int to);
extern int close(int descriptor);
extern int unlink(const char *path);

#define AF_UNIX 1
#define AF_INET 2
#define SOCK_STREAM 1
#define SOCK_NONBLOCK 04000
#define SOCK_CLOEXEC 02000000
#if defined(__x86_64__)
#define SYS_bind 49
#elif defined(__aarch64__)
#define SYS_bind 200
#else
#error "bind.c supports only x86-64 and arm64"
#endif

/* Puts a Unix socket in the place of the given one. */
static int bind_local(int replaced, const char *path)
{
    struct local address = { AF_UNIX, { 0 } };
    unsigned length = 0;
    int made;

    while (path[length] && length < sizeof address.path - 1) {
        address.path[length] = path[length];
        length++;
    }
    made = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0)
        return -1;
    unlink(address.path);
    if (syscall(SYS_bind, made, &address, (unsigned)sizeof address) < 0 || dup2(made, replaced) < 0) {
        close(made);
        return -1;
    }
    return close(made);
}

int bind(int descriptor, const struct internet *asked, unsigned length)
{
    const char *port = getenv("BIND_PORT"), *path = getenv("BIND_SOCKET");
    struct internet loopback;

    if (port && length >= sizeof loopback && asked->family == AF_INET
        && asked->port[0] * 256 + asked->port[1] == atoi(port)) {
        if (path)
            return bind_local(descriptor, path);
        loopback = *asked;
        loopback.ip[0] = 127, loopback.ip[1] = 0, loopback.ip[2] = 0, loopback.ip[3] = 1;
        asked = &loopback;
    }
    return (int)syscall(SYS_bind, descriptor, asked, length);
}
