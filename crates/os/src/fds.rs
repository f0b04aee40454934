//! Descriptors and their limits: pipes, non-blocking mode, closing what was inherited. Everything made here is
//! close-on-exec.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;

use crate::spawn::Rlimit;

/// How many `RLIMIT_…` Linux has.
const RESOURCES: u32 = 16;

/// A pipe, reading end first, as large as allowed up to `size`. An ordinary user with many pipes gets small ones
/// (`pipe-user-pages-soft`), which are slower and otherwise as good.
pub fn pipe(size: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    if size > 0 {
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, size);
    }
    Ok((reader, writer))
}

/// A pipe with neither end on 0, 1 or 2, where a child's streams go.
pub(crate) fn pipe_above_stdio() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe(0)?;
    Ok((rustix::io::fcntl_dupfd_cloexec(&reader, 3)?, rustix::io::fcntl_dupfd_cloexec(&writer, 3)?))
}

/// `/dev/null` for reading and writing.
pub fn null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Turns non-blocking mode on or off. It belongs to the open file, which others may share.
pub fn set_nonblocking(fd: impl AsFd, nonblocking: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(&fd)?;
    flags.set(OFlags::NONBLOCK, nonblocking);
    Ok(rustix::fs::fcntl_setfl(&fd, flags)?)
}

/// Lets a descriptor, by itself close-on-exec, be inherited or not.
pub fn set_inheritable(fd: impl AsFd, inheritable: bool) -> io::Result<()> {
    let mut flags = rustix::io::fcntl_getfd(&fd)?;
    flags.set(rustix::io::FdFlags::CLOEXEC, !inheritable);
    Ok(rustix::io::fcntl_setfd(&fd, flags)?)
}

/// The caller's limits.
pub fn rlimits() -> Vec<Rlimit> {
    (0..RESOURCES).filter_map(|resource| rlimit(resource, None).ok()).collect()
}

/// Reads one limit and, if asked, sets it.
fn rlimit(resource: u32, new: Option<[u64; 2]>) -> io::Result<Rlimit> {
    let new = new.as_ref().map_or(std::ptr::null(), |pair| pair.as_ptr());
    let mut old = [0_u64; 2];
    // SAFETY: the kernel's `rlimit64` is two 64-bit numbers; `new` is null or such a pair, `old` is one.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, new, old.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let [soft, hard] = old;
    Ok(Rlimit { resource, soft, hard })
}

/// Raises the number of descriptors to what is allowed. Returns what it was, because children should have it back:
/// programs that use `select` or close every possible descriptor suffer from a large one.
pub fn raise_nofile() -> io::Result<Rlimit> {
    let resource = libc::RLIMIT_NOFILE;
    let old = rlimit(resource, None)?;
    if old.soft < old.hard {
        rlimit(resource, Some([old.hard, old.hard]))?;
    }
    Ok(old)
}

/// Closes every descriptor from `first` on. Only for the start of a program that owns none of them yet: whatever an
/// [`OwnedFd`] believes to have from `first` on is closed under it.
pub fn close_from(first: i32) -> io::Result<()> {
    let first = libc::c_uint::try_from(first).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: called before this program has opened anything of its own, so that these are inherited strays that no
    // owner in this program relies on; that is the condition in the documentation.
    if unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOSYS) { close_one_by_one(first) } else { Err(error) }
}

/// For kernels before 5.9.
fn close_one_by_one(first: libc::c_uint) -> io::Result<()> {
    let open: Vec<libc::c_uint> = std::fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&fd| fd >= first)
        .collect();
    for fd in open.into_iter().filter_map(|fd| libc::c_int::try_from(fd).ok()) {
        // SAFETY: as in `close_from`. The one that listed the directory is closed already, which is no harm.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Takes descriptor 0 away from the rest of the program, which finds `/dev/null` there.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let null = null()?;
    let taken = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(taken) => taken,
        Err(rustix::io::Errno::BADF) => rustix::io::fcntl_dupfd_cloexec(&null, 3)?,
        Err(error) => return Err(error.into()),
    };
    rustix::stdio::dup2_stdin(&null)?;
    Ok(taken)
}

/// Puts one descriptor on 0, 1 and 2.
pub(crate) fn replace_stdio(fd: BorrowedFd<'_>) -> io::Result<()> {
    rustix::stdio::dup2_stdin(fd)?;
    rustix::stdio::dup2_stdout(fd)?;
    rustix::stdio::dup2_stderr(fd)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_as_large_as_asked_and_close_on_exec() {
        let (reader, writer) = pipe(256 * 1024).unwrap();
        assert!(rustix::pipe::fcntl_getpipe_size(&reader).unwrap() >= 4096);
        for end in [&reader, &writer] {
            assert!(rustix::io::fcntl_getfd(end).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        set_nonblocking(&reader, true).unwrap();
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Err(rustix::io::Errno::AGAIN));
        // A size beyond all bounds is no error either.
        pipe(usize::MAX >> 1).unwrap();
    }

    #[test]
    fn all_limits_are_read() {
        let limits = rlimits();
        assert_eq!(limits.len(), RESOURCES as usize);
        let files = limits.iter().find(|limit| limit.resource == libc::RLIMIT_NOFILE).unwrap();
        assert!(files.soft <= files.hard && files.hard > 0);
    }
}
