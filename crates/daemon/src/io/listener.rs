//! The listening socket, and restoring it when it was removed. Reading from clients is done in `clients`.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::net::unix::pipe::Receiver;
use tokio::net::{UnixListener, UnixStream};

/// A process that removes the whole directory begins with its contents, and must find it empty in the end.
const REMOVING: Duration = Duration::from_millis(200);

/// Room for many events at once; their contents do not matter.
const EVENT_BYTES: usize = 4096;

/// Without its socket a daemon holds its tasks and its home and cannot be reached, so it restores the socket. The kernel notifies it
/// when something is removed from the directory: there is no polling. If the directory itself is gone nothing is restored: a new
/// daemon has to find out where its sockets may be, and clients report that.
#[derive(Debug)]
pub(crate) struct Listener {
    accepting: UnixListener,
    socket: PathBuf,
    /// Read like a pipe. None if the kernel has no watch left.
    watch: Option<Receiver>,
}

impl Listener {
    pub(crate) fn new(listener: net::UnixListener, socket: PathBuf) -> io::Result<Self> {
        let watch = socket.parent().and_then(|dir| watch(dir).ok());
        let mut restored = Self { accepting: UnixListener::from_std(listener)?, socket, watch };
        // It may have been removed before the watch began.
        restored.restore();
        Ok(restored)
    }

    /// The next connection.
    pub(crate) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            tokio::select! {
                // Connections to the old socket come before a new one.
                biased;
                came = self.accepting.accept() => return came.map(|(stream, _)| stream),
                () = changed(&mut self.watch) => {
                    tokio::time::sleep(REMOVING).await;
                    self.restore();
                }
            }
        }
    }

    /// A file that is there now is left alone.
    fn restore(&mut self) {
        let is_free = self.socket.symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        // If it fails, the next change in the directory brings the next try.
        if is_free && let Ok(made) = make(&self.socket).and_then(UnixListener::from_std) {
            tracing::warn!(socket = %self.socket.display(), "the socket was removed: made again");
            self.accepting = made;
        }
    }
}

/// This daemon holds the lock of the home, so a socket that is there is stale.
pub(crate) fn bind(socket: &Path) -> io::Result<net::UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    make(socket)
}

fn make(socket: &Path) -> io::Result<net::UnixListener> {
    let listener = net::UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn watch(dir: &Path) -> io::Result<Receiver> {
    let notify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    add_watch(&notify, dir, WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::ONLYDIR)?;
    Receiver::from_owned_fd_unchecked(notify)
}

/// Waits until something is removed from the directory; for ever without a watch, or when it fails.
async fn changed(watch: &mut Option<Receiver>) {
    loop {
        let Some(events) = watch else { return std::future::pending().await };
        let read = match events.readable().await {
            Ok(()) => events.try_read(&mut [0; EVENT_BYTES]),
            Err(error) => Err(error),
        };
        match read {
            Ok(_) => return,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => *watch = None,
        }
    }
}
