/* exec and spawn of an image whose loader is not glibc's: it must not find the preload object in its environment, and everything else must
 * be there. The image is this program with another PT_INTERP, which leads to the same loader. */
#include "check.h"
#include <elf.h>
#include <spawn.h>
#include <sys/stat.h>

extern char **environ;

static char folder[] = "/tmp/mXXXXXX", loader[64], image[64], script[64];

static void make_image(void)
{
    static char bytes[1 << 22];
    CHECK(mkdtemp(folder));
    snprintf(loader, sizeof loader, "%s/ld-musl", folder);
    snprintf(image, sizeof image, "%s/image", folder);
    snprintf(script, sizeof script, "%s/script", folder);
    int own = open("/proc/self/exe", O_RDONLY);
    ssize_t length = read(own, bytes, sizeof bytes);
    CHECK(own >= 0 && length > 0 && length < (ssize_t)sizeof bytes);
    Elf64_Ehdr *head = (Elf64_Ehdr *)bytes;
    Elf64_Phdr *part = (Elf64_Phdr *)(bytes + head->e_phoff);
    while (part->p_type != PT_INTERP) part++;
    char *name = bytes + part->p_offset;
    CHECK(symlink(name, loader) == 0);
    CHECK(strlen(loader) < part->p_filesz);
    strcpy(name, loader);
    int out = open(image, O_WRONLY | O_CREAT, 0700);
    CHECK(out >= 0 && write(out, bytes, (size_t)length) == length && close(out) == 0);
    out = open(script, O_WRONLY | O_CREAT, 0700);
    CHECK(out >= 0 && dprintf(out, "#! %s show\n", image) > 0 && close(out) == 0);
}

static void show(const char *how)
{
    const char *preload = getenv("LD_PRELOAD");
    printf("%s: preload object %s, other one %s, KEPT=%s\n", how, preload && strstr(preload, "libmotet") ? "present" : "absent",
           preload && strstr(preload, "libanl") ? "present" : "absent", getenv("KEPT"));
}

static void in_child(int (*run)(void))
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        run();
        _exit(127);
    }
    wait_for(child);
}

#define ARGUMENTS(how) ((char *[]){image, "show", how, NULL})
static int by_execve(void) { return execve(image, ARGUMENTS("execve"), environ); }
static int by_execv(void) { return execv(image, ARGUMENTS("execv")); }
static int by_execl(void) { return execl(image, image, "show", "execl", (char *)NULL); }
static int by_execvp(void) { setenv("PATH", folder, 1); return execvp("image", ARGUMENTS("execvp")); }
static int by_fexecve(void) { return fexecve(open(image, O_RDONLY), ARGUMENTS("fexecve"), environ); }
static int by_script(void) { return execl(script, script, (char *)NULL); }

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 4096);
    if (argc > 1 && strcmp(argv[1], "show") == 0) return show(argc > 2 && argv[2][0] != '/' ? argv[2] : "script"), 0;
    const char *preload = getenv("LD_PRELOAD");
    char both[8192];
    snprintf(both, sizeof both, "%s%slibanl.so.1", preload ? preload : "", preload ? ":" : "");
    setenv("LD_PRELOAD", both, 1);
    setenv("KEPT", "yes", 1);
    if (argc > 1 && strcmp(argv[1], "own") == 0) { /* an image like this one keeps everything */
        execl("/proc/self/exe", "self", "show", "own", (char *)NULL);
        return 127;
    }
    /* Such an image cannot load the objects of the other adapters either. */
    if (preload) {
        snprintf(both, sizeof both, "%s:/nowhere/libmotet_omniorb.so libanl.so.1", preload);
        setenv("LD_PRELOAD", both, 1);
    }
    make_image();
    in_child(by_execve);
    in_child(by_execv);
    in_child(by_execl);
    in_child(by_execvp);
    in_child(by_fexecve);
    in_child(by_script);
    pid_t child;
    CHECK(posix_spawn(&child, image, NULL, NULL, ARGUMENTS("posix_spawn"), environ) == 0);
    wait_for(child);
    setenv("PATH", folder, 1);
    CHECK(posix_spawnp(&child, "image", NULL, NULL, ARGUMENTS("posix_spawnp"), environ) == 0);
    wait_for(child);
    CHECK(unlink(image) == 0 && unlink(loader) == 0 && unlink(script) == 0 && rmdir(folder) == 0);
}
