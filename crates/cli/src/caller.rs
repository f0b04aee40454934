//! What a command inherits from the shell that typed `belay run`: directory, environment, mask, limits.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use belay_client::Client;
use belay_protocol::Bytes;
use belay_protocol::daemon::ROOM;
use rustix::process::{Resource, getrlimit};

use crate::error::CliError;

/// The whole environment as `NAME=value`, text or not.
pub(crate) fn environment() -> Vec<Bytes> {
    std::env::vars_os()
        .map(|(name, value)| {
            let mut entry: OsString = name;
            entry.push("=");
            entry.push(value);
            entry.into()
        })
        .collect()
}

/// Where the command runs, as an absolute path.
pub(crate) fn directory(asked: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(dir) = asked
        && dir.is_absolute()
    {
        return Ok(dir.to_owned());
    }
    let here = std::env::current_dir()
        .map_err(|error| CliError::io("find the current directory", &error).hint("give one with --cwd"))?;
    Ok(asked.map_or_else(|| here.clone(), |dir| here.join(dir)))
}

/// The limits of this process, by the kernel's numbers.
pub(crate) fn limits() -> Vec<[u64; 3]> {
    const ALL: [Resource; 16] = [
        Resource::Cpu,
        Resource::Fsize,
        Resource::Data,
        Resource::Stack,
        Resource::Core,
        Resource::Rss,
        Resource::Nproc,
        Resource::Nofile,
        Resource::Memlock,
        Resource::As,
        Resource::Locks,
        Resource::Sigpending,
        Resource::Msgqueue,
        Resource::Nice,
        Resource::Rtprio,
        Resource::Rttime,
    ];
    ALL.into_iter()
        .map(|resource| {
            let limit = getrlimit(resource);
            let number = |value: Option<u64>| value.unwrap_or(u64::MAX);
            [u64::from(resource as u32), number(limit.current), number(limit.maximum)]
        })
        .collect()
}

/// What the kernel says of this process and no call tells without changing it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcStatus {
    pub(crate) umask: Option<u32>,
    ignored_signals: u64,
}

impl ProcStatus {
    pub(crate) fn read() -> Self {
        std::fs::read_to_string("/proc/self/status").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Self {
        let field = |name: &str, radix: u32| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            u64::from_str_radix(line.trim(), radix).ok()
        };
        Self {
            umask: field("Umask:", 8).and_then(|mask| u32::try_from(mask).ok()),
            ignored_signals: field("SigIgn:", 16).unwrap_or(0),
        }
    }

    /// Whoever started us wants us not to hear this signal: `nohup`, or `&` in a script.
    pub(crate) const fn ignores(&self, signal: i32) -> bool {
        self.ignored_signals >> (signal - 1) & 1 == 1
    }
}

/// How long a write waits where there is no room for it, so that nobody has to ask again and again; with a daemon that knows of it.
pub(crate) fn room_ms(client: &Client) -> Option<u64> {
    let hello = client.hello()?;
    hello.capabilities.iter().any(|can| can == ROOM).then_some(600_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_page_is_read() {
        let status = ProcStatus::parse("Name:\tbelay\nUmask:\t0027\nSigIgn:\t0000000000001001\n");
        assert_eq!(status.umask, Some(0o027));
        assert!(status.ignores(1) && status.ignores(13) && !status.ignores(2));
        assert!(ProcStatus::read().umask.is_some());
    }

    #[test]
    fn every_limit_has_its_number() {
        let numbers: Vec<u64> = limits().iter().map(|limit| limit[0]).collect();
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn directories_become_absolute() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(directory(None).unwrap(), here);
        assert_eq!(directory(Some(Path::new("x"))).unwrap(), here.join("x"));
        assert_eq!(directory(Some(Path::new("/x"))).unwrap(), Path::new("/x"));
    }
}
