/* libc_symbols.h: libc's own functions, behind this object. REAL(name) has the type and the errors of the function. */
#ifndef MOTET_FILES_LIBC_SYMBOLS_H
#define MOTET_FILES_LIBC_SYMBOLS_H

#define REAL_LIST(X) \
    X(__fxstatat) X(__fxstatat64) X(__lxstat) X(__lxstat64) X(__open) X(__open64) X(__open64_2) X(__open_2) \
    X(__openat64_2) X(__openat_2) X(__xmknod) X(__xmknodat) X(__xstat) X(__xstat64) X(access) X(bind) X(chdir) \
    X(chmod) X(chown) X(chroot) X(connect) X(creat) X(creat64) X(dlopen) X(eaccess) X(euidaccess) X(execve) \
    X(execveat) X(execvpe) X(faccessat) X(fanotify_mark) X(fchdir) X(fchmod) X(fchmodat) X(fchown) X(fchownat) \
    X(fexecve) X(fopen) X(fopen64) X(fremovexattr) X(freopen) X(freopen64) X(fsetxattr) X(fstatat) X(fstatat64) \
    X(ftok) X(fts_children) X(fts_close) X(fts_open) X(fts_read) X(ftw) X(ftw64) X(futimens) X(futimes) \
    X(futimesat) X(get_current_dir_name) X(getcwd) X(getxattr) X(glob) X(glob64) X(inotify_add_watch) X(lchmod) \
    X(lchown) X(lgetxattr) X(link) X(linkat) X(listxattr) X(llistxattr) X(lremovexattr) X(lsetxattr) X(lstat) \
    X(lstat64) X(lutimes) X(mkdir) X(mkdirat) X(mkdtemp) X(mkfifo) X(mkfifoat) X(mknod) X(mknodat) X(mkostemp) \
    X(mkostemp64) X(mkostemps) X(mkostemps64) X(mkstemp) X(mkstemp64) X(mkstemps) X(mkstemps64) X(mprotect) \
    X(munmap) X(name_to_handle_at) X(nftw) X(nftw64) X(open) X(open64) X(openat) X(openat64) X(opendir) \
    X(pathconf) X(posix_spawn) X(posix_spawn_file_actions_addchdir_np) X(posix_spawn_file_actions_addopen) \
    X(posix_spawnp) X(prctl) X(readlinkat) X(realpath) X(remove) X(removexattr) X(rename) X(renameat) X(renameat2) \
    X(rmdir) X(scandir) X(scandir64) X(scandirat) X(scandirat64) X(sendto) X(setxattr) X(stat) X(stat64) \
    X(statfs) X(statfs64) X(statvfs) X(statvfs64) X(statx) X(symlink) X(symlinkat) X(syscall) X(truncate) \
    X(truncate64) X(unlink) X(unlinkat) X(utime) X(utimensat) X(utimes)

enum {
#define X(name) REAL_##name,
    REAL_LIST(X)
#undef X
    REAL_COUNT
};

extern void *real_calls[REAL_COUNT];
/* Finds a function and stores its address. Keeps errno. */
void *real_find(unsigned call);

static inline void *real_call(unsigned call)
{
    void *address = __atomic_load_n(&real_calls[call], __ATOMIC_RELAXED);
    return __builtin_expect(address != 0, 1) ? address : real_find(call);
}

#define REAL(name) ((__typeof__(name) *)real_call(REAL_##name))

#endif
