//! Pseudoterminals: making one, its size, and the character that ends input. Who runs at it, and what is typed, is not
//! decided here.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pty::OpenptFlags;
use rustix::termios::{SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize};

use crate::fds;

/// A terminal and the side it is worked from.
#[derive(Debug)]
pub struct Pty {
    /// What is written here is typed; what is read here was printed. It does not block.
    pub master: OwnedFd,
    /// The terminal itself, for standard streams. It blocks, as a terminal does.
    pub slave: OwnedFd,
}

/// Makes a terminal. Neither side is inherited, and neither becomes the terminal of the caller.
pub fn open(rows: u16, cols: u16) -> io::Result<Pty> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&master)?;
    // Through the master and not by name: the name may mean another one where `/dev/pts` is mounted twice.
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    fds::set_nonblocking(&master, true)?;
    resize(&master, rows, cols)?;
    Ok(Pty { master, slave })
}

/// Changes the size. If it is another one, the foreground of the terminal gets SIGWINCH.
pub fn resize(terminal: impl AsFd, rows: u16, cols: u16) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}

/// The character that a person types to end input, mostly Ctrl-D. None where it is switched off.
pub fn end_of_input(terminal: impl AsFd) -> Option<u8> {
    let settings = tcgetattr(terminal).ok()?;
    Some(settings.special_codes[SpecialCodeIndex::VEOF]).filter(|code| *code != 0)
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::{Errno, FdFlags, fcntl_getfd, read, write};
    use rustix::termios::tcgetwinsize;

    use super::*;

    #[test]
    fn a_terminal_has_its_size_and_is_not_inherited() {
        let Pty { master, slave } = open(7, 33).unwrap();
        let size = tcgetwinsize(&slave).unwrap();
        assert_eq!((size.ws_row, size.ws_col), (7, 33));
        resize(&master, 50, 200).unwrap();
        let size = tcgetwinsize(&slave).unwrap();
        assert_eq!((size.ws_row, size.ws_col), (50, 200));
        for side in [&master, &slave] {
            assert!(fcntl_getfd(side).unwrap().contains(FdFlags::CLOEXEC));
        }
        assert_eq!(end_of_input(&master), Some(4));
    }

    #[test]
    fn what_was_printed_is_read_to_the_end_and_then_it_is_over() {
        let Pty { master, slave } = open(24, 80).unwrap();
        assert_eq!(read(&master, &mut [0; 9]), Err(Errno::AGAIN));
        write(&slave, b"one\ntwo").unwrap();
        drop(slave);
        let mut heard = [0; 20];
        let length = read(&master, &mut heard).unwrap();
        assert_eq!(&heard[..length], b"one\r\ntwo");
        // A child that another test makes just now has it open until it executes.
        let mut hung_up = [PollFd::new(&master, PollFlags::empty())];
        poll(&mut hung_up, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
        assert_eq!(read(&master, &mut heard), Err(Errno::IO));
    }
}
