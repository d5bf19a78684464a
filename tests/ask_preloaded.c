/* The calling side of preloaded.py: asks its server to fork a program, and waits for its end.
 *
 *     cc -DSOCKET='"PATH"' -DPYTHON='"PATH"' ask_preloaded.c -o PYTHON-THAT-FORKS
 *
 * It is not Python, because to start Python would take as long as the program's fork. PYTHON runs
 * the command lines that the server cannot: all but [-B] [-P] [-u] and -c, -m, FILE.py or FOLDER.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;

enum { FILES_MAX = 253 }; /* the most descriptors in one message (SCM_RIGHTS) */

static int connection; /* with the server */

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int is_one_of(const char *word, const char *const *words) {
    while (*words && strcmp(word, *words)) words++;
    return *words != NULL;
}

/* Return 1 if these arguments of Python name a program that can be forked. */
static int is_program(char **words) {
    char path[PATH_MAX];
    struct stat found;
    while (*words && is_one_of(*words, (const char *[]){"-B", "-P", "-u", NULL})) words++;
    if (!*words) return 0;
    size_t length = strlen(*words);
    if (is_one_of(*words, (const char *[]){"-c", "-m", NULL})) return 1;
    if (length >= 3 && !strcmp(*words + length - 3, ".py")) return 1;
    snprintf(path, sizeof path, "%s/__main__.py", *words);
    return !stat(path, &found) && S_ISREG(found.st_mode);
}

/* Write the numbers of this process's open files; return their count. */
static int open_files(int *numbers) {
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) fail("/proc/self/fd");
    int count = 0;
    for (struct dirent *each; (each = readdir(folder));) {
        int number = atoi(each->d_name);
        if (each->d_name[0] == '.' || number == dirfd(folder)) continue;
        if (count == FILES_MAX) errno = EMFILE, fail("cannot pass on all open files");
        numbers[count++] = number;
    }
    closedir(folder);
    return count;
}

/* Write the request to a file: what receive() of fork_server.py reads. */
static void write_request(FILE *request, char **words, int *files, int count) {
    char python[PATH_MAX] = "", folder[PATH_MAX];
    if (readlink("/proc/self/exe", python, sizeof python - 1) < 0) fail("/proc/self/exe");
    if (!getcwd(folder, sizeof folder)) fail("the current folder");
    uint32_t counts[] = {0, (uint32_t)count, 0, 0};
    while (words[counts[2]]) counts[2]++;
    fwrite(counts, sizeof counts, 1, request);
    for (int i = 0; i < count; i++) fprintf(request, "%d%c", files[i], 0);
    fprintf(request, "%s%c%s%c", python, 0, folder, 0);
    for (; *words; words++) fprintf(request, "%s%c", *words, 0);
    for (char **each = environ; *each; each++) fprintf(request, "%s%c", *each, 0);
}

/* Ask for a program with these arguments and with the open files, which are closed here. */
static void ask(char **words) {
    int files[FILES_MAX];
    int count = open_files(files);
    char *text = NULL;
    size_t nbytes = 0;
    FILE *request = open_memstream(&text, &nbytes);
    write_request(request, words, files, count);
    fclose(request);
    memcpy(text, &(uint32_t){(uint32_t)nbytes}, sizeof(uint32_t));
    size_t files_nbytes = (size_t)count * sizeof(int);
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(FILES_MAX * sizeof(int))];
    } rights = {.header = {CMSG_LEN(files_nbytes), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&rights.header), files, files_nbytes);
    struct msghdr message = {.msg_iov = &(struct iovec){text, nbytes}, .msg_iovlen = 1};
    if (count) message.msg_control = &rights, message.msg_controllen = CMSG_SPACE(files_nbytes);
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
    connection = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&address, sizeof address)) fail(SOCKET);
    ssize_t sent = sendmsg(connection, &message, MSG_NOSIGNAL);
    for (size_t at = 0; sent >= 0 && (at += (size_t)sent) < nbytes;)
        sent = send(connection, text + at, nbytes - at, MSG_NOSIGNAL);
    if (sent < 0) fail(SOCKET);
    for (int i = 0; i < count; i++) close(files[i]);
}

static void pass_on(int sign) {
    char byte = (char)sign;
    send(connection, &byte, 1, MSG_NOSIGNAL); /* it fails if the program has ended */
}

/* Return how the program ended: its exit code, or the number of a signal times -1. */
static int ended(void) {
    char told[16] = "";
    ssize_t count = recv(connection, told, sizeof told - 1, 0);
    return count > 0 ? atoi(told) : 1;
}

int main(int count, char **words) {
    if (count < 2 || !is_program(words + 1)) {
        words[0] = PYTHON;
        execv(PYTHON, words);
        fail(PYTHON);
    }
    sigset_t passed;
    sigemptyset(&passed);
    sigaddset(&passed, SIGINT);
    sigaddset(&passed, SIGTERM);
    sigprocmask(SIG_BLOCK, &passed, NULL);
    ask(words + 1);
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigprocmask(SIG_UNBLOCK, &passed, NULL);
    int code = ended();
    if (code < 0) {
        if (-code != SIGKILL) signal(-code, SIG_DFL); /* SIGKILL has no handler */
        kill(getpid(), -code);
    }
    _exit(code);
}
