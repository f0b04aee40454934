//! The socket that clients come in by, and making it again when somebody has removed it. What they say is not heard here.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::net::unix::pipe::Receiver;
use tokio::net::{UnixListener, UnixStream};

/// Whoever removes the whole directory begins with what is in it, and must find it empty in the end.
const REMOVING: Duration = Duration::from_millis(200);

/// Many events at once, and none of them is looked at.
const EVENT_BYTES: usize = 4096;

/// Without its socket a daemon holds its tasks and its home and can be reached by nobody, so it puts one back. The kernel says when
/// something goes from the directory, which is ours alone and hardly ever changes: nobody looks by the clock. Where the directory
/// itself is gone nothing is put back. Who may make one there, and where the shims' sockets are then, is for a new daemon to find
/// out, and the clients say so.
#[derive(Debug)]
pub(crate) struct Door {
    listener: UnixListener,
    socket: PathBuf,
    /// Read as a pipe is. None where the kernel has no watch left for us.
    watch: Option<Receiver>,
}

impl Door {
    pub(crate) fn new(listener: net::UnixListener, socket: PathBuf) -> io::Result<Self> {
        let watch = socket.parent().and_then(|dir| watch(dir).ok());
        let mut door = Self { listener: UnixListener::from_std(listener)?, socket, watch };
        // It may have gone before anybody watched.
        door.restore();
        Ok(door)
    }

    /// The next one who comes in.
    pub(crate) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            tokio::select! {
                // Whoever came in by the old socket is not turned away for a new one.
                biased;
                came = self.listener.accept() => return came.map(|(stream, _)| stream),
                () = changed(&mut self.watch) => {
                    tokio::time::sleep(REMOVING).await;
                    self.restore();
                }
            }
        }
    }

    /// Whatever stands there is left alone: nothing is made in the place of something.
    fn restore(&mut self) {
        let is_free = self.socket.symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        // Where that fails, nobody can be told: the next change in the directory brings the next try.
        if is_free && let Ok(made) = make(&self.socket).and_then(UnixListener::from_std) {
            self.listener = made;
        }
    }
}

/// Nobody else holds the home, so a socket that is there is stale.
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

/// Waits until something has gone from the directory. Without a watch that is never, and so it is when the watch fails.
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
