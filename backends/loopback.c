/* Triton's SageMaker endpoint listens on all addresses of the machine and has no option to change that. This library,
 * preloaded into tritonserver, binds the port in LOOPBACK_PORT to the loopback address. Other ports are not changed.
 *
 * `make setup` builds it with tcc. It needs no header: it declares what it uses from libc.
 */

struct address { unsigned short family; unsigned char port[2]; unsigned char ip[4]; unsigned char zero[8]; };

extern char *getenv(const char *name);
extern int atoi(const char *text);
extern long syscall(long number, ...);

#define AF_INET 2
#if defined(__x86_64__)
#define SYS_bind 49
#elif defined(__aarch64__)
#define SYS_bind 200
#else
#error "loopback.c supports only x86-64 and arm64"
#endif

int bind(int socket, const struct address *asked, unsigned length)
{
    const char *port = getenv("LOOPBACK_PORT");
    struct address loopback;

    if (port && length >= sizeof loopback && asked->family == AF_INET
        && asked->port[0] * 256 + asked->port[1] == atoi(port)) {
        loopback = *asked;
        loopback.ip[0] = 127, loopback.ip[1] = 0, loopback.ip[2] = 0, loopback.ip[3] = 1;
        asked = &loopback;
    }
    return (int)syscall(SYS_bind, socket, asked, length);
}
